"""`torch.cuda.FloatTensor` and the like: names of tensor types from before PyTorch 0.4, which programs still use."""

from typing import Any

import torch

DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
}  # fmt: skip


class _OldType(type):
    """A class that makes tensors of the device, and whose instances are all such tensors of its dtype."""

    dtype: torch.dtype
    is_cuda = True

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype is cls.dtype

    def __call__(cls, *args: Any, **_: Any) -> torch.Tensor:
        """Of sizes an empty tensor, of data a copy (torch/csrc/tensor/python_tensor.cpp, 2.13)."""
        if args and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0]).to("cuda", cls.dtype, copy=True)
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(*sizes, dtype=cls.dtype, device="cuda")


def old_types() -> dict[str, type]:
    """Every such class by its name in `torch.cuda`."""
    return {f"{name}Tensor": _OldType(f"{name}Tensor", (), {"dtype": dtype}) for name, dtype in DTYPES.items()}
