"""Fit the widths of time ranges: `python -m benchmarks.ranges [--data FOLDER]`.

For each group of steps (`forecasting/ranges.py`) the 10 and 90 % quantiles of measured over forecast, from what the
scoreboard and `benchmarks.vision` forecast last, with the correction for few rows of split conformal prediction (Lei et
al. 2018, doi:10.1080/01621459.2017.1307116, section 2.2): of n sorted ratios the k-th from either end, k = 0.1 (n + 1)
rounded down. Only families of the fitted half count. A group with fewer than `FEW` rows is not known better than a
settings file: it takes the wider of that range and its own extremes. Writes `time_ranges.json`; no row is copied.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from benchmarks.scoreboard.boards import Pair, ratios
from benchmarks.scoreboard.collect import outside_rows
from benchmarks.scoreboard.results import stored
from benchmarks.scoreboard.rows import load_rows

import forerun.forecasting
from forerun.forecasting.ranges import COMPILED, IMAGES, OTHER_GPU, PROGRAM, SETTINGS, SEVERAL

TARGET = Path(forerun.forecasting.__file__).with_name("time_ranges.json")
VISION = Path(__file__).parent / "vision" / "board.json"
OUTSIDE_SHARE = 0.1
"""Of measured steps that may lie beyond either end."""
FEW = 9
"""Rows below which even the extremes of a group contain the next ratio with less than 80 %: (n - 1) / (n + 1)."""
NEAREST = (0.98, 1.02)
"""No range is narrower: two runs of one step differ by as much."""


def conformal(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the interval in which the next ratio lies with at least 80 %, where there are nine ratios or more."""
    ordered, number = sorted(values), len(values)
    k = max(1, int(OUTSIDE_SHARE * (number + 1)))
    return ordered[k - 1], ordered[number - k]


def fitted(pairs: list[Pair], vision: Sequence[float]) -> dict[str, dict[str, object]]:
    """Ranges by group, with the rows that they rest on."""
    by_group = {
        group: ratios(pairs, group, judging=False) for group in (PROGRAM, SETTINGS, OTHER_GPU, COMPILED, SEVERAL)
    }
    by_group[IMAGES] = [*ratios(pairs, IMAGES, judging=False), *vision]
    settings = conformal(by_group[SETTINGS])
    groups: dict[str, dict[str, object]] = {}
    for group, values in by_group.items():
        low, high = conformal(values) if values else settings
        if len(values) < FEW:
            low, high = min(low, settings[0]), max(high, settings[1])
        low, high = min(low, NEAREST[0]), max(high, NEAREST[1])
        groups[group] = {"shares": [round(low, 3), round(high, 3)], "rows": len(values)}
    return groups


def main() -> None:
    """Fit, print, write."""
    rows, forecasts = load_rows(), stored()
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
