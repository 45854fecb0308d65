"""Names for the modules and parameters of a program that announces neither: its outermost module when it is called."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.modules.module as torch_modules
from torch import nn
from torch.nn.parameter import is_lazy

from forerun.trace import Category
from forerun.virtual.recorder import Recorder


@contextlib.contextmanager
def naming_modules(recorder: Recorder) -> Iterator[None]:
    """Give the recorder the path of each module below the outermost one, such as `GPT.blocks.0.attention`.

    Its parameters and buffers count as such.
    """
    # by id, as calls of a set's own methods would be frames that Dynamo looks at
    named: dict[int, weakref.ref[nn.Module]] = {}

    def name(module: nn.Module, args: Any) -> None:
        reference = named.get(id(module))
        if reference is not None and reference() is module:
            return
        root = type(module).__name__
        for path, part in module.named_modules():
            named[id(part)] = weakref.ref(part)
            recorder.module_names[id(part)] = f"{root}.{path}" if path else root
        if any(is_lazy(each) for each in module.parameters()):
            del named[id(module)]  # its next call finds the weights that have got their sizes
        parameters: dict[str, torch.Tensor] = {
            f"{root}.{path}": _inside(each) for path, each in module.named_parameters() if not is_lazy(each)
        }
        recorder.name(parameters)
        recorder.own(parameters.values(), Category.PARAMETER)
        # Megatron-Core's DistributedDataParallel has a list of its own under the name `buffers`
        buffers = (_inside(each) for each in nn.Module.buffers(module) if not is_lazy(each))
        recorder.own(buffers, Category.OTHER)
        recorder.follow(parameters.values())

    handle = torch_modules.register_module_forward_pre_hook(name)
    try:
        yield
    finally:
        handle.remove()


def _inside(tensor: torch.Tensor) -> torch.Tensor:
    """What `torch.func` wraps: its `grad` and `vmap` give a module wrappers, which have no storage of their own."""
    functorch: Any = torch._C._functorch  # type: ignore[attr-defined]
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
