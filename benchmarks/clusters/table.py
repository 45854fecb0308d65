"""Errors of forecasts and of calculators on the same runs: by source, kind of parallelism, memory kind and scale."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.clusters.rows import ClusterRun, scale_names
from scipy.stats import kendalltau

GOALS = {"memory": (0.04, 0.10), "tokens": (0.10, 0.25)}
"""Median and ninth decile that the issue asks for."""
LEAST_LAYOUTS = 5
"""Layouts of one source, model and GPU from which their order is judged."""
ALL = "all"


@dataclass(frozen=True)
class Comparison:
    """One published value beside what was said of it."""

    run: ClusterRun
    id: str
    quantity: str
    """`tokens`, or the kind of memory."""
    measured: float
    forecast: float
    adapter: str
    is_exact: bool
    """Whether what was asked differs from the run in nothing that is known."""
    constant: float | None = None
    formulas: float | None = None

    @property
    def error(self) -> float:
        """(forecast - measured) / measured."""
        return self.forecast / self.measured - 1

    def error_of(self, other: float | None) -> float | None:
        """The same of a calculator."""
        return None if other is None else other / self.measured - 1


def summary(rows: Sequence[Comparison]) -> dict[str, Any]:
    """Number, median and ninth decile without sign, bias, and the worst row, with calculators beside."""
    errors = [row.error for row in rows]
    worst = max(rows, key=lambda row: abs(row.error))
    line: dict[str, Any] = {"rows": len(rows), **_quantiles(errors), "worst": f"{worst.id} {worst.error:+.1%}"}
    for name in ("constant", "formulas"):
        theirs = [error for row in rows if (error := row.error_of(getattr(row, name))) is not None]
        line[name] = {"rows": len(theirs), **_quantiles(theirs)} if theirs else None
    return line


def _quantiles(errors: Sequence[float]) -> dict[str, float]:
    sizes = np.abs(errors)
    return {
        "median": round(float(np.median(sizes)), 4), "p90": round(float(np.quantile(sizes, 0.9)), 4),
        "bias": round(statistics.median(errors), 4),
    }  # fmt: skip


def groups_of(rows: Sequence[Comparison]) -> dict[tuple[str, ...], list[Comparison]]:
    """Rows by quantity, adapter, exactness, source and parallelism; `all` over sources, over kinds, and by scale.

    Kinds of memory, adapters, and rows that differ from the source in something are never together.
    """
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    scales = scale_names()
    for row in rows:
        head = (row.quantity, row.adapter, "exact" if row.is_exact else "nearest")
        family, kind = row.run["family"], row.run.parallelism
        for tail in ((family, kind), (family, ALL), (ALL, kind), (ALL, ALL), (f"{scales[row.run.scale]} GPUs", ALL)):
            groups.setdefault((*head, *tail), []).append(row)
    return groups


def orders(rows: Sequence[Comparison]) -> dict[str, float]:
    """Kendall's tau-b of tokens per second for each source, model and GPU with enough layouts."""
    lists: dict[str, list[Comparison]] = {}
    for row in rows:
        if row.quantity == "tokens":
            lists.setdefault(f"{row.adapter} {row.run['family']} {row.run['model']} {row.run['gpu']}", []).append(row)
    result = {}
    for name, listed in lists.items():
        if len({row.run["config_json"] + str(dict(row.run.columns)) for row in listed}) >= LEAST_LAYOUTS:
            tau = kendalltau([row.measured for row in listed], [row.forecast for row in listed]).statistic
            result[name] = round(float(tau), 3)
    return result


def text_table(rows: Sequence[Comparison]) -> list[str]:
    """Lines for a terminal."""
    head = f"{'quantity, adapter':34}{'source':34}{'kind':10}{'rows':>5}{'median':>8}{'P90':>8}{'bias':>8}"
    lines = [head + f"{'constant':>10}{'formulas':>10}  worst"]
    for key, listed in sorted(groups_of(rows).items()):
        line = summary(listed)
        theirs = [f"{line[name]['median']:10.1%}" if line[name] else f"{'-':>10}" for name in ("constant", "formulas")]
        what = f"{short(key[0])}, {key[1]} {key[2]}"
        lines.append(
            f"{what[:33]:34}{key[3][:33]:34}{key[4]:10}{line['rows']:5}{line['median']:8.1%}{line['p90']:8.1%}"
            f"{line['bias']:+8.1%}{''.join(theirs)}  {line['worst']}"
        )
    return lines


def short(quantity: str) -> str:
    """A kind of memory in one or two words."""
    words = {"torch max_memory": "peak", "torch memory_allocated": "between steps", "torch peak": "reserved"}
    return next((text for start, text in words.items() if quantity.startswith(start)), quantity.split(";")[0][:14])


def refusals_table(reasons: Counter[str]) -> list[str]:
    """Published values that were not asked, by reason."""
    return [f"{count:6} {reason}" for reason, count in reasons.most_common()]
