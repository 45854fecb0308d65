"""Forecasts beside what `measure.py` and `measure_programs.py` measured.

    python -m benchmarks.truth.compare [--programs] [--blind] [--steps] [--only TEXT] [--to FILE]

Prints a table of errors, (forecast - measured) / measured in percent, and one JSON line. A step is forecast from
settings that say what `measure.py` does; a program is run by `forerun exec`, unmodified (timm, diffusers, TRL and the
other libraries of the scripts extra must be here; programs that do not start are listed). Nobody had looked at a
program of either set when it was measured; corrections were made after the first one, and are not to be after --blind.
`FORERUN_LEDGER` with a calibration of the card shows what that changes.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.truth.measure import MODELS

HERE = Path(__file__).parent
STEPS, PROGRAMS, BLIND = (HERE / f"{kind}h100-80gb.csv" for kind in ("", "programs-", "blind-"))
GPU = "h100-80gb"
BASES = {"gpt2": "gpt2", "bert": "bert-base-uncased", "llama": "tiny-llama"}
FIGURES = ("allocated", "reserved", "device", "step")


def rows_of(path: Path) -> list[dict[str, str]]:
    """Measured rows, one for each thing that was measured: the first."""
    with open(path, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if float(row["step_seconds"] or 0) and row.get("kind") != "product"]
    return list({_name(row): row for row in reversed(rows)}.values())[::-1]


def _name(row: dict[str, str]) -> str:
    if "program" in row:
        return row["program"]
    recomputed = ", recomputed" if row["checkpointing"] == "True" else ""
    eager = ", eager" if row["attention"] == "eager" else ""
    return f"{row['model']} {row['batch']} x {row['length']} {row['precision']}{recomputed}{eager}"


def settings_of(row: dict[str, str]) -> dict[str, Any]:
    """What `measure.py` does, as settings."""
    kind, config = MODELS[row["model"]]
    attention = "eager" if row["attention"] == "eager" else "auto"
    recomputed = "blocks" if row["checkpointing"] == "True" else "none"
    return {
        "name": "truth", "workload": "masked-lm" if kind == "bert" else "causal-lm",
        "model": {"name": BASES[kind], "config": config, "attention": attention},
        "precision": row["precision"], "activation_checkpointing": recomputed,
        "batch": {"micro_batch_size": int(row["batch"]), "sequence_length": int(row["length"])},
        "optimizer": {"name": "adamw", "max_gradient_norm": 1.0}, "schedule": {"max_steps": 100},
    }  # fmt: skip


def forecast_of(row: dict[str, str]) -> dict[str, Any]:
    """The forecast's document."""
    if "program" not in row:
        import forerun

        ledger = os.environ.get("FORERUN_LEDGER")
        return forerun.forecast(settings_of(row), gpu=GPU, ledger=ledger).model_dump(mode="json")
    command = [sys.executable, "-m", "forerun", "exec", "--gpu", GPU, "--json", "--", "python",
               str(HERE / "programs" / f"{row['program']}.py")]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1])
    return json.loads(result.stdout)


def errors_of(row: dict[str, str], forecast: dict[str, Any]) -> dict[str, float]:
    """Relative errors; the device's bytes of a program that gave its memory back before it ended say nothing."""
    memory, seconds = forecast["memory"], forecast["step"]["seconds"]
    pairs = {
        "allocated": (memory["peak_allocated_bytes"], row["allocated_bytes"]),
        "reserved": (memory["peak_reserved_bytes"], row["reserved_bytes"]),
        "device": (memory["device_bytes"]["expected"], row["device_bytes"]),
        "step": (seconds["expected"], row["step_seconds"]),
    }
    if float(row["device_bytes"]) < float(row["reserved_bytes"]):
        del pairs["device"]
    return {name: ours / float(measured) - 1 for name, (ours, measured) in pairs.items()}


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--to", type=Path)
    options = parser.parse_args()
    chosen = {STEPS: options.steps, PROGRAMS: options.programs, BLIND: options.blind}
    rows = [row for path, flag in chosen.items() if flag or not any(chosen.values()) for row in rows_of(path)]
    results, inside, missing = {}, [], []
    print(f"{'':44}" + "".join(f"{figure:>11}" for figure in FIGURES) + f"{'ms':>9}  in range")
    for row in rows:
        if options.only not in _name(row):
            continue
        try:
            forecast = forecast_of(row)
        except Exception as error:
            missing.append(f"{_name(row)}: {error}")
            continue
        errors, seconds = errors_of(row, forecast), forecast["step"]["seconds"]
        is_inside = seconds["optimistic"] <= float(row["step_seconds"]) <= seconds["conservative"]
        inside.append(is_inside)
        results[_name(row)] = errors
        cells = "".join(f"{100 * errors[f]:+10.2f}%" if f in errors else f"{'-':>11}" for f in FIGURES)
        print(
            f"{_name(row):44}{cells}{1000 * float(row['step_seconds']):9.1f}  {'yes' if is_inside else 'no'}",
            flush=True,
        )
    summary = {
        figure: _summary([errors[figure] for errors in results.values() if figure in errors]) for figure in FIGURES
    }
    for line in missing:
        print(f"not forecast: {line}")
    line = json.dumps({
        "benchmark": "truth", "gpu": GPU, "rows": len(results), "not_forecast": len(missing),
        "inside_range": sum(inside) / max(1, len(inside)), "summary": summary, "errors": results,
    })  # fmt: skip
    print(line)
    if options.to:
        options.to.write_text(line + "\n", encoding="utf-8")


def _summary(errors: list[float]) -> dict[str, float]:
    sizes = sorted(map(abs, errors))
    if not sizes:
        return {}
    ninetieth = sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))]
    return {"median": statistics.median(sizes), "p90": ninetieth, "bias": statistics.median(errors)}


if __name__ == "__main__":
    main()
