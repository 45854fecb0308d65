"""Throughputs of one source on many cards, beside forecasts: `python -m benchmarks.many_cards FOLDER [--only TEXT]`.

FOLDER holds `pytorch-train-throughput-fp16.csv`, `-fp32.csv` and `pytorch-train-bs-fp16.csv`, `-fp32.csv` of the folder
`pytorch` of lambdal/deeplearning-benchmark, which states no licence, so no number of it is here. Rows of one GPU are
forecast at their batch by steps written anew (`programs.py`) and compared; `--only` takes programs or cards whose name
has the text (several: commas). Batches fill each card, so what did not fit would be wrong. Prints the error of the
step's time, (forecast - measured) / measured in percent, by program and card, sums, and one JSON line.
"""

import argparse
import csv
import json
import statistics
import sys
from functools import partial
from pathlib import Path

import numpy as np
from benchmarks.many_cards.programs import PROGRAMS, UNITS

from forerun.clock.host_speed import host_shares
from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.any_step import trace_program
from forerun.forecasting.ranges import PROGRAM, group_of, step_range
from forerun.hardware.catalogue import Device, device
from forerun.memory.card import replay_on_card

CARDS = {
    "Quadro RTX 8000": "quadro-rtx-8000", "LambdaCloud V100 16GB": "v100-16gb", "RTX 3090": "rtx-3090",
    "LambdaCloud A10": "a10", "LambdaCloud A100 40GB PCIe": "a100-40gb-pcie", "A100 80GB PCIe": "a100-80gb-pcie",
    "A100 80GB SXM4": "a100-80gb", "RTX 6000 Ada": "rtx-6000-ada", "RTX A6000": "a6000", "RTX 4090": "rtx-4090",
    "H100 80GB PCIe Gen5": "h100-pcie", "H100 80GB SXM5": "h100-80gb",
}  # fmt: skip
"""By the source's names."""
OTHER_NAMES = {"Ada A6000": "RTX 6000 Ada", "Lambda Cloud A100 40GB PCIe": "LambdaCloud A100 40GB PCIe"}
"""Of its table of batches."""
SAME_BATCH = {"LambdaCloud A10": "RTX 3090", "H100 80GB SXM5": "H100 80GB PCIe Gen5"}
"""Cards that the table of batches leaves out, and one of the same memory."""
FILES = {"amp": "fp16", "tf32": "fp32"}
SINGLE_PRECISION = ("waveglow",)
"""Programs that ignored the option for fp16."""


def main() -> None:
    """Forecast, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description="Throughputs of one source on many cards, beside forecasts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="programs or cards whose name has one of these texts")
    options = parser.parse_args()
    texts = [text for text in options.only.split(",") if text]
    errors: dict[tuple[str, str, str], float] = {}
    fits, inside = [], []
    for precision, word in FILES.items():
        rates, batches = (table(options.folder / f"pytorch-train-{kind}-{word}.csv") for kind in ("throughput", "bs"))
        for title, card in CARDS.items():
            batch_row = batches.get(title) or batches[SAME_BATCH[title]]
            for program in PROGRAMS:
                is_named = not texts or any(text in f"{program} {card} {precision}" for text in texts)
                if not is_named or (precision == "amp" and program in SINGLE_PRECISION):
                    continue
                batch = int(float(batch_row[program]))
                measured = batch * UNITS.get(program, 1) / float(rates[title][program])
                seconds, is_fitting, ends = forecast(program, device(card), batch, precision)
                errors[program, precision, card] = seconds / measured - 1
                fits.append(is_fitting)
                inside.append(ends[0] <= measured <= ends[1])
                print(f"{program} {precision} {card}: {seconds / measured - 1:+.1%}", file=sys.stderr, flush=True)
    print_table(errors)
    print(json.dumps({"benchmark": "many-cards", **summed(list(errors.values())), "fits": statistics.fmean(fits),
                      "inside_range": statistics.fmean(inside)}))  # fmt: skip


def table(path: Path) -> dict[str, dict[str, str]]:
    """Rows of a file by card."""
    with open(path, encoding="utf-8") as file:
        rows = {row["name_gpu"]: row for row in csv.DictReader(file)}
    return rows | {own: rows[other] for other, own in OTHER_NAMES.items() if other in rows}


def forecast(program: str, gpu: Device, batch: int, precision: str) -> tuple[float, bool, tuple[float, float]]:
    """Seconds of a step, whether it fits, and its range."""
    trace = trace_program(partial(PROGRAMS[program], batch=batch, precision=precision), gpu, None)
    costs = PriorCosts.of(trace, gpu)
    clock = replay_clock(trace, costs)
    band = step_range(clock.seconds, group_of(trace, costs, PROGRAM), host_shares([(trace, clock)], costs))
    return clock.seconds, replay_on_card(trace, gpu).fits, (band.optimistic, band.conservative)


def summed(errors: list[float]) -> dict[str, float]:
    """Median and P90 without the sign, bias with it."""
    sizes = np.abs(errors)
    return {
        "rows": len(errors), "median": round(float(np.median(sizes)), 4),
        "p90": round(float(np.quantile(sizes, 0.9)), 4), "bias": round(float(np.median(errors)), 4),
    }  # fmt: skip


def print_table(errors: dict[tuple[str, str, str], float]) -> None:
    """Errors by program and card, then sums of each."""
    cards = list(dict.fromkeys(card for _, _, card in errors))
    print(" " * 24 + "".join(f"{card:>16}" for card in cards))
    for program, precision in dict.fromkeys((p, q) for p, q, _ in errors):
        cells = (errors.get((program, precision, card)) for card in cards)
        print(f"{f'{program} {precision}':24}" + "".join(f"{'' if e is None else f'{e:+.0%}':>16}" for e in cells))
    for place in (0, 2):
        for name in dict.fromkeys(key[place] for key in errors):
            sums = summed([error for key, error in errors.items() if key[place] == name])
            shares = ", ".join(f"{word} {sums[word]:+.1%}" for word in ("median", "p90", "bias"))
            print(f"{name:24}{sums['rows']:4} rows: {shares}")


if __name__ == "__main__":
    main()
