"""A plan over numbers of GPUs for the terminal: the front, why other layouts lost, and what was never traced."""

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forerun.plan.cluster_outcome import ClusterPlan, ClusterRow, LostLayout
from forerun.report.plan import verdict_line
from forerun.report.terminal import BAD, FAINT, GOOD
from forerun.units import GIB, format_percent, format_seconds

WIDTH = 118
MOST_LINES = 8
"""Lost layouts of one number of GPUs that are named; JSON has all."""
CAUSES = {
    "memory": "memory", "batch": "too small a batch for each rank",
    "heads": "heads or channels not divisible, or too few blocks", "refused": "cannot be built",
    "communication": "exposed communication", "bubble": "stages wait for each other", "operators": "slower operators",
    "not-traced": "a bound showed that they cannot win",
}  # fmt: skip


def cluster_plan_view(document: ClusterPlan) -> RenderableType:
    """The plan from its verdict down to what was pruned."""
    plan = document.plan
    parts: list[RenderableType] = [verdict_line(plan)]
    if plan.changes:
        parts += [Text("Settings", style="bold"), *(Text(f"  {change.description}") for change in plan.changes)]
    parts += [Text(""), _front(document)]
    parts += [Padding(Text(f"· {reason.said}"), (0, 0, 0, 2)) for reason in plan.reasons]
    parts += [Text(f"  {row.gpus:,} GPUs: {row.why_not}", style=FAINT) for row in document.rows if not row.fits]
    parts += _lost(document)
    parts += [Text(f"! {warning}", style="yellow") for warning in plan.warnings]
    parts.append(_effort(document))
    where = f" on {document.gpus} x {plan.gpu}" if document.gpus else ""
    return Panel(Group(*parts), title=f"Plan of {plan.name}{where}", title_align="left", expand=False, width=WIDTH)


def _front(document: ClusterPlan) -> Table:
    table = Table(title="Time and cost by number of GPUs (● no other is faster and cheaper)", title_justify="left",
                  box=box.SIMPLE_HEAD, pad_edge=False, padding=0)  # fmt: skip
    names = ["", "gpus", "shard", "rep", "tp", "batch", "recompute", "GiB", "step", "waits", "run", "cost"]
    ways = {"context": "cp", "pipeline": "pp"}  # seldom, and 80 columns are few
    ways = {way: name for way, name in ways.items() if any(row.parallel.get(way, 1) > 1 for row in document.rows)}
    names[5:5] = ways.values()
    for name in names:
        side = "left" if name in ("", "recompute") else "right"
        table.add_column(name, justify=side, no_wrap=True, min_width=9 if name == "recompute" else 1 if not name else 4)
    for row in document.rows:
        if not row.fits:
            table.add_row("", f"{row.gpus:,}", *[""] * (4 + len(ways)), Text("nothing fits", style=BAD))
            continue
        is_plan = row.gpus == document.gpus
        cells = _cells(row, is_plan)
        cells[5:5] = [str(row.parallel.get(way, 1)) for way in ways]
        table.add_row(*cells, style="bold" if is_plan else "" if row.keeps_limits else FAINT)
    return table


def _cells(row: ClusterRow, is_plan: bool) -> list[str | Text]:
    parallel = row.parallel
    return [
        Text("▶" if is_plan else "●" if row.is_on_front else "", style=GOOD),
        f"{row.gpus:,}",
        str(parallel.get("shard", "–")),
        str(parallel.get("data", parallel.get("replicate", 1))),
        str(parallel.get("tensor", 1)),
        f"{row.micro_batch_size}×{row.gradient_accumulation_steps}",
        row.activation_checkpointing or "",
        f"{(row.device_bytes or 0.0) / GIB:.1f}",
        format_seconds(row.step_seconds or 0.0),
        format_percent(row.communication_fraction or 0.0),
        "endless" if row.run_seconds is None else format_seconds(row.run_seconds),
        "–" if row.cost is None else f"${row.cost:,.0f}",
    ]


def _lost(document: ClusterPlan) -> list[RenderableType]:
    """Why other layouts lost, for the number of GPUs of the plan; of the others only how many for each cause."""
    own = [one for one in document.lost if one.gpus == document.gpus]
    lines: list[RenderableType] = []
    if own:
        lines.append(Text(f"Other layouts of {document.gpus} GPUs", style="bold"))
        lines += [Padding(Text(f"· {one.layout}: {one.text}"), (0, 0, 0, 2)) for one in own[:MOST_LINES]]
        if len(own) > MOST_LINES:
            lines.append(Padding(Text(f"· and {len(own) - MOST_LINES} more: --json", style=FAINT), (0, 0, 0, 2)))
    others = [one for one in document.lost if one.gpus != document.gpus]
    if others:
        lines.append(Text("Layouts of other numbers that lost, by cause", style="bold"))
        lines.append(Padding(Text(_by_cause(others)), (0, 0, 0, 2)))
    return lines


def _by_cause(lost: Sequence[LostLayout]) -> str:
    counts = Counter(one.cause for one in lost)
    return ", ".join(f"{CAUSES[cause]} {number}" for cause, number in counts.most_common())


def _effort(document: ClusterPlan) -> Text:
    plan, pruned = document.plan, document.pruned
    never = ", ".join(f"{number} by {CAUSES[cause]}" for cause, number in pruned.items())
    text = (
        f"{document.layouts} layouts; never traced: {never or 'none'}. {plan.traces} shallow steps traced in "
        f"{format_seconds(plan.search_seconds)} with {document.workers} process{'es' * (document.workers > 1)}"
    )
    return Text(text, style=FAINT)
