"""Device memory that CUDA kernels take for themselves while they run: no tensor of the program holds it.

- Matrix products hand cuBLAS dense rows or columns; an operand that has neither (the expanded gradient of `sum`, say)
  is first copied. Source: `prepare_matrix_for_cublas`, `aten/src/ATen/native/cuda/Blas.cpp`.
- FlashAttention's backward pass sums dQ in fp32 and, with grouped heads, writes dK and dV per query head first.
  Source: `mha_bwd`, `flash_attn/flash_api.cpp` of FlashAttention 2, which PyTorch carries; with documents in a row,
  `mha_varlen_bwd` of the same file, which has room for 128 rows more for each.
- The memory-efficient backward pass sums dQ in fp32 tiles. Source: `workspace_elements_gq`,
  `mem_eff_attention/kernel_backward.h`; tiles are taken as 64 x 64, which is exact where sizes are multiples of that.
- The dense backward pass of an embedding sorts its indices: two int64 copies and as much for the sort.
  Source: `embedding_backward_cuda_kernel`, `EmbeddingBackwardKernel.cu`; the sort's own need is an estimate.

Not covered: cuDNN's and convolutions' workspaces, reductions' semaphores, sorts elsewhere; cuBLAS's own workspace is in
`memory/overhead.py`.
"""

import math
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
PRODUCTS = {
    aten.mm: (0, 1),
    aten.addmm: (1, 2),
    aten.bmm: (0, 1),
    aten.baddbmm: (1, 2),
}
"""Positions of the two matrices among the arguments."""
HEAD_ROUNDING, LARGE_HEAD_ROUNDING, LARGE_HEAD = 32, 64, 128
"""Head sizes round up to 32 up to a size of 128, and to 64 above (`head_size_rounded`, flash_api.cpp)."""
ROW_ROUNDING = 128
"""Sequence lengths round up to this (`seqlen_q_rounded`, flash_api.cpp)."""
TILE = 64
"""Rows and columns of a tile of the memory-efficient kernel (`kBlockSizeI`, `kBlockSizeJ` of kernel_backward.h)."""
FLOAT_BYTES, INDEX_BYTES = 4, 8
SORT_COPIES = 4
"""Sorted and original indices, and a double buffer of the sort."""


def temporary_bytes(packet: Any, args: tuple[Any, ...]) -> list[int]:
    """Sizes of what the CUDA kernel of this aten call allocates and frees again, in bytes."""
    if packet in PRODUCTS:
        return [_bytes(args[i]) for i in PRODUCTS[packet] if not _is_dense(args[i])]
    if packet is aten._scaled_dot_product_flash_attention_backward:
        return _flash_backward(args[1], args[2])
    if packet is aten._flash_attention_backward:
        return _flash_backward_within(args[1], args[2], args[6].numel() - 1)
    if packet is aten._scaled_dot_product_efficient_attention_backward:
        return _efficient_backward(args[1])
    if packet is aten.embedding_dense_backward:
        return [SORT_COPIES * INDEX_BYTES * args[1].numel()]
    return []


def _is_dense(matrix: Tensor) -> bool:
    """Whether rows or columns of the last two dimensions are contiguous and do not overlap, as cuBLAS needs them."""
    rows, columns = matrix.shape[-2:]
    row_stride, column_stride = matrix.stride()[-2:]
    by_rows = (column_stride == 1 or columns == 1) and row_stride >= max(1, columns)
    by_columns = (row_stride == 1 or rows == 1) and column_stride >= max(1, rows)
    return by_rows or by_columns


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


def _efficient_backward(query: Tensor) -> list[int]:
    batch, heads, rows, size = query.shape
    return [batch * heads * _round_up(rows, TILE) * _round_up(size, TILE) * FLOAT_BYTES]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()
