"""Faults of types that CUDA answers and fake tensors do not look at.

`model.half()` beside inputs in fp32, or `BCELoss` under autocast, are common: a forecast of a program that fails at
its first line would help nobody. Messages are PyTorch's (aten/src/ATen/native/cuda/Blas.cpp, Loss.cu and
layer_norm_kernel.cu, native/transformers/attention.cpp, autocast_mode.cpp, 2.13).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
NAMES = {torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
         torch.int32: "Int", torch.int16: "Short", torch.int8: "Char"}  # fmt: skip
"""How PyTorch calls types; it takes class numbers of other ones."""
CLASSES = (torch.int64, torch.uint8)
"""Types of the numbers of classes."""
BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Many models use a sigmoid "
    "layer right before the binary cross entropy layer. In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss."
)


def require_types(func: Any, args: Any) -> None:
    """Fail as CUDA does where the tensors `args` of an operator have types that do not go together.

    Raises:
        RuntimeError: they do not.
    """
    check = _CHECKS.get(func._overloadpacket)
    fault = "" if check is None else check(args)
    if fault:
        raise RuntimeError(fault)


def binary_cross_entropy(func: Any, probability: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The loss of probabilities, which autocast refuses on a card.

    Raises:
        RuntimeError: autocast is on.
    """
    if isinstance(probability, FakeTensor) and torch.is_autocast_enabled("cuda"):
        raise RuntimeError(BANNED)
    return func(probability, *args, **kwargs)


def _of_factors(first: int, second: int) -> Callable[[Any], str]:
    def fault(args: Any) -> str:
        one, other = args[first].dtype, args[second].dtype
        if one is other or not (one.is_floating_point and other.is_floating_point):
            return ""
        if {one, other} <= NAMES.keys():
            return f"mat1 and mat2 must have the same dtype, but got {NAMES[one]} and {NAMES[other]}"
        return ""

    return fault


def _of_convolution(args: Any) -> str:
    one, other = args[0].dtype, args[1].dtype
    if one is other or not {one, other} <= NAMES.keys():
        return ""
    names = [f"torch.cuda.{NAMES[each]}Tensor" for each in (one, other)]
    return f"Input type ({names[0]}) and weight type ({names[1]}) should be the same"


def _of_norm(args: Any) -> str:
    weight = args[2] if len(args) > 2 else None
    if weight is None or weight.dtype is args[0].dtype:
        return ""
    return f"expected scalar type {NAMES.get(args[0].dtype)} but found {NAMES.get(weight.dtype)}"


def _of_classes(args: Any) -> str:
    target = args[1].dtype
    if target in CLASSES:
        return ""
    return f"\"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for '{NAMES.get(target, target)}'"


def _of_attention(args: Any) -> str:
    types = [each.dtype for each in args[:3]]
    if len(set(types)) == 1:
        return ""
    query, key, value = (str(each) for each in types)
    return (
        f"Expected query, key, and value to have the same dtype, but got query.dtype: {query} key.dtype: {key} and "
        f"value.dtype: {value} instead."
    )


_CHECKS: dict[Any, Callable[[Any], str]] = {
    aten.mm: _of_factors(0, 1), aten.addmm: _of_factors(1, 2), aten.bmm: _of_factors(0, 1),
    aten.baddbmm: _of_factors(1, 2), aten.mv: _of_factors(0, 1), aten.addmv: _of_factors(1, 2),
    aten.convolution: _of_convolution, aten.native_layer_norm: _of_norm,
    aten.nll_loss_forward: _of_classes, aten.nll_loss2d_forward: _of_classes,
    aten._scaled_dot_product_flash_attention: _of_attention,
    aten._scaled_dot_product_efficient_attention: _of_attention,
    aten._scaled_dot_product_cudnn_attention: _of_attention, aten.scaled_dot_product_attention: _of_attention,
}  # fmt: skip
"""Operator → what is wrong with its arguments; empty where nothing is."""
