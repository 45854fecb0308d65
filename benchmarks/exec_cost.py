"""Cost of `forerun exec`: seconds and peak resident memory, beside what the script's own imports need.

    python benchmarks/exec_cost.py            prints a table and one JSON line

Goals on 2 CPU cores: LLaMA-7B with the Trainer, full fine-tuning, 60 s and 2 GB; nothing is downloaded. `seconds` is
the whole command, each in a process of its own; `imports` is a bare process with the script's import lines alone, and
`imports GB` its memory; `CPU` is processor time, which other work on the machine does not stretch. One run each: read
differences of less than a fifth as nothing. Method version 1.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SCRIPTS = {
    "LLaMA-7B, Trainer, full fine-tuning": (HERE / "exec_scripts" / "trainer_llama_7b.py", "a100-80gb", 60.0),
    "GPT of 1.3B, plain loop": (HERE / "exec_scripts" / "eager_1b.py", "a100-40gb", 60.0),
}
GOAL_BYTES = 2 * 10**9
RSS_UNIT = 1024
"""Bytes of a unit of `ru_maxrss` on Linux (getrusage(2))."""


@dataclass(frozen=True)
class ProcessCost:
    """Seconds by the clock and of the processor, peak resident bytes, and what a process printed."""

    seconds: float
    processor_seconds: float
    peak_bytes: int
    output: str


def run_process(command: list[str], folder: str) -> ProcessCost:
    """Run a command to its end."""
    start = time.perf_counter()
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=environment)
    assert process.stdout is not None
    output = process.stdout.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed with status {status}")
    seconds = time.perf_counter() - start
    return ProcessCost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * RSS_UNIT, output)


def imports_of(script: Path) -> str:
    """The import lines of a script alone."""
    nodes = [node for node in ast.parse(script.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    # transformers imports a class when it is asked for: the names count as well
    return "\n".join(ast.unparse(node) for node in nodes)


def measure(name: str, script: Path, gpu: str, goal: float) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as folder:
        imports = run_process([sys.executable, "-c", imports_of(script)], folder)
        command = [sys.executable, "-m", "forerun", "exec", "--gpu", gpu, "--json", "--", "python", str(script)]
        cost = run_process(command, folder)
    forecast = json.loads(cost.output)
    return {
        "script": name, "gpu": gpu, "goal_seconds": goal, "seconds": cost.seconds,
        "processor_seconds": cost.processor_seconds, "host_bytes": cost.peak_bytes, "imports_seconds": imports.seconds,
        "imports_bytes": imports.peak_bytes, "parameters": forecast["parameters"]["total"],
        "peak_allocated_bytes": forecast["memory"]["peak_allocated_bytes"],
        "step_seconds": forecast["step"]["seconds"]["expected"], "steps_seen": forecast["script"]["steps_seen"],
    }  # fmt: skip


def main() -> None:
    """Print the table and one JSON line; exit 1 when a goal is missed."""
    print(
        f"{'script':36} {'seconds':>8} {'CPU':>6} {'imports':>8} {'GB':>6} {'imports GB':>11} {'GiB':>6} {'step ms':>8}"
    )
    rows = []
    for name, (script, gpu, goal) in SCRIPTS.items():
        row = measure(name, script, gpu, goal)
        rows.append(row)
        print(
            f"{name:36} {row['seconds']:8.1f} {row['processor_seconds']:6.1f} {row['imports_seconds']:8.1f}"
            f" {row['host_bytes'] / 10**9:6.2f} {row['imports_bytes'] / 10**9:11.2f}"
            f" {row['peak_allocated_bytes'] / 2**30:6.1f} {row['step_seconds'] * 1000:8.1f}"
        )
    missed = [row["script"] for row in rows if row["seconds"] > row["goal_seconds"] or row["host_bytes"] > GOAL_BYTES]
    print(json.dumps({"benchmark": "exec_cost", "version": 1, "rows": rows, "missed": missed}))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
