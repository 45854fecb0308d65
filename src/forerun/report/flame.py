"""A flame graph of bytes: what is alive at a peak, from what it is for down to the line that made it.

First the tree, then its drawing: a row for each level with the root above, widths in proportion to bytes. Numbers in
module paths become `*`, so that equal layers add up. The drawing is inline SVG without script; each bar has a title.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from forerun.memory.explanation import LiveTensor
from forerun.units import format_bytes, format_percent

WIDTH, ROW = 1080, 22
"""Pixels of the drawing and of one level."""
LETTER = 6.6
"""Pixels of a mean letter at 11.5 pixels."""
NARROWEST = 1.0
"""Bars that would be narrower are left out; their bytes are in the bar above."""
MOST_LEVELS = 10


@dataclass
class FlameNode:
    """One bar: bytes with those of its children; `style` is the category that colours it."""

    name: str
    style: str
    bytes: int = 0
    children: dict[str, "FlameNode"] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Levels from here down."""
        return 1 + max((child.depth for child in self.children.values()), default=0)


def flame_tree(tensors: Iterable[LiveTensor], peak_bytes: int) -> FlameNode:
    """The tree of `tensors`; what the peak has beyond them is a bar of its own."""
    root = FlameNode("peak", "other")
    for tensor in tensors:
        _add(root, _path(tensor), tensor.category, tensor.bytes)
    rest = peak_bytes - root.bytes
    if rest > 0:
        _add(root, ["workspaces of cuBLAS and what could not be split"], "other", rest)
    return root


def _add(root: FlameNode, path: Sequence[str], style: str, size: int) -> None:
    node = root
    node.bytes += size
    for name in path:
        node = node.children.setdefault(name, FlameNode(name, style))
        node.bytes += size


def _path(tensor: LiveTensor) -> list[str]:
    kind = tensor.category.replace("_", " ")
    if tensor.category in ("activation", "temporary"):
        kind = f"{kind}, made in {tensor.phase}"
    modules = ["*" if part.isdigit() else part for part in tensor.module.split(".") if part]
    operator = tensor.operator.removeprefix("aten.").removesuffix(".default")
    place = " ".join(part for part in (tensor.line, operator) if part)
    return [kind, *_joined(modules), *([place] if place else [])]


def _joined(modules: Sequence[str]) -> list[str]:
    """Module names with the `*` of their numbers, at most as many levels as are drawn."""
    levels: list[str] = []
    for name in modules:
        if name == "*" and levels:
            levels[-1] += ".*"
        else:
            levels.append(name)
    most = MOST_LEVELS - 3
    return levels if len(levels) <= most else [*levels[: most - 1], ".".join(levels[most - 1 :])]


def draw_flame(root: FlameNode, title: str) -> str:
    """SVG of a tree; the root is the uppermost row."""
    parts: list[str] = []
    if root.bytes:
        _draw(root, 0, 0.0, WIDTH / root.bytes, root.bytes, parts)
    height = ROW * (root.depth if root.bytes else 1)
    return (
        f'<svg class="flame" viewBox="0 0 {WIDTH} {height}" role="img"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _draw(node: FlameNode, level: int, x: float, scale: float, whole: int, parts: list[str]) -> None:
    width = node.bytes * scale
    if width < NARROWEST:
        return
    label = f"{node.name} · {format_bytes(node.bytes)}"
    letters = int((width - 8) / LETTER)
    text = label if len(label) <= letters else f"{label[: letters - 1]}…" if letters > 3 else ""
    y = level * ROW
    hover = f"{label}, {format_percent(node.bytes / whole)} of the peak"
    parts.append(
        f'<g><title>{escape(hover)}</title><rect class="{node.style}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
        f'height="{ROW - 1}"/>' + (f'<text x="{x + 4:.1f}" y="{y + 15}">{escape(text)}</text>' if text else "") + "</g>"
    )
    for child in sorted(node.children.values(), key=lambda each: -each.bytes):
        _draw(child, level + 1, x, scale, whole, parts)
        x += child.bytes * scale
