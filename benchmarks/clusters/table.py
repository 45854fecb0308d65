"""Errors of forecasts and of calculators on the same runs: by source, kind of parallelism, memory kind and scale."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.clusters.rows import ClusterRun, scale_names
from scipy.stats import kendalltau

GOALS = {"memory": (0.04, 0.10), "tokens": (0.10, 0.25)}
"""Median and ninth decile that the issue asks for."""
LEAST_LAYOUTS = 5
"""Layouts of one source, model and GPU from which their order is judged."""
LEAST_ROWS = 3
"""Rows of the test half from which a group is shown: one row alone would be looked at."""
FEW = "fewer than three rows each"
HALVES = {True: "fit", False: "test"}
HOW = {
    ("settings", True): "settings", ("settings", False): "settings, nearest", ("titan", True): "its program",
    ("titan", False): "its program, nearest", ("megatron", True): "Megatron-Core", ("megatron", False): "Megatron-Core",
}  # fmt: skip
"""Adapter and whether what was asked differs in nothing known → words."""
KINDS = {
    "fsdp": "DP or FSDP", "data": "DP or FSDP", "tensor": "with TP", "pipeline": "with PP", "context": "with CP",
    "expert": "with EP",
}  # fmt: skip
"""Kinds of parallelism as the issue divides them; a run counts to the last that it has."""


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

    @property
    def head(self) -> tuple[str, str, str]:
        """Half, quantity and how it was asked: what is never pooled."""
        return HALVES[self.run.is_seen], short(self.quantity), HOW[self.adapter, self.is_exact]


def summary(rows: Sequence[Comparison]) -> dict[str, Any]:
    """Number, median and ninth decile without sign, bias, and the worst row of the fit half, calculators beside."""
    errors = [row.error for row in rows]
    line: dict[str, Any] = {"rows": len(rows), **_quantiles(errors)}
    seen = [row for row in rows if row.run.is_seen]
    if seen:
        worst = max(seen, key=lambda row: abs(row.error))
        line["worst"] = f"{worst.id} {worst.error:+.1%}"
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


def source_of(row: Comparison) -> str:
    """Source of a row."""
    return row.run["family"]


def kind_of(row: Comparison) -> str:
    """Kind of parallelism of a row."""
    return KINDS[row.run.parallelism]


def scale_of(row: Comparison) -> str:
    """Class of size of a row."""
    return f"{scale_names()[row.run.scale]} GPUs"


Groups = dict[tuple[str, ...], list[Comparison]]


def groups_of(rows: Iterable[Comparison], name_of: Callable[[Comparison], str]) -> Groups:
    """Rows by half, quantity, how they were asked, and a name.

    Small groups of the test half are one, which is left out where it is still small.
    """
    groups: Groups = {}
    for row in rows:
        groups.setdefault((*row.head, name_of(row)), []).append(row)
    shown: Groups = {}
    for key, listed in groups.items():
        is_shown = key[0] == HALVES[True] or len(listed) >= LEAST_ROWS
        shown.setdefault(key if is_shown else (*key[:3], FEW), []).extend(listed)
    return {key: listed for key, listed in sorted(shown.items()) if key[3] != FEW or len(listed) >= LEAST_ROWS}


def orders(rows: Iterable[Comparison]) -> dict[str, dict[str, float]]:
    """Kendall's tau-b of tokens per second for each half, source, model and GPU with enough layouts."""
    lists: dict[str, list[Comparison]] = {}
    for row in rows:
        if row.quantity == "tokens":
            half, _, how = row.head
            name = f"{row.run['family']}, {row.run['model']}, {row.run['gpu']}, {half}, {how.removesuffix(', nearest')}"
            lists.setdefault(name, []).append(row)
    result = {}
    for name, listed in sorted(lists.items()):
        layouts = {row.run["config_json"] + str(dict(row.run.columns)) for row in listed}
        if len(layouts) >= LEAST_LAYOUTS:
            measured = [row.measured for row in listed]
            result[name] = {"layouts": len(layouts), "forecast": _tau(measured, [row.forecast for row in listed])}
            for other in ("constant", "formulas"):
                theirs = [getattr(row, other) for row in listed]
                if None not in theirs:
                    result[name][other] = _tau(measured, theirs)
    return result


def _tau(measured: Sequence[float], said: Sequence[float]) -> float:
    """Tau-b; 0 where everything is said to be alike."""
    tau = float(kendalltau(measured, said).statistic)
    return 0.0 if tau != tau else round(tau, 3)


def text_table(rows: Sequence[Comparison]) -> list[str]:
    """Lines for a terminal."""
    head = f"{'half, quantity, asked by':44}{'of':40}{'rows':>5}{'median':>8}{'P90':>8}{'bias':>8}"
    lines = [head + f"{'constant':>10}{'formulas':>10}  worst"]
    for name_of in (source_of, kind_of, scale_of):
        for key, listed in groups_of(rows, name_of).items():
            line = summary(listed)
            theirs = [
                f"{line[name]['median']:10.1%}" if line[name] else f"{'-':>10}" for name in ("constant", "formulas")
            ]
            lines.append(
                f"{', '.join(key[:3]):44}{key[3][:39]:40}{line['rows']:5}{line['median']:8.1%}{line['p90']:8.1%}"
                f"{line['bias']:+8.1%}{''.join(theirs)}  {line.get('worst', '')}"
            )
        lines.append("")
    return lines


def short(quantity: str) -> str:
    """A kind of memory in one or two words."""
    words = {
        "torch max_memory": "peak allocated", "torch memory_allocated": "between steps", "torch peak": "reserved",
        "peak memory (GB": "reserved", "GB as printed; nanotron": "peak allocated", "tokens": "tokens/s",
    }  # fmt: skip
    return next((text for start, text in words.items() if quantity.startswith(start)), quantity.split(";")[0][:14])
