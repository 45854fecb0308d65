"""Nested (jagged) tensors of the device say that they are not known, before PyTorch ends the process over them."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from forerun.virtual.put_back import replaced_everywhere


@contextlib.contextmanager
def refusing_nested() -> Iterator[None]:
    """While it is active, a nested tensor of the device cannot be made.

    Its wrapper would be of a CUDA that PyTorch was not built for (torch/nested/_internal/nested_tensor.py, 2.13).
    """
    module: Any = importlib.import_module("torch.nested._internal.nested_tensor")
    original = module.get_tensor_symint

    def length(tensor: Any, *, coeff: int = 1) -> Any:
        if isinstance(tensor, FakeTensor):
            raise NotImplementedError(
                "torch.nested tensors are not known on the virtual GPU. Pad their rows, or pack them "
                "behind one another for a variable-length attention (flash_attn_varlen_func, flex_attention)."
            )
        return original(tensor, coeff=coeff)

    with replaced_everywhere([(module, "get_tensor_symint", length)]):
        yield
