"""Cost of a forecast itself: seconds and peak resident memory, each target in a process of its own.

    python benchmarks/forecast_cost.py [WORD]     prints a table and one JSON line; of targets with WORD in their name

Goals on 2 CPU cores: BERT-base 3 s, one billion parameters 10 s (asked of 7B here), 70B 60 s, all within 2 GiB; no
weights are downloaded (HF_HUB_OFFLINE is set). `seconds` is the first forecast of a process, imports of torch and
transformers included, the median of three processes; `imports` is what a bare process needs to import torch and the
model's module of transformers, which no forecast of that model can do without; `again` is a second forecast in the
same process, of another micro-batch size; `process` is the whole process. `cached` is `forerun forecast --json` on
another card in a process that finds the traces of the first one (`src/forerun/forecasting/traces.py`), `interp.` is
the same of a micro-batch three samples larger, which was never traced, once the sizes around the first were
(`src/forerun/forecasting/nearby.py`; `nearby` is the seconds of that), and `comparison` is `forerun compare --json`
over the whole catalogue where one was made before; these are whole processes of the command line, medians of three.
Everything else is measured without kept traces. Processes may write and read byte code, as an installed package does
whatever PYTHONDONTWRITEBYTECODE says here: compiling our sources anew takes 0.1 s. Method version 6.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS = {
    "bert-base 16 x 128, bf16-mixed": (
        3.0, "bert",
        {"workload": "sequence-classification", "model": {"name": "bert-base-uncased"}, "precision": "bf16-mixed",
         "batch": {"micro_batch_size": 16, "sequence_length": 128}},
    ),
    "llama-7b LoRA r=8, 4 x 512, bf16-true": (
        10.0, "llama",
        {"workload": "causal-lm", "model": {"name": "llama-7b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]},
         "batch": {"micro_batch_size": 4, "sequence_length": 512}},
    ),
    "llama-7b LoRA all-linear, accumulation 4, checkpointing": (
        10.0, "llama",
        {"workload": "causal-lm", "model": {"name": "llama-7b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8}, "activation_checkpointing": "blocks",
         "batch": {"micro_batch_size": 4, "sequence_length": 512, "gradient_accumulation_steps": 4}},
    ),
    "llama-2-70b LoRA, 1 x 512, bf16-true": (
        60.0, "llama",
        {"workload": "causal-lm", "model": {"name": "llama-2-70b"}, "precision": "bf16-true",
         "adapter": {"kind": "lora", "rank": 8, "targets": ["q_proj", "v_proj"]},
         "batch": {"micro_batch_size": 1, "sequence_length": 512}},
    ),
}  # fmt: skip
MEMORY_GIB = 2.0
REPEATS = 3
CACHED_SECONDS, COMPARED_SECONDS, WORKED_OUT_SECONDS = 0.6, 3.0, 2.0
NEARBY = """
import sys
from forerun.api import find_device, resolve, trace_sizes_nearby
if not trace_sizes_nearby(resolve(sys.argv[1]), find_device("a100-40gb")):
    raise SystemExit("no sizes are worked out")
"""
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
} | {"HF_HUB_OFFLINE": "1"}  # fmt: skip
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
import forerun
target = json.loads(sys.argv[1])
def forecast(more):
    batch = target["batch"] | {"micro_batch_size": target["batch"]["micro_batch_size"] + more}
    settings = {"name": "cost", "data": {"examples": 1000}, **target, "batch": batch}
    return forerun.forecast(settings, gpu="a100-80gb").memory.peak_allocated_bytes
allocated = forecast(0)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
start = time.perf_counter()
forecast(1)
again = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "again": again, "peak_gib": peak, "allocated_gib": allocated / 1024**3}))
"""
IMPORTS = "import torch, transformers.models.{0}.modeling_{0}"


def timed(*arguments: str) -> tuple[float, str]:
    """Seconds of a Python process without the interpreter's own start, and what it printed."""
    environment = {**ENVIRONMENT, "FORERUN_TRACES": "off"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    begun = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return time.perf_counter() - begun - (begun - start), result.stdout


def measure(target: dict, family: str) -> dict:
    """One forecast in a fresh process, and one process that only imports."""
    imports, _ = timed(IMPORTS.format(family))
    process, printed = timed(CHILD, json.dumps(target))
    return {**json.loads(printed.splitlines()[-1]), "imports": imports, "process": process}


def kept(target: dict, folder: Path) -> dict:
    """Seconds of command lines that find what an earlier one has kept."""
    file = folder / "settings.json"
    file.write_text(json.dumps({"name": "cost", "data": {"examples": 1000}, **target}))
    ledger = f"sqlite:///{folder / 'ledger.sqlite'}"
    environment = {**ENVIRONMENT, "FORERUN_TRACES": str(folder), "FORERUN_LEDGER": ledger}

    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        if subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, env=environment).returncode not in (
            0,
            3,
        ):
            raise SystemExit(f"{' '.join(arguments)} failed")
        return time.perf_counter() - start

    def command(*arguments: str) -> float:
        return seconds("-m", "forerun", *arguments, "--json")

    command("forecast", str(file), "--gpu", "a100-80gb")
    cached = sorted(command("forecast", str(file), "--gpu", "a100-40gb") for _ in range(REPEATS))
    nearby = seconds("-c", NEARBY, str(file))
    size = f"batch.micro_batch_size={target['batch']['micro_batch_size'] + 3}"
    other = sorted(command("forecast", str(file), "--gpu", "a100-40gb", "--set", size) for _ in range(REPEATS))
    compared = sorted(command("compare", str(file)) for _ in range(REPEATS + 1))
    return {
        "cached": cached[REPEATS // 2], "interpolated": other[REPEATS // 2], "nearby": nearby,
        "comparison": compared[REPEATS // 2], "first_comparison": compared[-1],
    }  # fmt: skip


def main() -> None:
    """Print the table and one JSON line; exit 1 when a goal is missed."""
    rows = []
    print(
        f"{'target':58} {'seconds':>8} {'goal':>5} {'imports':>8} {'again':>6} {'process':>8} {'peak GiB':>9} "
        f"{'cached':>7} {'interp.':>7} {'nearby':>7} {'comparison':>10}"
    )
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    for name, (goal, family, target) in TARGETS.items():
        if word not in name:
            continue
        runs = sorted((measure(target, family) for _ in range(REPEATS)), key=lambda run: run["seconds"])
        imports = sorted(run["imports"] for run in runs)[REPEATS // 2]
        row = {"target": name, "goal_seconds": goal, **runs[REPEATS // 2], "imports": imports}
        with tempfile.TemporaryDirectory() as folder:
            row |= kept(target, Path(folder))
        rows.append(row)
        print(
            f"{name:58} {row['seconds']:8.2f} {goal:5.0f} {imports:8.2f} {row['again']:6.2f} {row['process']:8.2f} "
            f"{row['peak_gib']:9.2f} {row['cached']:7.2f} {row['interpolated']:7.2f} {row['nearby']:7.1f} "
            f"{row['comparison']:10.2f}"
        )
    missed = [
        r["target"] for r in rows
        if r["seconds"] > r["goal_seconds"] or r["peak_gib"] > MEMORY_GIB
        or r["cached"] > CACHED_SECONDS or r["comparison"] > COMPARED_SECONDS or r["interpolated"] > WORKED_OUT_SECONDS
    ]  # fmt: skip
    load = os.getloadavg()[0]
    print(json.dumps({"benchmark": "forecast_cost", "version": 6, "rows": rows, "missed": missed, "load": load}))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
