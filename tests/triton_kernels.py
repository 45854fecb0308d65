"""Triton kernels as people write them, for tests/test_triton.py: plain, looping, causal, and with values from the device."""

import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x * tl.sigmoid(x.to(tl.float32)).to(x.dtype)


@triton.jit
def product(
    left, right, result, rows, columns, inner, left_stride, right_stride, result_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, IS_CAUSAL: tl.constexpr,
):  # fmt: skip
    """Matrix product; causal: row r meets the first r of the inner dimension alone."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    place = tl.arange(0, INNER)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    end = tl.minimum(inner, (tl.program_id(0) + 1) * ROWS) if IS_CAUSAL else inner
    for begin in range(0, end, INNER):
        x = tl.load(left + row[:, None] * left_stride + (begin + place)[None, :], mask=row[:, None] < rows, other=0.0)
        y = tl.load(right + (begin + place)[:, None] * right_stride + column[None, :])
        total = tl.dot(x, y, total)
    value = silu(total.to(result.dtype.element_ty))
    tl.store(result + row[:, None] * result_stride + column[None, :], value, mask=row[:, None] < rows)


@triton.autotune([triton.Config({"WIDTH": 1024}), triton.Config({"WIDTH": 256})], key=["columns"])
@triton.heuristics({"IS_EVEN": lambda arguments: arguments["columns"] % arguments["WIDTH"] == 0})
@triton.jit
def normalise(x, result, columns, epsilon, WIDTH: tl.constexpr, IS_EVEN: tl.constexpr):
    """RMS norm of rows of any length, in two passes over each."""
    row = tl.program_id(0)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for begin in range(0, columns, WIDTH):
        place = begin + tl.arange(0, WIDTH)
        value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
        total += value * value
    scale = tl.rsqrt(tl.sum(total) / columns + epsilon)
    for begin in range(0, columns, WIDTH):
        place = begin + tl.arange(0, WIDTH)
        value = tl.load(x + row * columns + place, mask=place < columns, other=0.0)
        tl.store(result + row * columns + place, value * scale, mask=place < columns)


@triton.jit
def within_documents(x, offsets, result, WIDTH: tl.constexpr):
    """Sums of documents, whose lengths are on the device."""
    document = tl.program_id(0)
    begin, end = tl.load(offsets + document), tl.load(offsets + document + 1)
    if end <= begin:
        return
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    for place in range(begin, end):
        total += tl.load(x + place * WIDTH + tl.arange(0, WIDTH))
    tl.atomic_add(result + tl.arange(0, WIDTH), total)


@triton.jit
def softmax(result, x, x_stride, result_stride, rows, columns, WIDTH: tl.constexpr, STAGES: tl.constexpr):
    """Softmax of rows by as many programs as a card holds at once, as in Triton's tutorial."""
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        place = tl.arange(0, WIDTH)
        value = tl.load(x + row * x_stride + place, mask=place < columns, other=-float("inf"))
        numerator = tl.exp(value - tl.max(value, axis=0))
        tl.store(result + row * result_stride + place, numerator / tl.sum(numerator, axis=0), mask=place < columns)


@triton.jit
def copy_tiles(x, result, tiles):
    """The first tiles of each row of tiles, by descriptors."""
    for tile in range(tiles):
        result.store([tl.program_id(0) * 64, tile * 64], x.load([tl.program_id(0) * 64, tile * 64]))
