"""Causal attention by kernels: positive features of queries and keys, summed in chunks with a running state.

    out_t = Σ_{s≤t} φ(q_t)·φ(k_s) v_s / Σ_{s≤t} φ(q_t)·φ(k_s)

- `elu`: φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236).
- `favor`: positive orthogonal random features of the softmax kernel (FAVOR+, Choromanski et al. 2021, arXiv
  2009.14794): x scaled by d^(-1/4), φ(x) = exp(w·x − |x|²/2 − m)/√M, rows w orthogonal in blocks with norms of
  Gaussian vectors, m the largest exponent of each query and of all keys together, which cancels in the quotient.
- `unscaled`: what the public original of this recipe computes, kept to show that it is caught: no scale, no m, and 1e-6
  added to the denominator. For queries and keys of length √d its output is nought.

One chunk's products are C × C; between chunks only the state Σ φ(k)ᵀv of M × d numbers a head is carried, in the
backward pass too, so that what is kept grows with T·(M + d) and never with T·M·d. Shapes: queries, keys and values
(B, H, T, d), features (B, H, T, M). Features and denominators are fp32; under bf16 autocast the products of chunks are
bf16 with sums of state in fp32. fp16 has too little range for features, so there everything is fp32.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Literal["elu", "favor", "unscaled"]
CHUNK = 128
"""Tokens of a chunk, within the 64 to 128 that are usual; others were not compared."""
ALIGNED = 8
"""Columns added to the values: the first is ones, whose sums are the denominators; the others keep rows aligned."""
TINY = 1e-30
"""Least denominator: positive in fp32 and bf16, far below any live one."""
ORIGINAL_FLOOR = 1e-6
"""What the original adds to its denominators (codenlighten/ortho-ai, KOA attention)."""


class _ChunkedSums(torch.autograd.Function):
    """Σ_{s≤t} (φ(q_t)·φ(k_s)) v_s for all t, (B, H, T, W) of values (B, H, T, W); T is a multiple of the chunk."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, chunk: int) -> Tensor:
        ctx.save_for_backward(queries, keys, values)
        ctx.chunk = chunk
        state = _empty_state(keys, values)
        sums = []
        for q, k, v in _chunks(chunk, queries, keys, values):
            sums.append((q @ k.mT).tril() @ v + q @ state.to(q.dtype))
            state = state + (k.mT @ v).float()
        return torch.cat(sums, dim=2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        queries, keys, values = ctx.saved_tensors
        parts = list(_chunks(ctx.chunk, queries, keys, values, gradients[0].contiguous()))
        state, after = _empty_state(keys, values), _empty_state(keys, values)
        of_queries, of_keys, of_values = [], [], []
        for _, k, v, g in parts:
            of_queries.append((g @ v.mT).tril() @ k + g @ state.to(g.dtype).mT)
            state = state + (k.mT @ v).float()
        for q, k, v, g in reversed(parts):
            later = after.to(g.dtype)
            of_keys.append((g @ v.mT).tril().mT @ q + v @ later.mT)
            of_values.append((q @ k.mT).tril().mT @ g + k @ later)
            after = after + (q.mT @ g).float()
        of_keys.reverse()
        of_values.reverse()
        return torch.cat(of_queries, dim=2), torch.cat(of_keys, dim=2), torch.cat(of_values, dim=2), None


def _chunks(chunk: int, *tensors: Tensor) -> Any:
    return zip(*(tensor.split(chunk, dim=2) for tensor in tensors), strict=True)


def _empty_state(keys: Tensor, values: Tensor) -> Tensor:
    batch, heads, _, features = keys.shape
    return torch.zeros(batch, heads, features, values.shape[-1], dtype=torch.float32, device=keys.device)


def causal_kernel_attention(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel, projection: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Attention output (B, H, T, d) in the dtype of `values`; `projection` (M, d) is not read by `elu`."""
    dtype = _product_dtype(queries)
    length, width = queries.shape[2], values.shape[3]
    with torch.autocast(queries.device.type, enabled=False):
        query_features = features(queries.float(), kernel, projection.float(), is_query=True).to(dtype).contiguous()
        key_features = features(keys.float(), kernel, projection.float(), is_query=False).to(dtype).contiguous()
        missing = -length % min(chunk, length)
        widened = F.pad(values.to(dtype), (0, ALIGNED, 0, missing))
        widened[..., width] = 1
        if missing:
            query_features, key_features = (F.pad(f, (0, 0, 0, missing)) for f in (query_features, key_features))
        sums = _ChunkedSums.apply(query_features, key_features, widened, min(chunk, length))[:, :, :length].float()
        below = sums[..., width : width + 1]
        below = below + ORIGINAL_FLOOR if kernel == "unscaled" else below.clamp(min=TINY)
        return (sums[..., :width] / below).to(values.dtype)


def _product_dtype(queries: Tensor) -> torch.dtype:
    kind = queries.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else queries.dtype
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def features(vectors: Tensor, kernel: Kernel, projection: Tensor, *, is_query: bool) -> Tensor:
    """φ of fp32 `vectors` (B, H, T, d): (B, H, T, M), or (B, H, T, d) for `elu`."""
    if kernel == "elu":
        return torch.where(vectors > 0, vectors + 1, vectors.clamp(max=0).exp())  # elu_backward compiles wrong (2.13)
    width, count = vectors.shape[-1], projection.shape[0]
    if kernel == "unscaled":
        exponents = vectors @ projection.mT / math.sqrt(width) - vectors.square().sum(-1, keepdim=True) / 2
        return exponents.exp() / math.sqrt(count)
    scaled = vectors * width**-0.25
    exponents = scaled @ projection.mT - scaled.square().sum(-1, keepdim=True) / 2
    largest = exponents.detach().amax(dim=-1 if is_query else (-2, -1), keepdim=True)
    return (exponents - largest).exp() / math.sqrt(count)


def orthogonal_projection(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Rows (`count`, `width`) on the CPU: orthogonal within blocks of `width`, each as long as a Gaussian vector."""
    blocks = []
    for _ in range(-(-count // width)):
        gaussian = torch.randn(width, width, generator=generator, device="cpu")
        directions, triangular = torch.linalg.qr(gaussian)
        blocks.append((directions * triangular.diagonal().sign()).mT)
    lengths = torch.randn(count, width, generator=generator, device="cpu").norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths
