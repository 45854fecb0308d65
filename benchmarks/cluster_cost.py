"""What a forecast of a job costs here: seconds, and memory held, as ranks, layers and micro-batches grow.

    python -m benchmarks.cluster_cost [--only ranks|layers|micro-batches|pipelines]

One process for each row, cold. A decoder of LLaMA-3-8B's width on virtual H100s; only one thing grows at a time.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from forerun.units import GIB

BASE = {"ranks": 256, "layers": 32, "micro_batches": 8, "pipeline": 1}
LADDERS = {
    "ranks": [{"ranks": number} for number in (16, 256, 4096, 16384)],
    "layers": [{"layers": number} for number in (16, 32, 64, 128)],
    "micro-batches": [{"pipeline": 4, "micro_batches": number} for number in (4, 8, 16, 64)],
    "pipelines": [{"pipeline": number, "micro_batches": 16} for number in (2, 4, 8)],
}
TENSOR = 8


def settings(ranks: int, layers: int, micro_batches: int, pipeline: int) -> dict:
    """A decoder with split layers, sharded over what is left of the ranks; two stages hold at least a block each."""
    return {
        "name": "cost", "workload": "causal-lm",
        "model": {"name": "llama-3-8b", "config": {"num_hidden_layers": layers}},
        "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": micro_batches, "sequence_length": 8192,
                  "padding": "fixed"},
        "data": {"examples": 10**6}, "precision": "bf16-mixed", "activation_checkpointing": "blocks",
        "parallel": {"shard": ranks // TENSOR // pipeline, "tensor": TENSOR, "sequence_parallel": True,
                     "pipeline": pipeline},
    }  # fmt: skip


def ask(case: dict) -> dict:
    """One forecast in this process."""
    import forerun

    begin = time.perf_counter()
    forecast = forerun.forecast(settings(**case), gpu="h100-80gb")
    return {
        **case, "seconds": time.perf_counter() - begin,
        "held_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_seconds": forecast.step.seconds.expected, "allocated_bytes": forecast.memory.peak_allocated_bytes,
    }  # fmt: skip


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(LADDERS))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(ask(json.loads(arguments.case))))
        return
    rows = []
    table = Table("grows", "ranks", "layers", "micro-batches", "stages", "seconds", "GiB held", "step (s)")
    for name in [arguments.only] if arguments.only else LADDERS:
        for change in LADDERS[name]:
            command = [sys.executable, "-m", "benchmarks.cluster_cost", "--case", json.dumps(BASE | change)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            row = {"grows": name, **json.loads(answer.stdout.splitlines()[-1])}
            rows.append(row)
            sizes = [str(row[key]) for key in ("ranks", "layers", "micro_batches", "pipeline")]
            table.add_row(
                name, *sizes, f"{row['seconds']:.1f}", f"{row['held_bytes'] / GIB:.2f}", f"{row['step_seconds']:.3f}"
            )
    Console(width=120).print(table)
    print(json.dumps({"benchmark": "cluster_cost", "rows": rows}))


if __name__ == "__main__":
    main()
