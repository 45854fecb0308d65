"""The page of published clusters: what was asked, and how far forecasts and calculators are off, as Markdown.

Written by `python -m benchmarks.clusters … --page docs/clusters-measured.md`, never by hand.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.clusters.table import Comparison, groups_of, kind_of, scale_of, source_of, summary

HEAD = """# Published runs on clusters, beside forecasts

Written by `python -m benchmarks.clusters`; do not edit. Each published value of high or medium confidence is asked of
Forerun, or counted below with the reason why not. `fit` is the half to develop on, `test` the other one, of which
nobody looks at single rows: groups of fewer than three are shown together, or not at all. Error is (forecast −
published) ÷ published; median and P90 are without its sign, bias is the median with it. Kinds of memory are apart.

| asked by | means |
|---|---|
| settings | a settings file that says what the source did |
| settings, nearest | a settings file that differs in something known, such as float8 products taken as bf16 |
| its program | torchtitan 0.2.2 as it is, under `forerun exec` |
| Megatron-Core | Megatron-Core 0.16.1 in a driver with a test's arguments, under `forerun exec`; memory only |

*constant* is one utilisation of the peak for each GPU (the median of the fit half in bf16), *formulas* the published
ones of calculators, memory and time by parts: `benchmarks/clusters/formulas.py`. A GPU of which the fit half has one
run is exact by *constant* there. Goals: memory 4 % median and 10 % P90; tokens/s 10 % and 25 % up to 512 GPUs, bias
within 5 % at every scale; Kendall's tau 0.8."""
COLUMNS = "rows | median | P90 | bias | constant | formulas |"
RULE = "--:|--:|--:|--:|--:|--:|"


@dataclass
class Coverage:
    """Published values of a source and half: how many there are, were asked, and have an answer."""

    values: int = 0
    asked: int = 0
    answered: int = 0


@dataclass
class Report:
    """What the page shows."""

    rows: list[Comparison] = field(default_factory=list)
    coverage: dict[tuple[str, str], Coverage] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    """Values that were not asked, by reason."""
    failures: Counter[str] = field(default_factory=Counter)
    """Values that were asked and have no answer."""
    orders: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def page_of(report: Report, adapters: Sequence[str] = ()) -> str:
    """The page; `adapters` are those that asked where others did not."""
    only = ["", f"Asked by {', '.join(adapters)} alone."] if adapters else []
    parts = [HEAD, *only, "", *_coverage(report), "", *_reasons("Not asked, by reason", report.reasons)]
    if report.failures:
        parts += ["", *_reasons("Asked without an answer", report.failures)]
    tables = ("source", source_of), ("kind of parallelism", kind_of), ("number of GPUs", scale_of)
    for title, name_of in tables:
        parts += ["", f"## By {title}", "", *_errors(report.rows, title, name_of)]
    return "\n".join([*parts, "", *_orders(report.orders), ""])


def _coverage(report: Report) -> list[str]:
    lines = ["## What was asked", "", "| source | half | values | asked | answered |", "|---|---|--:|--:|--:|"]
    for (source, half), each in sorted(report.coverage.items()):
        lines.append(f"| {source} | {half} | {each.values:,} | {each.asked:,} | {each.answered:,} |")
    total = [sum(getattr(each, name) for each in report.coverage.values()) for name in ("values", "asked", "answered")]
    return [*lines, "| all | | " + " | ".join(f"{number:,}" for number in total) + " |"]


def _reasons(title: str, reasons: Counter[str]) -> list[str]:
    lines = [f"{title}:", "", "| values | reason |", "|--:|---|"]
    return [*lines, *(f"| {count:,} | {reason.replace('|', ' ')} |" for reason, count in reasons.most_common())]


def _errors(rows: Sequence[Comparison], title: str, name_of: Callable[[Comparison], str]) -> list[str]:
    lines = [f"| {title} | half | what | asked by | {COLUMNS}", f"|---|---|---|---|{RULE}"]
    ordered = sorted(groups_of(rows, name_of).items(), key=lambda item: (item[0][3], item[0][1], item[0][2], item[0]))
    for (half, quantity, how, name), listed in ordered:
        lines.append(f"| {name} | {half} | {quantity} | {how} | {_numbers(summary(listed))} |")
    return lines


def _numbers(line: Mapping[str, Any]) -> str:
    theirs = [f"{line[name]['median']:.1%}" if line[name] else "–" for name in ("constant", "formulas")]
    own = [str(line["rows"]), f"{line['median']:.1%}", f"{line['p90']:.1%}", f"{line['bias']:+.1%}".replace("-", "−")]
    return " | ".join(text.replace("%", " %") for text in (*own, *theirs))


def _orders(orders: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = ["## Order of layouts", "", "Kendall's tau of tokens/s, where a source has five layouts of a model:", ""]
    lines += ["| source, model, GPU, half, asked by | layouts | tau | constant | formulas |", "|---|--:|--:|--:|--:|"]
    for name, taus in orders.items():
        said = [f"{taus[each]:.2f}" if each in taus else "–" for each in ("forecast", "constant", "formulas")]
        lines.append(f"| {name} | {taus['layouts']:.0f} | {' | '.join(said).replace('-', '−')} |")
    return lines
