"""Small measurements of the device at hand: products, copies, attention, the host's part of an operator, the disk.

Each takes a torch device and returns plain numbers; medians of a few repeats. Times are seconds, speeds bytes or FLOP
per second.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from forerun.errors import FilesNotWritten
from forerun.experience import TimedAttention, TimedProduct
from forerun.units import KIB, MIB, MILLI, format_bytes

REPEATS = 3
CALL_SECONDS = 0.15
"""Stop repeating a call after this long."""
CACHE_BYTES = 16 * MIB
"""Touched between two runs of a call, so that it does not find its inputs in the caches nearest to the cores: in a step
other operators have run since they were made."""
STACK_WIDTH, STACK_LAYERS, STACK_STEPS = 16, 24, 40
DISK_PROBE_BYTES = 32 * MIB
CPU_COPIES = (256 * KIB, 4 * MIB, 32 * MIB, 128 * MIB)
"""Bytes of the copied tensor: in each cache and beside them."""
RANDOM_ELEMENTS = 1_000_000
HEAD_START_CYCLES = 2_000_000
"""A millisecond or two on today's GPUs: longer than the host takes to launch an attention layer's backward pass."""


def repeated_seconds(run: Callable[[], object], device: torch.device, *, evict: bool = False) -> list[float]:
    """Seconds of each of up to `REPEATS` runs, after one that is not counted."""
    scratch = torch.zeros(CACHE_BYTES // 4, device=device) if evict else None
    with torch.no_grad():
        run()
        timings: list[float] = []
        while len(timings) < REPEATS and sum(timings) < CALL_SECONDS:
            if scratch is not None:
                scratch.add_(1)
            timings.append(seconds_of(run, device))
    return timings


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run: by the clock of the host, or on a GPU of its kernels alone.

    To launch a kernel and to wait for it takes 30 to 60 microseconds, many times what a small product takes (an H100,
    docs/log.md of 2026-11-26). So the GPU is put to sleep first, the host gets ahead of it, and two events on the GPU
    measure what lies between them.
    """
    wait(device)
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(HEAD_START_CYCLES)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * MILLI


def wait(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_product(device: torch.device, dtype: str, batch: int, m: int, k: int, n: int) -> TimedProduct:
    """One product of m × k by k × n, as training does it: the second operand lies transposed."""
    left = torch.rand(batch, m, k, device=device).to(getattr(torch, dtype))
    right = torch.rand(batch, n, k, device=device).to(getattr(torch, dtype)).transpose(1, 2)
    run = (lambda: torch.bmm(left, right)) if batch > 1 else (lambda: torch.mm(left[0], right[0]))
    seconds = statistics.median(repeated_seconds(run, device, evict=True))
    return TimedProduct(dtype=dtype, batch=batch, m=m, k=k, n=n, seconds=seconds)


def time_attention(
    device: torch.device, dtype: str, batch: int, heads: int, length: int, head_size: int
) -> TimedAttention:
    """Causal attention, forward and backward."""
    query, key, value = (
        torch.rand(batch, heads, length, head_size, device=device).to(getattr(torch, dtype)).requires_grad_()
        for _ in range(3)
    )
    forward: list[float] = []
    backward: list[float] = []
    results: list[torch.Tensor] = []
    upstream = torch.ones_like(query)
    for _ in range(REPEATS + 1):
        run = functools.partial(F.scaled_dot_product_attention, query, key, value, is_causal=True)
        forward.append(seconds_of(lambda run=run: results.append(run()), device))
        backward.append(seconds_of(lambda: results.pop().backward(upstream), device))
    return TimedAttention(
        dtype=dtype,
        batch=batch,
        heads=heads,
        length=length,
        head_size=head_size,
        forward_seconds=statistics.median(forward[1:]),
        backward_seconds=statistics.median(backward[1:]),
    )


def matmul_peak(device: torch.device, dtype: torch.dtype, side: int = 1024) -> float:
    """FLOP/s of a square matrix product on `device`: what stands for a peak where no datasheet gives one."""
    left = torch.rand(side, side, device=device).to(dtype)
    return 2 * side**3 / statistics.median(repeated_seconds(lambda: left @ left, device))


def copy_speed(device: torch.device, size: int = 128 * MIB) -> float:
    """Bytes per second, read and written, of copying `size` bytes onto memory that is already there."""
    source = torch.zeros(size // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * size / statistics.median(repeated_seconds(lambda: target.copy_(source), device))


def compiled_random_seconds() -> tuple[float | None, float | None]:
    """Seconds of a random number in a compiled kernel on the CPU, and of that first compilation; None without one."""
    values = torch.zeros(RANDOM_ELEMENTS, requires_grad=True)
    compiled = torch.compile(lambda x: F.dropout(x, 0.5, True))

    def run() -> None:
        with torch.enable_grad():  # the mask is kept then, which takes the loop twice as long
            compiled(values)

    start = time.perf_counter()
    try:
        run()
    except (RuntimeError, OSError):  # there is no C++ compiler, or it does not work
        return None, None
    compiling = time.perf_counter() - start
    seconds = statistics.median(repeated_seconds(run, values.device))
    return seconds / RANDOM_ELEMENTS, compiling


def fresh_page_seconds(size: int = 64 * MIB) -> float:
    """Seconds per byte that filling memory takes longer when the operating system has just handed it out."""
    here = torch.device("cpu")
    resident = torch.zeros(size // 4)
    resident_seconds = statistics.median(repeated_seconds(lambda: resident.fill_(1.0), here))
    fresh_seconds = statistics.median(repeated_seconds(lambda: torch.empty(size // 4).fill_(1.0), here))
    return max(0.0, fresh_seconds - resident_seconds) / size


def step_overhead_seconds(device: torch.device) -> float:
    """Seconds per operator that a training step spends outside its operators: Python modules and autograd.

    Fastest step of a narrow stack of linear layers, less the fastest run of its operators alone, over its operators:
    the two take turns, and a busy machine only adds to either. A GPU runs beside the host, so there it is the whole
    step over its operators.
    """
    layers = [nn.Sequential(nn.Linear(STACK_WIDTH, STACK_WIDTH), nn.GELU()) for _ in range(STACK_LAYERS)]
    model = nn.Sequential(*layers).to(device)
    inputs = torch.rand(4, STACK_WIDTH, device=device)

    def step() -> None:
        model(inputs).sum().backward()
        model.zero_grad(set_to_none=True)

    def bare() -> None:
        weight = torch.rand(STACK_WIDTH, STACK_WIDTH, device=device)
        bias = torch.rand(STACK_WIDTH, device=device)
        for _ in range(STACK_LAYERS):
            torch.ops.aten.addmm.default(bias, inputs, weight)
            torch.ops.aten.gelu.default(inputs)
            torch.ops.aten.gelu_backward.default(inputs, inputs)
            torch.ops.aten.mm.default(inputs, weight)
            torch.ops.aten.mm.default(weight, weight)
            torch.ops.aten.sum.dim_IntList(inputs, [0], True)

    whole = operators = float("inf")
    for _ in range(STACK_STEPS):
        with torch.enable_grad():
            whole = min(whole, _once(step, device))
        with torch.no_grad():
            operators = min(operators, _once(bare, device))
    return max(0.0, whole if device.type == "cuda" else whole - operators) / (6 * STACK_LAYERS)


def _once(run: Callable[[], None], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def disk_speed(folder: Path) -> tuple[float, float]:
    """Bytes per second of a durable write in `folder`, and of reading it back from the page cache.

    Raises:
        FilesNotWritten: there is no room for the probe, or no permission.
    """
    content = os.urandom(DISK_PROBE_BYTES)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            start = time.perf_counter()
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            write_seconds = time.perf_counter() - start
            start = time.perf_counter()
            Path(file.name).read_bytes()
            return DISK_PROBE_BYTES / write_seconds, DISK_PROBE_BYTES / (time.perf_counter() - start)
    except OSError as error:
        raise FilesNotWritten(
            f"The speed of the disk under {folder} cannot be measured with {format_bytes(DISK_PROBE_BYTES)}: {error}. "
            f"Free space or change permissions there, or start from another folder."
        ) from error


def import_seconds() -> float:
    """A fresh process until torch and transformers are imported."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, transformers"], check=True, capture_output=True)
    return time.perf_counter() - start


def tokenising_speed() -> float:
    """Bytes of text per second through a byte-pair tokenizer of 1,000 tokens, learned from and run on this file."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text = Path(__file__).read_text(encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()  # type: ignore[assignment]
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=1000, show_progress=False))
    lines = text.splitlines() * 4
    start = time.perf_counter()
    tokenizer.encode_batch(lines)
    return sum(len(line) for line in lines) / (time.perf_counter() - start)
