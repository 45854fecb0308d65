"""Training steps of image models against timm's published ones: `python -m benchmarks.vision [--fit] [--note TEXT]`.

Traces each row's step on the virtual RTX 3090 (cached, see `tracing.py`), forecasts its time, and for channels-last
rows whether the measured batch fits and the next larger one of the ladder, at which the step failed, does not. Prints
errors by kind of network, with the flat share of peak that convolutions had before beside it; the last line is one
JSON object. Sums go to `board.json`, which the scoreboard reads. Only sums over the test half are printed, and each
scoring of it is appended to `history.csv`; `--fit` scores the fitted half. `--most N` takes the first N rows in an
order fixed by a hash. Takes 10 s a row without traces, 1 s with them.
"""

import argparse
import csv
import datetime
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.scoreboard.boards import ladder
from benchmarks.vision.fit import left_out_ratios
from benchmarks.vision.split import VisionRow, load_rows, subset
from benchmarks.vision.tracing import CUDA, GPU, kind_of, trace_of

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.errors import ForerunError
from forerun.forecasting.ranges import PROGRAM, group_of, shares
from forerun.hardware.catalogue import device
from forerun.memory.card import replay_on_card
from forerun.trace import Call

HISTORY, BOARD = Path(__file__).parent / "history.csv", Path(__file__).parent / "board.json"
FLAT_SHARES = (0.29, 0.2)
"""Share of peak, forward and backward, that convolutions took before they were timed as products."""


class FlatCosts(PriorCosts):
    """Costs before: a flat share of peak for convolutions, one pass over memory for BatchNorm and pooling."""

    def _seconds(self, call: Call) -> float:
        moving = self._moving(call)
        if "convolution" in call.name:
            share = FLAT_SHARES["backward" in call.name]
            return max(moving, call.flops / (self.device.peak(self._dtype(call)) * share))
        if "batch_norm" in call.name or "pool2d" in call.name:
            return moving
        return super()._seconds(call)


@dataclass(frozen=True)
class Score:
    """Forecasts of one row."""

    row: VisionRow
    kind: str
    seconds: float
    before_seconds: float
    group: str
    """Of the time range."""
    fits: bool | None = None
    next_fits: bool | None = None
    """Whether the next larger batch is said to fit; None where it was not tried."""

    @property
    def error(self) -> float:
        """Relative error of the step's seconds."""
        return self.seconds / self.row.step_seconds - 1

    @property
    def before_error(self) -> float:
        """The same before."""
        return self.before_seconds / self.row.step_seconds - 1

    @property
    def in_range(self) -> bool:
        """Whether the measured step lies between the optimistic and the conservative forecast."""
        low, high = shares(self.group)
        return low * self.seconds <= self.row.step_seconds <= high * self.seconds


def score(row: VisionRow) -> Score:
    """Forecast a row."""
    gpu, trace = device(GPU, CUDA), trace_of(row, row.micro_batch_size)
    costs, before = PriorCosts(gpu), FlatCosts(gpu)
    seconds, before_seconds = (replay_clock(trace, c).seconds for c in (costs, before))
    fits = next_fits = None
    if row.layout == "nhwc" and row.next_batch_size is not None:
        fits = replay_on_card(trace, gpu).fits
        next_fits = replay_on_card(trace_of(row, row.next_batch_size), gpu).fits
    group = group_of(trace, costs, PROGRAM)
    return Score(row, kind_of(trace), seconds, before_seconds, group, fits, next_fits)


def summary(scores: list[Score]) -> dict[str, float]:
    """Errors of some rows, in aggregate."""
    errors, before = (np.abs([getattr(s, name) for s in scores]) for name in ("error", "before_error"))
    return {
        "rows": len(scores),
        "before_median": round(float(np.median(before)), 3),
        "before_p90": round(float(np.quantile(before, 0.9)), 3),
        "median": round(float(np.median(errors)), 3),
        "p90": round(float(np.quantile(errors, 0.9)), 3),
        "bias": round(float(np.median([s.error for s in scores])), 3),
        "within_20_percent": round(float((errors <= 0.2).mean()), 3),
        "in_range": round(float(np.mean([s.in_range for s in scores])), 3),
    }


def rungs(scores: list[Score]) -> dict[str, float]:
    """Whether measured batches are rightly said to fit, and the next larger ones, which failed, not to."""
    asked = [s for s in scores if s.fits is not None]
    both_right = [bool(s.fits) and not s.next_fits for s in asked]
    answers = [(True, bool(s.fits)) for s in asked] + [(False, bool(s.next_fits)) for s in asked]
    return {"ladders": len(asked), "ladders_right": round(float(np.mean(both_right)), 4), **ladder(answers)}


def main() -> None:
    """Score one half, print the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vision")
    parser.add_argument("--fit", action="store_true", help="score the fitted half, which tunes the model")
    parser.add_argument("--most", type=int, default=120, help="rows at most, by a fixed order")
    parser.add_argument("--note", default="", help="what changed since the last scoring")
    options = parser.parse_args()
    rows = sorted((r for r in subset(load_rows()) if r.is_test != options.fit), key=_order)[: options.most]
    scores = scored(rows, score)
    kinds = {
        kind: [s for s in scores if s.kind == kind] for kind in ("convolutions", "depthwise", "transformer", "mixed")
    }
    kinds |= {layout: [s for s in scores if s.row.layout == layout] for layout in ("nchw", "nhwc")} | {"all": scores}
    print(f"{'':14} rows   before (median, P90)   now (median, P90)    bias  within 20 %  in range")
    for kind, some in kinds.items():
        if some:
            n = summary(some)
            print(f"{kind:14} {n['rows']:4} {n['before_median']:12.1%} {n['before_p90']:9.1%} {n['median']:11.1%} "
                  f"{n['p90']:7.1%} {n['bias']:8.1%} {n['within_20_percent']:10.0%} {n['in_range']:10.0%}")  # fmt: skip
    fits = rungs(scores)
    print(
        f"{fits['ladders']} ladders, {fits['ladders_right']:.1%} right: {fits['ran_right']} of {fits['ran']} measured "
        f"batches are said to fit, {fits['failed_right']} of {fits['failed']} that failed are said not to"
    )
    result = {**summary(scores), **fits, "kinds": {kind: summary(some) for kind, some in kinds.items() if some}}
    if options.fit:
        ratios = left_out_ratios([s.row for s in scores])
        result["measured_over_forecast"] = sorted(round(ratio, 4) for ratio in ratios)
    else:
        note(summary(scores) | {"ladders": fits["ladders"], "fits_right": fits["recall"],
             "fails_right": fits["failed_right"] / fits["failed"], "right": fits["right"]}, options.note)  # fmt: skip
    board = json.loads(BOARD.read_text(encoding="utf-8")) if BOARD.exists() else {}
    board["fit" if options.fit else "test"] = result
    BOARD.write_text(json.dumps(board, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"half": "fit" if options.fit else "test", **result}))


def scored(rows: list[VisionRow], forecast: Callable[[VisionRow], Score]) -> list[Score]:
    """Scores of the rows that can be traced; the others are counted on stderr."""
    scores = []
    for row in rows:
        try:
            scores.append(forecast(row))
        except (ForerunError, ZeroDivisionError) as error:  # nest: timm computes sizes with tensors while it builds it
            print(f"not forecast: {row.id}: {error}", file=sys.stderr)
    return scores


def note(results: dict[str, float], text: str) -> None:
    """Append a scoring of the test half to the history."""
    is_new = not HISTORY.exists()
    with HISTORY.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(["date", *results, "note"])
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
        writer.writerow([now, *results.values(), text])


def _order(row: VisionRow) -> str:
    return hashlib.sha256(row.id.encode()).hexdigest()


if __name__ == "__main__":
    main()
