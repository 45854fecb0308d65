"""Memory and time of DeepSpeed's engine by `forerun exec`, beside the settings that stand for it.

    python -m benchmarks.zero_engine [--only TEXT]

Needs the package deepspeed (0.19). Nothing is measured on a GPU: the engine, unmodified, and the settings run on the
same virtual one, so that what differs is what `step/zero.py` and `step/zero_three.py` make of the engine.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.api import forecast
from forerun.settings.load import settings_from
from forerun.units import GIB, MILLI

RANKS, GPU = 4, "a100-80gb"
MODEL = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 6, "num_attention_heads": 32,
         "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
WIDTH = MODEL["hidden_size"]
AUTO = {"reduce_bucket_size": WIDTH**2, "stage3_prefetch_bucket_size": int(0.9 * WIDTH**2),
        "stage3_param_persistence_threshold": 10 * WIDTH}  # fmt: skip
ON_HOST = {"device": "cpu", "pin_memory": True}
CASES: dict[str, dict[str, Any]] = {
    "ZeRO-2": {"zero": {"stage": 2}},
    "ZeRO-2, auto": {"zero": {"stage": 2, "reduce_bucket_size": WIDTH**2}, "buckets": "auto"},
    "ZeRO-3": {"zero": {"stage": 3}},
    "ZeRO-3, auto": {"zero": {"stage": 3} | AUTO, "buckets": "auto"},
    "ZeRO-3, recomputed": {"zero": {"stage": 3}, "recomputes": True},
    "ZeRO-3, recomputed, 2 micro-batches": {"zero": {"stage": 3}, "recomputes": True, "steps": 2},
    "ZeRO-3, optimizer on the host": {"zero": {"stage": 3, "offload_optimizer": ON_HOST}, "offload": "optimizer"},
    "ZeRO-3, all on the host, recomputed": {
        "zero": {"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST}, "offload": "parameters",
        "recomputes": True,
    },
}  # fmt: skip


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zero_engine")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    only = parser.parse_args().only
    rows = {name: _row(case) for name, case in CASES.items() if only in name}
    table = Table("case", "engine: allocated, reserved, step", "settings", "differences")
    for name, (engine, settings) in rows.items():
        apart = [f"{100 * (ours / theirs - 1):+.2f} %" for ours, theirs in zip(settings, engine, strict=True)]
        table.add_row(name, _text(engine), _text(settings), ", ".join(apart))
    Console().print(table)
    print(json.dumps(rows))


def _row(case: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Peak allocated and reserved bytes and seconds of a step, of the engine and of the settings."""
    batch = {"micro_batch_size": 4, "gradient_accumulation_steps": case.get("steps", 1), "sequence_length": 1024}
    recomputes = case.get("recomputes", False)
    parallel = {"kind": "ddp", "world_size": RANKS, "zero": case["zero"]["stage"],
                "zero_buckets": case.get("buckets", "deepspeed"), "offload": case.get("offload", "none")}  # fmt: skip
    content = {
        "name": "deepspeed", "workload": "causal-lm", "model": {"name": "llama-7b", "config": MODEL}, "batch": batch,
        "precision": "bf16-mixed", "parallel": parallel, "data": {"examples": 10**5},
        "optimizer": {"max_gradient_norm": 1.0}, "activation_checkpointing": "blocks" if recomputes else "none",
    }  # fmt: skip
    ours = forecast(settings_from(content), GPU)
    program = {"zero": case["zero"], "batch": batch, "model": MODEL, "recomputes": recomputes}
    theirs = _engine(program)
    memory = ours.memory
    return (
        [theirs["memory"]["peak_allocated_bytes"], theirs["memory"]["peak_reserved_bytes"],
         theirs["step"]["seconds"]["expected"]],
        [memory.peak_allocated_bytes, memory.peak_reserved_bytes, ours.step.seconds.expected],
    )  # fmt: skip


def _engine(program: dict[str, Any]) -> dict[str, Any]:
    script = str(Path(__file__).parent / "program.py")
    command = [sys.executable, "-m", "forerun", "exec", "--gpu", GPU, "--json", "--", "torchrun",
               "--nproc-per-node", str(RANKS), script]  # fmt: skip
    environment = os.environ | {"DEEPSPEED_CASE": json.dumps(program)}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if process.returncode not in (0, 3):
        raise SystemExit(f"the engine did not run: {process.stderr[-800:]}")
    return json.loads(process.stdout)


def _text(values: list[float]) -> str:
    allocated, reserved, seconds = values
    return f"{allocated / GIB:.3f} GiB, {reserved / GIB:.2f} GiB, {seconds / MILLI:.1f} ms"


if __name__ == "__main__":
    main()
