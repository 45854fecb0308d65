"""CUDA's autocast policy for the virtual device, with its cache of cast weights.

The lists follow `aten/src/ATen/autocast_mode.h` of PyTorch 2.11 to 2.13; `test_autocast.py` compares them with the
kernels that the running PyTorch registers for CUDA, op by op and dtype by dtype. An op that is not listed runs in the
dtype of its inputs. Casts of leaf weights are kept until the outermost autocast context ends, as on CUDA: that memory
is real.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only

from forerun.virtual.backend import DEVICE

KEY = "AutocastPrivateUse1"

# autocast_mode.h:820 (2.13), AT_FORALL_LOWER_PRECISION_FP
LOWER_PRECISION = [
    "_convolution",
    "_convolution.deprecated",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linalg_multi_dot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
# autocast_mode.h:855 (2.13), AT_FORALL_FP32
SINGLE_PRECISION = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "rms_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
# autocast_mode.h:916 (2.13), AT_FORALL_FP32_SET_OPT_DTYPE
SINGLE_PRECISION_BY_DTYPE_ARGUMENT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]
# autocast_mode.h:929 (2.13), AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE
SINGLE_PRECISION_NORM = ["norm.Scalar", "norm.ScalarOpt_dim"]
# autocast_mode.h:946 (2.13), AT_FORALL_PROMOTE
WIDEST_TYPE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
ONLY_CUDNN = ["cudnn_convolution", "cudnn_convolution_transpose"]
"""Called by nothing that runs on the virtual device."""
REFUSED = ["binary_cross_entropy"]
"""CUDA refuses it under autocast; the virtual device runs it in the dtype of its inputs."""

_LIBRARIES: list[torch.library.Library] = []  # a collected `Library` withdraws its kernels (torch/library.py:257, 2.13)
_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
_cast_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""Weight and cast copy, by the weight's id; a reference to the weight keeps its id from being used again."""


def register() -> None:
    """Register the policy for every listed op; everything else falls through."""
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, KEY)
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.extend((fallback, library))
    for name in LOWER_PRECISION:
        _register(library, name, _lower_precision)
    for name in SINGLE_PRECISION:
        _register(library, name, _single_precision)
    for name in SINGLE_PRECISION_BY_DTYPE_ARGUMENT:
        _register(library, name, _single_precision_by_dtype)
    for name in SINGLE_PRECISION_NORM:
        _register(library, name, _single_precision)
    for name in WIDEST_TYPE:
        _register(library, name, _widest_type)


def clear_cache() -> None:
    """Drop the cast weights; called when the outermost autocast context ends."""
    _cast_weights.clear()


def overload(name: str) -> Any:
    """The aten overload of a name such as `softmax.int`."""
    base, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")


def _register(library: torch.library.Library, name: str, policy: Callable[..., Any]) -> None:
    op = overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        # autocast_mode.h (2.13): each kernel excludes its own key first, else the op would come back here for ever
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            return policy(op, args, kwargs)

    library.impl(name, kernel, KEY)


def register_wide(library: torch.library.Library, op: Any) -> None:
    """Let an operator of another library compute in fp32 and return what it is given, as torchvision's do.

    Its C++ has kernels for CUDA's autocast alone (torchvision 0.28, `csrc/ops/autocast/*.cpp`).
    """

    def kernel(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            results = _call(op, (first, *args), kwargs, torch.float32)
            floating = (torch.float16, torch.bfloat16, torch.float32)
            return tree_map_only(torch.Tensor, lambda x: x.to(first.dtype) if x.dtype in floating else x, results)

    library.impl(op._schema.name.rpartition("::")[2], kernel, KEY)


def _lower_precision(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _call(op, args, kwargs, torch.get_autocast_dtype(DEVICE))


def _single_precision(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _call(op, args, kwargs, torch.float32)


def _single_precision_by_dtype(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Computes in fp32 by setting the op's dtype argument, unless the caller set it."""
    tensor = args[0]
    if kwargs.get("dtype") is None and _castable(tensor) and tensor.dtype != torch.float32 and not _has_dtype(op, args):
        kwargs = {**kwargs, "dtype": torch.float32}
    return op(*args, **kwargs)


def _has_dtype(op: Any, args: tuple[Any, ...]) -> bool:
    names = [argument.name for argument in op._schema.arguments]
    return "dtype" in names and len(args) > names.index("dtype") and args[names.index("dtype")] is not None


def _widest_type(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # autocast_mode.h:234 (2.13), prioritize
    widest = max(
        (t.dtype for t in _tensors(args) if _castable(t)),
        key=lambda d: d.itemsize,
        default=torch.get_autocast_dtype(DEVICE),
    )
    return _call(op, args, kwargs, widest)


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype) -> Any:
    return op(*[_cast(a, dtype) for a in args], **{k: _cast(v, dtype) for k, v in kwargs.items()})


def _castable(value: Any) -> bool:
    # autocast_mode.h:315 (2.13), is_eligible: fp64 stays as it is
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and _device_type(value) == DEVICE
    )


def _device_type(tensor: torch.Tensor) -> str:
    """The device type of a tensor; asking a fake tensor itself would go through the dispatcher again."""
    return tensor.fake_device.type if isinstance(tensor, FakeTensor) else tensor.device.type


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _castable(value):
        return value if value.dtype == dtype else _cached(value, dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _cached(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A cast copy; of an fp32 leaf that needs gradients, one copy per autocast context."""
    # autocast_mode.cpp, cached_cast (can_try_cache): only weights live long enough to be worth it
    keeps = (
        dtype == torch.get_autocast_dtype(DEVICE)
        and tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not keeps:
        return tensor.to(dtype)
    if id(tensor) not in _cast_weights:
        _cast_weights[id(tensor)] = tensor, tensor.to(dtype)
    return _cast_weights[id(tensor)][1]
