"""What is alive at the memory peak, for the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forerun.memory.explanation import Explanation
from forerun.units import format_bytes

PATH_WIDTH, MOST_EXCHANGES = 34, 10


def explanation_tables(explanation: Explanation, device: str) -> RenderableType:
    """Place of the peak, the largest tensors, bytes by module, and the settings that would lower it."""
    place = " · ".join(part for part in (explanation.phase, explanation.module, explanation.operator) if part)
    return Group(
        Text(f"\nPeak on {device}: {place}", style="bold"), _tensors(explanation), _modules(explanation),
        *_exchanges(explanation), _levers(explanation), *_largest(explanation),
    )  # fmt: skip


def _largest(explanation: Explanation) -> list[Text]:
    size = explanation.largest_micro_batch_size
    if size is None:
        return []
    return [Text(f"Largest micro-batch that fits: {size}" if size else "Not even a micro-batch of 1 fits.")]


def _tensors(explanation: Explanation) -> Table:
    table = Table("bytes", "what", "module", "line", title="Largest tensors alive at the peak", title_justify="left")
    for tensor in explanation.largest:
        operator = tensor.operator.removeprefix("aten.").removesuffix(".default")
        what = f"{tensor.category.replace('_', ' ')} {operator}".strip()
        table.add_row(format_bytes(tensor.bytes), what, _tail(tensor.module), tensor.line)
    return table


def _modules(explanation: Explanation) -> Table:
    table = Table("module", "bytes", "of which", title="Alive at the peak by module", title_justify="left")
    for name, parts in explanation.modules.items():
        ordered = sorted(parts.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in ordered)
        table.add_row(_tail(name), format_bytes(sum(parts.values())), listed)
    return table


def _exchanges(explanation: Explanation) -> list[Table]:
    if not explanation.exchanges:
        return []
    table = Table("bytes", "times", "what", "phase", "ranks", "machines", title="Exchanges", title_justify="left")
    for row in explanation.exchanges[:MOST_EXCHANGES]:
        numbers = format_bytes(row.bytes), f"{row.count:,}"
        table.add_row(*numbers, row.name.strip("_"), row.phase, f"{row.ranks:,}", f"{row.machines:,}")
    return [table]


def _tail(path: str) -> str:
    """The end of a module path, which says more than its beginning."""
    return path if len(path) <= PATH_WIDTH else f"…{path[1 - PATH_WIDTH :]}"


def _levers(explanation: Explanation) -> Table:
    table = Table("change", "saves", "", title="What would lower the peak", title_justify="left")
    for lever in explanation.levers:
        saves = format_bytes(lever.saves_bytes) if lever.saves_bytes > 0 else "nothing"
        table.add_row(
            f"--set {lever.change.replace(' ', ' --set ')}", saves, "other method" if lever.changes_method else ""
        )
    return table
