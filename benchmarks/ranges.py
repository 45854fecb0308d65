"""Fit the widths of time ranges: `python -m benchmarks.ranges [--data FOLDER]`.

For each group of steps (`forecasting/ranges.py`) the 10 and 90 % quantiles of measured over forecast, from what the
scoreboard and `benchmarks.vision` forecast last. Rows of a family miss alike, so families count, not rows: hierarchical
conformal prediction (Lee, Barber and Willett 2023, arXiv:2306.06342) gives each of K families the weight 1 / (K + 1),
shared by its rows, and the rest to a family that nobody saw, beyond any ratio. Of fewer than `MANY` families its ends
are the extremes or close to them, which hold too much; then the ends are those of a random-effects model of logarithms
with Student's quantile (Higgins, Thompson and Spiegelhalter 2009, doi:10.1111/j.1467-985X.2008.00552.x). Each range is
printed with how often it held a family left out. Only families of the fitted half count. A group with fewer than `FEW`
of them is not known better than a settings file: it takes that range where it is wider. Writes `time_ranges.json`; no
row is copied.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.scoreboard.boards import Pair, ratios
from benchmarks.scoreboard.collect import outside_rows
from benchmarks.scoreboard.results import stored
from benchmarks.scoreboard.rows import ADDED, load_rows
from scipy.stats import t as student

import forerun.forecasting
from forerun.forecasting.ranges import COMPILED, IMAGES, OTHER_GPU, PROGRAM, SETTINGS, SEVERAL

TARGET = Path(forerun.forecasting.__file__).with_name("time_ranges.json")
VISION = Path(__file__).parent / "vision" / "board.json"
OUTSIDE_SHARE = 0.1
"""Of measured steps that may lie beyond either end."""
FEW = 7
"""Families below which even the extremes hold one more family with less than 72 %, the goal's lower end:
(K - 1) / (K + 1)."""
MANY = 19
"""Families from which on a tail of 10 % has one family beyond the conformal end, and one more to spare."""
NEAREST = (0.98, 1.02)
"""No range is narrower: two runs of one step differ by as much."""
ROUNDING = 1e-9


def conformal(families: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of the range in which a ratio of one more family lies with at least 80 %; of fewer than nine, extremes."""
    weighted = sorted((ratio, 1 / len(family)) for family in families for ratio in family)
    inside = (1 - OUTSIDE_SHARE) * (len(families) + 1) - ROUNDING
    return _reached(weighted[::-1], inside), _reached(weighted, inside)


def predicted(families: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of the range in which a row of one more family lies with 80 %, if logarithms of ratios are normal.

    Families differ by their means, rows of a family around it; the families' means count alike.
    """
    logarithms = [np.log(family) for family in families]
    means = np.array([each.mean() for each in logarithms])
    squares = sum(((each - each.mean()) ** 2).sum() for each in logarithms)
    free = sum(len(each) - 1 for each in logarithms)
    of_rows = squares / free if free else 0.0
    of_one_row = means.var(ddof=1) + of_rows * (1 - np.mean([1 / len(each) for each in logarithms]))
    width = student.ppf(1 - OUTSIDE_SHARE, len(means) - 1) * np.sqrt(of_one_row * (1 + 1 / len(means)))
    return float(np.exp(means.mean() - width)), float(np.exp(means.mean() + width))


def ends(families: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of the range, by what the number of families allows; of fewer than three, extremes."""
    return conformal(families) if len(families) >= MANY or len(families) < 3 else predicted(families)


def held(families: Sequence[Sequence[float]]) -> float | None:
    """Share of a family's rows inside the range of all others, in the mean over families; None of fewer than four."""
    if len(families) < 4:
        return None
    shares = []
    for number, family in enumerate(families):
        low, high = ends([*families[:number], *families[number + 1 :]])
        shares.append(np.mean([low <= ratio <= high for ratio in family]))
    return float(np.mean(shares))


def _reached(weighted: Sequence[tuple[float, float]], inside: float) -> float:
    """The ratio at which the weights up to it come to `inside`; the last one where they never do."""
    total = 0.0
    for ratio, weight in weighted:
        total += weight
        if total >= inside:
            return ratio
    return weighted[-1][0]


def families_of(pairs: list[Pair], vision: Sequence[float]) -> dict[str, dict[str, list[float]]]:
    """Measured over forecast of each group, by family of the fitted half."""
    by_group = {
        group: ratios(pairs, group, judging=False) for group in (SETTINGS, PROGRAM, OTHER_GPU, COMPILED, SEVERAL)
    }
    return by_group | {IMAGES: ratios(pairs, IMAGES, judging=False) | {f"timm/{k}": [v] for k, v in enumerate(vision)}}


def fitted(pairs: list[Pair], vision: Sequence[float]) -> dict[str, dict[str, object]]:
    """Ranges by group, with the rows and families that they rest on."""
    by_group = families_of(pairs, vision)
    settings = ends(list(by_group[SETTINGS].values()))
    groups: dict[str, dict[str, object]] = {}
    for group, families in by_group.items():
        low, high = ends(list(families.values())) if families else settings
        if len(families) < FEW:
            low, high = min(low, settings[0]), max(high, settings[1])
        low, high = min(low, NEAREST[0]), max(high, NEAREST[1])
        rows = sum(map(len, families.values()))
        groups[group] = {"shares": [round(low, 3), round(high, 3)], "rows": rows, "families": len(families)}
    return groups


def main() -> None:
    """Fit, print, write."""
    rows, forecasts = load_rows() + load_rows(ADDED / "rows"), stored()
    if "--data" in sys.argv:
        rows += outside_rows(Path(sys.argv[sys.argv.index("--data") + 1]))
    pairs = [(row, forecasts[row.id]) for row in rows if "error" not in forecasts.get(row.id, {"error": ""})]
    vision = json.loads(VISION.read_text(encoding="utf-8"))["fit"]["measured_over_forecast"] if VISION.exists() else []
    table = json.loads(TARGET.read_text(encoding="utf-8"))
    measured = np.asarray(vision).tolist()
    table["groups"] |= fitted(pairs, measured)
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for group, entry in table["groups"].items():
        print(f"{group:<14} {entry}")
    for group, families in families_of(pairs, measured).items():
        share = held(list(families.values()))
        if share is not None:
            print(f"{group:<14} holds {share:.0%} of a family left out, {len(families)} families")


if __name__ == "__main__":
    main()
