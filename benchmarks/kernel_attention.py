"""Causal kernel attention in chunks beside `scaled_dot_product_attention`: time and memory, forward and backward.

    python -m benchmarks.kernel_attention [LENGTH …]       prints a table and one JSON line

One sequence, 4 heads of 64, fp32 on the CPU or bf16 on a GPU where there is one, all in the same process, turn by
turn; the median of `REPEATS` after one warm-up. Memory is what is allocated at the peak beyond the inputs: by the
profiler on the CPU, by the allocator on a GPU. The crossover is where the kernel's time falls below SDPA's, on a
straight line in logarithms between the two lengths around it. Method version 1.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from forerun.recipes.okadfa.model.kernel_attention import CHUNK, causal_kernel_attention, orthogonal_projection
from forerun.units import MIB

LENGTHS = (1024, 2048, 4096, 8192, 16384)
HEADS, WIDTH = 4, 64
FEATURES = (64, 256)
REPEATS = 3
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def attentions(device: str) -> dict[str, Attention]:
    """Attention functions by name; `favor` at two numbers of features."""
    projections = {count: orthogonal_projection(count, WIDTH).to(device) for count in FEATURES}
    functions: dict[str, Attention] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "elu": lambda q, k, v: causal_kernel_attention(q, k, v, "elu", projections[FEATURES[0]], CHUNK),
    }
    for count, projection in projections.items():
        functions[f"favor-{count}"] = lambda q, k, v, p=projection: causal_kernel_attention(q, k, v, "favor", p, CHUNK)
    return functions


def measure(attend: Attention, length: int, device: str) -> tuple[float, float]:
    """Median seconds of forward and backward, and MiB at the peak beyond the inputs."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    inputs = [torch.randn(1, HEADS, length, WIDTH, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    slope = torch.randn_like(inputs[0])

    def once() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device == "cuda"):
            out = attend(*inputs)
        torch.autograd.grad(out, inputs, slope)
        if device == "cuda":
            torch.cuda.synchronize()

    once()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), peak(once, device) / MIB


def peak(work: Callable[[], None], device: str) -> int:
    """Bytes allocated at the most while `work` runs, beyond those before."""
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    live = highest = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            highest = max(highest, live)
    return highest


def crossover(lengths: list[int], ours: list[float], theirs: list[float]) -> float | None:
    """Length from which ours is the faster; None where it never is, the first length where it always is."""
    ratios = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if ratios[-1] >= 0:
        return None
    last = max((number for number, ratio in enumerate(ratios) if ratio >= 0), default=-1)
    if last < 0:
        return float(lengths[0])
    share = ratios[last] / (ratios[last] - ratios[last + 1])
    return math.exp(math.log(lengths[last]) + share * math.log(lengths[last + 1] / lengths[last]))


def main() -> None:
    """Print the table and the JSON line."""
    lengths = [int(text) for text in sys.argv[1:]] or list(LENGTHS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    functions = attentions(device)
    table = Table("tokens", *(f"{name} ms" for name in functions), *(f"{name} MiB" for name in functions))
    results: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "mib": []} for name in functions}
    for length in lengths:
        for name, attend in functions.items():
            seconds, mib = measure(attend, length, device)
            results[name]["seconds"].append(seconds)
            results[name]["mib"].append(mib)
        latest = [f"{results[name]['seconds'][-1] * 1000:.1f}" for name in functions]
        table.add_row(f"{length:,}", *latest, *(f"{results[name]['mib'][-1]:.1f}" for name in functions))
    crossovers = {
        name: crossover(lengths, results[name]["seconds"], results["sdpa"]["seconds"])
        for name in functions
        if name != "sdpa"
    }
    console = Console(width=130)
    console.print(table)
    for name, length in crossovers.items():
        console.print(
            f"{name}: {'never faster here' if length is None else f'faster than SDPA from {length:,.0f} tokens'}"
        )
    print(json.dumps({
        "benchmark": "kernel-attention", "version": 1, "device": device, "torch": torch.__version__, "heads": HEADS,
        "width": WIDTH, "chunk": CHUNK, "lengths": lengths, "results": results, "crossover": crossovers,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
