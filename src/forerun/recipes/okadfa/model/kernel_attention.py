"""Causal attention by kernels: positive features of queries and keys, summed in chunks with a running state.

    out_t = Σ_{s≤t} φ(q_t)·φ(k_s) v_s / Σ_{s≤t} φ(q_t)·φ(k_s)

- `elu`: φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, arXiv 2006.16236).
- `favor`: positive orthogonal random features of the softmax kernel (FAVOR+, Choromanski et al. 2021, arXiv
  2009.14794): x scaled by d^(-1/4), φ(x) = exp(w·x − |x|²/2 − m)/√M, rows w orthogonal in blocks with norms of
  Gaussian vectors, m the largest exponent of each query and of all keys together, which cancels in the quotient.
- `unscaled`: what the public original of this recipe computes, kept to show that it is caught: no scale, no m, and 1e-6
  added to the denominator. For queries and keys of length √d its output is nought.

One chunk's products are C × C; between chunks only the state Σ φ(k)ᵀv of M × d numbers a head is carried. Features
live for a span of `SPAN` chunks and are made again in the backward pass, from the state kept at the span's start, so
what is kept grows with T·d (and T·d·M / 1,024 of states), neither with T·M·d nor with T·M. Shapes: queries, keys and
values (B, H, T, d), features (B, H, T, M). Features and denominators are fp32; under bf16 autocast the products of
chunks are bf16 with sums of state in fp32. fp16 has too little range for features, so there everything is fp32.
"""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Literal["elu", "favor", "unscaled"]
CHUNK = 128
"""Tokens of a chunk, within the 64 to 128 that are usual; others were not compared."""
SPAN = 8
"""Chunks whose features live together: enough work for a kernel, and few enough to be small beside T·d."""
ALIGNED = 8
"""Columns added to the values: the first is ones, whose sums are the denominators. Eight bf16 numbers are 16 bytes, the
alignment of rows at which cuBLAS uses Tensor Cores best (cuBLAS documentation, Tensor Core Usage)."""
TINY = 1e-30
"""Least denominator: positive in fp32 and bf16, far below any live one."""
ORIGINAL_FLOOR = 1e-6
"""Constant that the original adds to its denominators (codenlighten/ortho-ai, KOA attention)."""


class _CausalSums(torch.autograd.Function):
    """Σ_{s≤t} (φ(q_t)·φ(k_s)) v_s for all t, (B, H, T, W) fp32, of values (B, H, T, W) in the dtype of products."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, projection: Tensor, kernel: Kernel, chunk: int
    ) -> Tensor:
        largest = largest_exponent(keys, kernel, projection, chunk * SPAN)
        ctx.kernel, ctx.chunk = kernel, chunk
        state = _empty_state(keys, values, kernel, projection)
        sums, starts = [], []
        for q, k, v in _parts(chunk * SPAN, queries, keys, values):
            starts.append(state)
            of_queries, of_keys = _span_features(q, k, v.dtype, kernel, projection, largest)
            for qf, kf, vc in _parts(chunk, of_queries, of_keys, v):
                sums.append((qf @ kf.mT).tril() @ vc + qf @ state.to(v.dtype))
                state = state + (kf.mT @ vc).float()
        ctx.save_for_backward(queries, keys, values, projection, largest, torch.stack(starts))
        return torch.cat(sums, dim=2).float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        queries, keys, values, projection, largest, starts = ctx.saved_tensors
        spans = _parts(ctx.chunk * SPAN, queries, keys, values, gradients[0].to(values.dtype))
        after = torch.zeros_like(starts[0])
        span_gradients = []
        # Last span first: slopes of keys and values need Σ φ(q)ᵀg of everything after them.
        for (q, k, v, g), start in reversed(list(zip(spans, starts.unbind(), strict=True))):
            of_queries, of_keys = _span_features(q, k, v.dtype, ctx.kernel, projection, largest)
            parts = list(_parts(ctx.chunk, of_queries, of_keys, v, g))
            to_queries = _to_query_features(parts, start)
            to_keys, to_values, after = _to_key_features_and_values(parts, after)
            span_gradients.append((
                _through_features(q, of_queries, to_queries, ctx.kernel, projection),
                _through_features(k, of_keys, to_keys, ctx.kernel, projection),
                to_values,
            ))  # fmt: skip
        span_gradients.reverse()
        return *(torch.cat(parts, dim=2) for parts in zip(*span_gradients, strict=True)), None, None, None


Parts = list[tuple[Tensor, Tensor, Tensor, Tensor]]
"""Chunks of query features, key features, values and slopes of the sums."""


def _to_query_features(parts: Parts, state: Tensor) -> Tensor:
    """Slopes of a span's query features, from the state before it."""
    slopes = []
    for _, k, v, g in parts:
        slopes.append((g @ v.mT).tril() @ k + g @ state.to(g.dtype).mT)
        state = state + (k.mT @ v).float()
    return torch.cat(slopes, dim=2)


def _to_key_features_and_values(parts: Parts, after: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes of a span's key features and values, from Σ φ(q)ᵀg of what comes after it; that sum with the span."""
    of_keys, of_values = [], []
    for q, k, v, g in reversed(parts):
        later = after.to(g.dtype)
        of_keys.append((g @ v.mT).tril().mT @ q + v @ later.mT)
        of_values.append((q @ k.mT).tril().mT @ g + k @ later)
        after = after + (q.mT @ g).float()
    of_keys.reverse()
    of_values.reverse()
    return torch.cat(of_keys, dim=2), torch.cat(of_values, dim=2), after


def _parts(size: int, *tensors: Tensor) -> Any:
    return zip(*(tensor.split(size, dim=2) for tensor in tensors), strict=True)


def _empty_state(keys: Tensor, values: Tensor, kernel: Kernel, projection: Tensor) -> Tensor:
    batch, heads, _, width = keys.shape
    count = width if kernel == "elu" else projection.shape[0]
    return torch.zeros(batch, heads, count, values.shape[-1], dtype=torch.float32, device=keys.device)


def _span_features(
    queries: Tensor, keys: Tensor, dtype: torch.dtype, kernel: Kernel, projection: Tensor, largest: Tensor
) -> tuple[Tensor, Tensor]:
    of_queries = features(queries.float(), kernel, projection)
    return of_queries.to(dtype), features(keys.float(), kernel, projection, largest).to(dtype)


def causal_kernel_attention(
    queries: Tensor, keys: Tensor, values: Tensor, kernel: Kernel, projection: Tensor, chunk: int = CHUNK
) -> Tensor:
    """Attention output (B, H, T, d) in the dtype of `values`; `projection` (M, d) is not read by `elu`."""
    dtype = _product_dtype(queries)
    width = values.shape[3]
    # autocast_mode.h: matmul is on the lower-precision list, so autocast would cast the fp32 products as well.
    with torch.autocast(queries.device.type, enabled=False):
        widened = F.pad(values.to(dtype), (0, ALIGNED))
        widened[..., width] = 1
        sums = _CausalSums.apply(queries, keys, widened, projection.float(), kernel, chunk)
        below = sums[..., width : width + 1]  # type: ignore[index]
        below = below + ORIGINAL_FLOOR if kernel == "unscaled" else below.clamp(min=TINY)
        return (sums[..., :width] / below).to(values.dtype)  # type: ignore[index]


def _product_dtype(queries: Tensor) -> torch.dtype:
    kind = queries.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else queries.dtype
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def features(vectors: Tensor, kernel: Kernel, projection: Tensor, largest: Tensor | None = None) -> Tensor:
    """φ of fp32 `vectors` (B, H, T, d): (B, H, T, M), or (B, H, T, d) for `elu`.

    `largest` (B, H, 1, 1) is the largest exponent of all keys; without it each vector's own is taken, as queries do.
    """
    if kernel == "elu":
        # clamp: exp of a large positive number is inf, and inf in the branch not taken makes the gradient nan.
        return torch.where(vectors > 0, vectors + 1, vectors.clamp(max=0).exp())
    exponents = _exponents(vectors, kernel, projection)
    if kernel == "favor":
        exponents = exponents - (exponents.detach().amax(dim=-1, keepdim=True) if largest is None else largest)
    return exponents.exp() / math.sqrt(projection.shape[0])


def largest_exponent(keys: Tensor, kernel: Kernel, projection: Tensor, span: int = CHUNK * SPAN) -> Tensor:
    """Largest exponent of all keys (B, H, T, d) of a head: (B, H, 1, 1), fp32. Only `favor` reads it.

    One `span` at a time, so that the exponents of all keys never exist together.
    """
    if kernel != "favor":
        return torch.zeros(1, 1, 1, 1, device=keys.device)
    maxima = [
        _exponents(part.float(), kernel, projection).amax(dim=(-2, -1), keepdim=True) for part in keys.split(span, 2)
    ]
    return torch.stack(maxima).amax(dim=0)


def _exponents(vectors: Tensor, kernel: Kernel, projection: Tensor) -> Tensor:
    half = vectors.square().sum(-1, keepdim=True) / 2
    width = vectors.shape[-1]
    if kernel == "unscaled":
        return vectors @ projection.mT / math.sqrt(width) - half
    return vectors @ projection.mT * width**-0.25 - half / math.sqrt(width)


def _through_features(
    vectors: Tensor, of_vectors: Tensor, slopes: Tensor, kernel: Kernel, projection: Tensor
) -> Tensor:
    """Slopes of `vectors` from those of their features; a stabiliser is a constant."""
    if kernel == "elu":
        return (slopes.float() * of_vectors.float().clamp(max=1)).to(vectors.dtype)
    of_exponents = slopes.float() * of_vectors.float()
    root = vectors.shape[-1] ** (0.5 if kernel == "unscaled" else 0.25)
    own = 1.0 if kernel == "unscaled" else root * root
    sums = of_exponents.sum(-1, keepdim=True)
    return (of_exponents @ projection / root - vectors.float() * sums / own).to(vectors.dtype)


def orthogonal_projection(count: int, width: int, generator: torch.Generator | None = None) -> Tensor:
    """Rows (`count`, `width`) on the CPU: orthogonal within blocks of `width`, each as long as a Gaussian vector."""
    blocks = []
    for _ in range(-(-count // width)):
        gaussian = torch.randn(width, width, generator=generator, device="cpu")
        # As torch/nn/init.py (2.13), orthogonal_: the signs of R's diagonal make Q uniform (arXiv math-ph/0609050).
        directions, triangular = torch.linalg.qr(gaussian)
        blocks.append((directions * triangular.diagonal().sign()).mT)
    lengths = torch.randn(count, width, generator=generator, device="cpu").norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths
