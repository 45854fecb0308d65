"""Fit the widths of time ranges: `python -m benchmarks.ranges [--data FOLDER]`.

For each group of steps (`forecasting/ranges.py`) the 10 and 90 % quantiles of measured over forecast, from what the
scoreboard and `benchmarks.vision` forecast last. Rows of a family miss alike, so families count, not rows: hierarchical
conformal prediction (Lee, Barber and Willett 2023, arXiv:2306.06342) gives each of K families the weight 1 / (K + 1),
shared by its rows, and the rest to a family that nobody saw, beyond any ratio. Where that is more than may lie beyond
an end, the end is the extreme. Only families of the fitted half count. A group with fewer than `FEW` of them is not
known better than a settings file: it takes that range where it is wider. Writes `time_ranges.json`; no row is copied.
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

import forerun.forecasting
from forerun.forecasting.ranges import COMPILED, IMAGES, OTHER_GPU, PROGRAM, SETTINGS, SEVERAL

TARGET = Path(forerun.forecasting.__file__).with_name("time_ranges.json")
VISION = Path(__file__).parent / "vision" / "board.json"
OUTSIDE_SHARE = 0.1
"""Of measured steps that may lie beyond either end."""
FEW = 7
"""Families below which even the extremes hold one more family with less than 72 %, the goal's lower end:
(K - 1) / (K + 1)."""
NEAREST = (0.98, 1.02)
"""No range is narrower: two runs of one step differ by as much."""
ROUNDING = 1e-9


def conformal(families: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Ends of the range in which a ratio of one more family lies with at least 80 %; of fewer than nine, extremes."""
    weighted = sorted((ratio, 1 / len(family)) for family in families for ratio in family)
    inside = (1 - OUTSIDE_SHARE) * (len(families) + 1) - ROUNDING
    return _reached(weighted[::-1], inside), _reached(weighted, inside)


def _reached(weighted: Sequence[tuple[float, float]], inside: float) -> float:
    """The ratio at which the weights up to it come to `inside`; the last one where they never do."""
    total = 0.0
    for ratio, weight in weighted:
        total += weight
        if total >= inside:
            return ratio
    return weighted[-1][0]


def fitted(pairs: list[Pair], vision: Sequence[float]) -> dict[str, dict[str, object]]:
    """Ranges by group, with the rows and families that they rest on."""
    by_group = {
        group: ratios(pairs, group, judging=False) for group in (SETTINGS, PROGRAM, OTHER_GPU, COMPILED, SEVERAL)
    }
    by_group[IMAGES] = ratios(pairs, IMAGES, judging=False) | {f"timm/{k}": [v] for k, v in enumerate(vision)}
    settings = conformal(list(by_group[SETTINGS].values()))
    groups: dict[str, dict[str, object]] = {}
    for group, families in by_group.items():
        low, high = conformal(list(families.values())) if families else settings
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
    table["groups"] |= fitted(pairs, np.asarray(vision).tolist())
    TARGET.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    for group, entry in table["groups"].items():
        print(f"{group:<14} {entry}")


if __name__ == "__main__":
    main()
