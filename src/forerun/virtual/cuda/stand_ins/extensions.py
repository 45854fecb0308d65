"""Extensions that a program compiles from CUDA sources (`torch.utils.cpp_extension`, 2.13).

Nothing here compiles or runs them. Each function of one is the stand-in of that name, `extension.function`, where the
program registered it or it is DeepSpeed's, and else an error that shows how to. Sources of C++ alone are compiled as
they are, but for DeepSpeed's optimizers on the host, which read memory that is not there.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.stand_ins import deepspeed
from forerun.virtual.cuda.stand_ins.registry import explain_missing, registered
from forerun.virtual.put_back import replaced

MODULE = "torch.utils.cpp_extension"
CUDA_SOURCES = (".cu", ".cuh", ".hip")


class VirtualExtension(ModuleType):
    """What a program gets in place of an extension of CUDA sources."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"

        def kernel(*args: Any, **kwargs: Any) -> Any:
            stand_in: Callable[..., Any] | None = registered(full) or deepspeed.FUNCTIONS.get(full)
            if stand_in is None:
                raise NotImplementedError(explain_missing(full))
            return stand_in(*args, **kwargs)

        return kernel


def _replacements(module: Any) -> dict[str, Any]:
    load, load_inline = module.load, module.load_inline

    def load_files(name: str, sources: Any, *args: Any, **options: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        has_cuda = options.get("with_cuda") or any(str(each).endswith(CUDA_SOURCES) for each in files)
        is_virtual = has_cuda or name in deepspeed.EXTENSIONS
        return VirtualExtension(name) if is_virtual else load(name, sources, *args, **options)

    def load_texts(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **options: Any) -> Any:
        has_cuda = options.get("with_cuda") or cuda_sources
        return VirtualExtension(name) if has_cuda else load_inline(name, cpp_sources, cuda_sources, *args, **options)

    return {"load": load_files, "load_inline": load_texts}


def _replace(module: ModuleType) -> Callable[[], None]:
    stack = contextlib.ExitStack()
    for name, value in _replacements(module).items():
        stack.enter_context(replaced(module, name, value))
    return stack.close


@contextlib.contextmanager
def virtual_extensions() -> Iterator[None]:
    """While it is active, extensions of CUDA sources are stand-ins; only the program imports their module."""
    with after_import(MODULE, _replace):
        yield
