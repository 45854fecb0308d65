"""Ground truth of whole programs on one CUDA GPU: each script of `programs/`, unmodified, in a new process.

    python3 benchmarks/truth/measure_programs.py OUT.csv [NAME ...] [--seconds 300] [--histories FOLDER]

Needs PyTorch and what the scripts import, not this package. The next processes load their libraries while one has the
GPU. A step is what lies between two calls of the optimizer that is called first, in the GPU's own time (events, so
nothing waits for them); the median is taken of those after the third. Memory: the allocator's peaks over the whole
program, and the bytes that the driver counts as used on the card when it ends. With --histories the allocator's history
of each is written too, as gzipped JSON lines (action, address, bytes, stream); keeping it costs host time.
"""

import argparse
import csv
import gzip
import importlib
import json
import multiprocessing
import queue
import runpy
import statistics
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = ("transformers", "peft", "accelerate", "timm", "diffusers", "lightning", "bitsandbytes", "torchao", "trl",
             "datasets", "torch-geometric")  # fmt: skip
FIELDS = ("program", "steps", "allocated_bytes", "reserved_bytes", "device_bytes", "step_seconds", "first_step_seconds",
          "whole_seconds", "gpu", "versions", "error")  # fmt: skip


AHEAD = 3
"""Processes that load libraries while another is measured."""


def measured(name: str, turn: Any, results: Any, history: Path | None) -> None:
    """Run one program in this process when its `turn` is set, and put its row into `results`."""
    importlib.import_module("accelerate")
    importlib.import_module("transformers").Trainer  # noqa: B018 (loads it)
    turn.wait()
    events: list[tuple[int, torch.cuda.Event, float]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append((id(optimizer), event, time.perf_counter()))

    register_optimizer_step_post_hook(note)
    if history is not None:
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=2_000_000)
    sys.argv, error, begin = [str(PROGRAMS / f"{name}.py")], "", time.perf_counter()
    sys.path.insert(0, str(PROGRAMS))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"[:500]
    torch.cuda.synchronize()
    whole = time.perf_counter() - begin
    if history is not None:
        _write_history(history / f"{name}.json.gz")
    free, total = torch.cuda.mem_get_info()
    calls = [(event, host) for owner, event, host in events if owner == events[0][0]]
    spans = [before.elapsed_time(after) / 1000 for (before, _), (after, _) in zip(calls, calls[1:], strict=False)]
    row = {
        "program": name, "steps": len(calls), "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(), "device_bytes": total - free,
        "step_seconds": statistics.median(spans[2:] or spans or [0.0]),
        "first_step_seconds": calls[0][1] - begin if calls else 0.0, "whole_seconds": whole, "error": error,
        "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    results.put(row)


def _write_history(path: Path) -> None:
    """Gzipped JSON lines of device 0."""
    with gzip.open(path, "wt", encoding="ascii") as file:
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            line = [entry["action"], entry.get("addr", 0), entry.get("size", 0), entry.get("stream", 0)]
            file.write(json.dumps(line) + "\n")


def versions() -> str:
    """`name==version` of PyTorch and of the libraries that are here."""
    found = []
    for name in ("torch", *LIBRARIES):
        try:
            found.append(f"{name}=={version(name)}")
        except PackageNotFoundError:
            print(f"{name} is not here", file=sys.stderr)
    return " ".join(found)


def _answer(process: Any, results: Any, until: float) -> dict[str, Any] | None:
    while time.perf_counter() < until:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            if not process.is_alive():
                return None
    return None


def main() -> None:
    """Measure and write, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--histories", type=Path)
    options = parser.parse_args()
    begin, context = time.perf_counter(), multiprocessing.get_context("spawn")
    names = options.names or sorted(path.stem for path in PROGRAMS.glob("*.py"))
    facts, waiting = {"versions": versions()}, []
    with open(options.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for index, name in enumerate(names):
            for after in names[index + len(waiting) : index + AHEAD]:
                turn, results = context.Event(), context.Queue()
                process = context.Process(target=measured, args=(after, turn, results, options.histories), daemon=False)
                process.start()
                waiting.append((process, turn, results))
            process, turn, results = waiting.pop(0)
            left = options.seconds - (time.perf_counter() - begin)
            if left < 10:
                print(f"no time for {name}", file=sys.stderr)
                process.kill()
                continue
            turn.set()
            row = _answer(process, results, time.perf_counter() + min(left, 120))
            row = row or {"program": name, "error": "took too long or died"}
            process.join(5)
            process.kill()
            writer.writerow(row | facts)
            file.flush()
            print(f"{time.perf_counter() - begin:6.1f} s", row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
