"""Device memory that CUDA kernels take for themselves while they run: no tensor of the program holds it.

- Matrix products hand cuBLAS dense rows or columns; an operand that has neither (the expanded gradient of `sum`, say)
  is first copied. Source: `prepare_matrix_for_cublas`, `aten/src/ATen/native/cuda/Blas.cpp`.
- FlashAttention's backward pass sums dQ in fp32 and, with grouped heads, writes dK and dV per query head first.
  Source: `mha_bwd`, `flash_attn/flash_api.cpp` of FlashAttention 2, which PyTorch carries; with documents in a row,
  `mha_varlen_bwd` of the same file, which has room for 128 rows more for each. The packages themselves do the same.
- cuDNN's attention sums dQ in fp32 in its backward pass, beside one number for each row; with grouped heads it writes
  dK and dV per query head first. Source: `scaled_dot_product_flash_attention.h` of cudnn-frontend; an H100's allocator
  history shows it to the byte (head size 64), the grouped heads are not re-read.
- Reductions over leading dimensions write partial results: `memory/reductions.py`.
- The memory-efficient backward pass sums dQ in fp32 tiles. Source: `workspace_elements_gq`,
  `mem_eff_attention/kernel_backward.h`; tiles are taken as 64 x 64, which is exact where sizes are multiples of that.
- cuDNN's tensor-core kernels want channels last, for 16 bits and, on Hopper and later, for float32 in TF32: image,
  result and weight that are laid out otherwise are copied into its workspace, and images with gaps by PyTorch
  (`input.contiguous(memory_format)`, `aten/src/ATen/native/cudnn/ConvShared.cpp`); the gradient of the weights is
  summed in fp32 first. With one tap that is so of the gradient of weights in 16 bits alone. On an H100 the scratch of
  dense forward passes and image gradients is that sum within 3 % in 71 of 98 cases in 16 bits and 28 of 49 in float32,
  and over all of them 1.09 and 1.16 times what is taken (benchmarks/truth/operators-h100-80gb.csv). On A100s of cuDNN 8
  float32 fits better without: 42 rows of GPUMemNet are 1.5 % off, 1.8 with it.
- The dense backward pass of an embedding sorts its indices: two int64 copies and as much for the sort.
  Source: `embedding_backward_cuda_kernel`, `EmbeddingBackwardKernel.cu`; the sort's own need is an estimate.

Not covered: workspaces of cuDNN's other algorithms (Winograd, FFT), reductions' counters, sorts elsewhere; cuBLAS's
own workspace is in `memory/overhead.py`.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from forerun.trace import PARTIAL_BYTES
from forerun.virtual import recurrent
from forerun.virtual.attention import current_target
from forerun.virtual.process_state import convolutions_use_tf32

aten = torch.ops.aten
PRODUCTS = {
    aten.mm: (0, 1),
    aten.addmm: (1, 2),
    aten.bmm: (0, 1),
    aten.baddbmm: (1, 2),
    aten.addmm_: (1, 2),
    aten.baddbmm_: (1, 2),
}
"""Positions of the two matrices among the arguments."""
FLASH_PACKAGES = "forerun::_flash_attention_"
"""Operators of `flash_attention.py`."""
HEAD_ROUNDING, LARGE_HEAD_ROUNDING, LARGE_HEAD = 32, 64, 128
"""Head sizes round up to 32 up to a size of 128, and to 64 above (`head_size_rounded`, flash_api.cpp)."""
ROW_ROUNDING = 128
"""Sequence lengths round up to this (`seqlen_q_rounded`, flash_api.cpp)."""
TILE = 64
"""Rows and columns of a tile of the memory-efficient kernel (`kBlockSizeI`, `kBlockSizeJ` of kernel_backward.h)."""
FLOAT_BYTES, HALF_BYTES, INDEX_BYTES = 4, 2, 8
COPIED_FROM = (9, 0)
"""First compute capability on which float32 is copied for TF32."""
CUDNN_ALIGNMENT = 256
"""Bytes beside them in the workspace of its attention."""
POINTWISE = (aten.add, aten.sub, aten.mul, aten.div)
SORT_COPIES = 4
"""Sorted and original indices, and a double buffer of the sort."""


def temporaries(packet: Any, args: tuple[Any, ...]) -> list[tuple[int, int]]:
    """What the CUDA kernel of this aten call allocates and frees again: bytes, and `Storage.reduces`."""
    if packet is aten.sum:
        reduction = _of_leading_dimensions(*args)
        return [] if reduction is None else [reduction]
    return [(size, 0) for size in temporary_bytes(packet, args)]


def host_temporaries(packet: Any, args: tuple[Any, ...]) -> list[tuple[int, int]]:
    """The same of the CPU's kernels: they copy inputs to the dtype to compute in, which CUDA's convert as they read.

    Source: `TensorIteratorBase::compute_types`, `ATen/TensorIterator.cpp`; `make_reduction`, `ReduceOpsUtils.h`.
    """
    tensors = [each for each in args[:2] if isinstance(each, Tensor) and each.dim() > 0]
    if packet in POINTWISE and len(tensors) == 2:
        common = torch.result_type(*tensors)
        return [(each.numel() * common.itemsize, 0) for each in tensors if each.dtype != common]
    if packet is aten.sum and tensors and tensors[0].dtype == torch.bool:
        return [(tensors[0].numel() * INDEX_BYTES, 0)]
    return []


def temporary_bytes(packet: Any, args: tuple[Any, ...]) -> list[int]:
    """Sizes of what the CUDA kernel of this aten call allocates and frees again, in bytes."""
    if packet in PRODUCTS:
        return [_bytes(args[i]) for i in PRODUCTS[packet] if not _is_dense(args[i])]
    if packet is aten._scaled_dot_product_flash_attention_backward:
        return _flash_backward(args[1], args[2])
    if packet is aten._flash_attention_backward:
        return _flash_backward_within(args[1], args[2], args[6].numel() - 1)
    if packet is aten._scaled_dot_product_cudnn_attention_backward:
        return _cudnn_backward(args[1], args[2], args[3])
    if packet is aten._scaled_dot_product_efficient_attention_backward:
        return _efficient_backward(args[1])
    if packet is aten._efficient_attention_backward:
        return _efficient_backward(args[1].transpose(1, 2))
    name = packet._qualified_op_name
    if name.startswith(FLASH_PACKAGES) and name.endswith("_backward"):
        return _flash_package_backward(args, is_third="_3_" in name)
    if packet is aten.convolution:
        return _convolution(args[0], args[1], [args[0]], _result_shape(args), args[3], args[5])
    if packet is aten.convolution_backward:
        sums = [FLOAT_BYTES * args[2].numel()] if args[-1][1] else []
        return _convolution(args[1], args[2], [args[0], args[1]], None if sums else [], args[4], args[6]) + sums
    if packet is aten.embedding_dense_backward:
        return [SORT_COPIES * INDEX_BYTES * args[1].numel()]
    return recurrent.temporary_bytes(packet, args)


def _is_dense(matrix: Tensor) -> bool:
    """Whether rows or columns of the last two dimensions are contiguous and do not overlap, as cuBLAS needs them."""
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    by_rows = (column_stride == 1 or columns == 1) and row_stride >= max(1, columns)
    by_columns = (row_stride == 1 or rows == 1) and column_stride >= max(1, rows)
    return by_rows or by_columns


def _convolution(
    image: Tensor,
    weight: Tensor,
    images: list[Tensor],
    result: list[int] | None,
    stride: list[int],
    dilation: list[int],
) -> list[int]:
    """Copies in another layout: of the `images` that are read and, where there is one, of a `result` of that shape.

    None stands for gradients, of the weights among them; an empty shape for that of the image alone.
    """
    layouts = [suggest_memory_format(tensor) for tensor in (image, weight)]
    layout = next((f for f in layouts if f is not torch.contiguous_format), None)
    if layout is not None:
        return [_bytes(x) for x in images if not x.is_contiguous(memory_format=layout)]
    is_native = image.shape[1] == 1 or (weight.shape[1] == 1 and max(dilation) == 1)
    is_point = weight.shape[2:].numel() == 1 and max(stride) == 1
    reads_as_it_is = is_point and (result is not None or image.element_size() != HALF_BYTES)
    if is_native or reads_as_it_is or not _on_tensor_cores(image):
        return [_bytes(x) for x in images if not x.is_contiguous()]
    sizes = [_bytes(x) for x in images]
    return [*sizes, math.prod(result) * image.element_size(), _bytes(weight)] if result else sizes


def _on_tensor_cores(image: Tensor) -> bool:
    """Whether cuDNN multiplies in 16 bits, or in TF32 as it does unless told otherwise."""
    if image.element_size() == HALF_BYTES:
        return True
    return image.dtype is torch.float32 and current_target().capability >= COPIED_FROM and convolutions_use_tf32()


def _result_shape(args: tuple[Any, ...]) -> list[int]:
    """Shape of what `aten.convolution` returns."""
    image, weight, _, stride, padding, dilation, is_transposed, more, groups = args
    sides = list(zip(image.shape[2:], weight.shape[2:], strict=True))

    def of(values: list[int], index: int) -> int:
        return values[index if len(values) > 1 else 0]

    if is_transposed:
        lengths = [
            (side - 1) * of(stride, n) - 2 * of(padding, n) + of(dilation, n) * (taps - 1) + of(more, n) + 1
            for n, (side, taps) in enumerate(sides)
        ]
        return [image.shape[0], weight.shape[1] * groups, *lengths]
    lengths = [
        (side + 2 * of(padding, n) - of(dilation, n) * (taps - 1) - 1) // of(stride, n) + 1
        for n, (side, taps) in enumerate(sides)
    ]
    return [image.shape[0], weight.shape[0], *lengths]


def _flash_backward(query: Tensor, key: Tensor) -> list[int]:
    batch, heads, rows, size = query.shape
    rounded_rows = _round_up(rows, ROW_ROUNDING)
    rounded_size = _round_up(size, HEAD_ROUNDING if size <= LARGE_HEAD else LARGE_HEAD_ROUNDING)
    sizes = [
        batch * heads * rounded_rows * FLOAT_BYTES,
        batch * heads * rounded_rows * rounded_size * FLOAT_BYTES,
    ]
    if key.shape[1] != heads:
        sizes += [batch * heads * key.shape[2] * size * query.element_size()] * 2
    return sizes


def _flash_backward_within(query: Tensor, key: Tensor, documents: int) -> list[int]:
    tokens, heads, size = query.shape
    rows = tokens + ROW_ROUNDING * documents
    rounded_size = _round_up(size, HEAD_ROUNDING if size <= LARGE_HEAD else LARGE_HEAD_ROUNDING)
    sizes = [heads * rows * FLOAT_BYTES, rows * heads * rounded_size * FLOAT_BYTES]
    if key.shape[1] != heads:
        sizes += [key.shape[0] * heads * size * query.element_size()] * 2
    return sizes


def _flash_package_backward(args: tuple[Any, ...], *, is_third: bool) -> list[int]:
    """FlashAttention-2 as above; -3 sums dK and dV of grouped heads in fp32 (`hopper/flash_api.cpp`, `mha_bwd`)."""
    query, key, offsets = args[1], args[2], args[7]
    if offsets is not None:
        sizes = _flash_backward_within(query, key, offsets.numel() - 1)
    else:  # laid out as (batch, tokens, heads, size)
        sizes = _flash_backward(query.transpose(1, 2), key.transpose(1, 2))
    if not is_third:
        return sizes
    rows = key.shape[:-2].numel()
    grouped = [rows * key.shape[-2] * key.shape[-1] * FLOAT_BYTES] * 2 if key.shape[-2] != query.shape[-2] else []
    return [sizes[0], *sizes[:2], *grouped]  # the logarithms are kept a second time, to base 2


def _cudnn_backward(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    batch, heads, rows, size = query.shape
    number = batch * heads * rows * (size + 1) * FLOAT_BYTES + CUDNN_ALIGNMENT
    if key.shape[1] != heads:
        number += batch * heads * key.shape[2] * (size + value.shape[-1]) * query.element_size()
    return [number]


def _of_leading_dimensions(matrix: Tensor, dims: Any = None, *_: Any) -> tuple[int, int] | None:
    """Bytes of one set of results, and inputs to each, of a sum over the outer dimensions of a dense tensor."""
    if matrix.element_size() > PARTIAL_BYTES or not matrix.is_floating_point() or not dims or matrix.dim() == 0:
        return None
    reduced = {dim % matrix.dim() for dim in dims}
    shape = [size for dim, size in enumerate(matrix.shape) if dim in reduced]
    inputs, outer = math.prod(shape), set(range(len(reduced)))
    if reduced != outer or len(reduced) == matrix.dim() or not matrix.is_contiguous() or matrix.numel() == 0:
        return None
    return PARTIAL_BYTES * (matrix.numel() // inputs), inputs


def _efficient_backward(query: Tensor) -> list[int]:
    batch, heads, rows, size = query.shape
    return [batch * heads * _round_up(rows, TILE) * _round_up(size, TILE) * FLOAT_BYTES]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
