"""What a forecast itself costs: seconds and peak resident memory, each target in a process of its own.

    python benchmarks/forecast_cost.py            prints a table and one JSON line

Goals on 2 CPU cores: BERT-base at most 4 s, LLaMA-7B LoRA at most 20 s, 2 GiB; no weights are downloaded
(HF_HUB_OFFLINE is set). `seconds` is the first forecast of a process, imports of torch and transformers included, the
median of three processes; `process` is the whole process. Method version 2.
"""

import json
import os
import subprocess
import sys
import time

TARGETS = {
    "bert-base 16 x 128, bf16-mixed": (
        4.0,
        {"workload": "sequence-classification", "model": {"name": "bert-base-uncased"}, "precision": "bf16-mixed",
         "batch": {"micro_batch_size": 16, "sequence_length": 128}},
    ),
    "llama-7b LoRA r=8, 4 x 512, bf16-true": (
        20.0,
        {"workload": "causal-lm", "model": {"name": "llama-7b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]},
         "batch": {"micro_batch_size": 4, "sequence_length": 512}},
    ),
    "llama-7b LoRA all-linear, accumulation 4, checkpointing": (
        20.0,
        {"workload": "causal-lm", "model": {"name": "llama-7b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8}, "activation_checkpointing": "blocks",
         "batch": {"micro_batch_size": 4, "sequence_length": 512, "gradient_accumulation_steps": 4}},
    ),
    "llama-2-70b LoRA, 1 x 512, bf16-true": (
        60.0,
        {"workload": "causal-lm", "model": {"name": "llama-2-70b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]},
         "batch": {"micro_batch_size": 1, "sequence_length": 512}},
    ),
}  # fmt: skip
MEMORY_GIB = 2.0
REPEATS = 3
CHILD = """
import json, resource, sys, time
import forerun
target = json.loads(sys.argv[1])
start = time.perf_counter()
forecast = forerun.forecast({"name": "cost", "data": {"examples": 1000}, **target}, gpu="a100-80gb")
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
allocated = forecast.memory.peak_allocated_bytes / 1024**3
print(json.dumps({"seconds": seconds, "peak_gib": peak, "allocated_gib": allocated}))
"""


def measure(target: dict) -> dict:
    """One forecast in a fresh process."""
    start = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(target)],
        capture_output=True, text=True, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return {**json.loads(result.stdout.splitlines()[-1]), "process": time.perf_counter() - start}


def main() -> None:
    """Print the table and one JSON line; exit 1 when a goal is missed."""
    rows = []
    print(f"{'target':58} {'seconds':>8} {'goal':>5} {'process':>8} {'peak GiB':>9}")
    for name, (goal, target) in TARGETS.items():
        runs = sorted((measure(target) for _ in range(REPEATS)), key=lambda run: run["seconds"])
        row = {"target": name, "goal_seconds": goal, **runs[REPEATS // 2]}
        rows.append(row)
        print(f"{name:58} {row['seconds']:8.2f} {goal:5.0f} {row['process']:8.2f} {row['peak_gib']:9.2f}")
    missed = [r["target"] for r in rows if r["seconds"] > r["goal_seconds"] or r["peak_gib"] > MEMORY_GIB]
    print(json.dumps({"benchmark": "forecast_cost", "version": 2, "rows": rows, "missed": missed}))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
