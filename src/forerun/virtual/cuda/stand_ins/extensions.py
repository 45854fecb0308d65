"""Extensions that a program compiles from CUDA sources (`torch.utils.cpp_extension`, 2.13).

Nothing here compiles or runs them. Each function of one is the stand-in of that name, `extension.function`, where the
program registered it, and else an error that shows how to. Sources of C++ alone are compiled as they are.
"""

import contextlib
import sys
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

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
            stand_in = registered(full)
            if stand_in is None:
                raise NotImplementedError(explain_missing(full))
            return stand_in(*args, **kwargs)

        return kernel


def _replacements(module: Any) -> dict[str, Any]:
    load, load_inline = module.load, module.load_inline

    def load_files(name: str, sources: Any, *args: Any, **options: Any) -> Any:
        files = [sources] if isinstance(sources, str) else list(sources)
        has_cuda = options.get("with_cuda") or any(str(each).endswith(CUDA_SOURCES) for each in files)
        return VirtualExtension(name) if has_cuda else load(name, sources, *args, **options)

    def load_texts(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **options: Any) -> Any:
        has_cuda = options.get("with_cuda") or cuda_sources
        return VirtualExtension(name) if has_cuda else load_inline(name, cpp_sources, cuda_sources, *args, **options)

    return {"load": load_files, "load_inline": load_texts}


class _Finder(PathFinder):
    """Replaces the functions once a program imports their module, which takes a while."""

    def __init__(self, stack: contextlib.ExitStack):
        self._stack = stack

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # type: ignore[override]
        """That of the module itself, whose functions are replaced when it is there."""
        spec = PathFinder.find_spec(name, path, target) if name == MODULE else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self._stack)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, stack: contextlib.ExitStack):
        self._loader, self._stack = loader, stack

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _replace(module, self._stack)


def _replace(module: ModuleType, stack: contextlib.ExitStack) -> None:
    for name, value in _replacements(module).items():
        stack.enter_context(replaced(module, name, value))


@contextlib.contextmanager
def virtual_extensions() -> Iterator[None]:
    """While it is active, extensions of CUDA sources are stand-ins."""
    with contextlib.ExitStack() as stack:
        if MODULE in sys.modules:
            _replace(sys.modules[MODULE], stack)
        else:
            finder = _Finder(stack)
            sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
            stack.callback(sys.meta_path.remove, finder)  # type: ignore[arg-type]
        yield
