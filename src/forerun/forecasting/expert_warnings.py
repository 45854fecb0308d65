"""What a forecast assumes of the routing in a mixture of experts, with its share of the step.

transformers 5 routes every token and drops none: the rows of all experts lie in one tensor, sorted, and one grouped
product serves them. So memory on one device does not depend on how uneven the routing is. Time does by two things that
can be counted: each expert's rows are padded to whole tiles, and weights of experts without a row are not read.

Where experts are dealt over ranks memory does depend on it: the fullest rank decides.

Five types are run in loops, two of them with a capacity: what their traces assume is said
(`virtual/looped_experts.py`).
"""

import math

from forerun.clock.costs import Costs
from forerun.trace import GROUP_SIZE, OP, RANKS, ROUTING, Call, Phase, TensorSpec, Trace
from forerun.units import format_percent, format_seconds

GROUPED = ("aten._grouped_mm", "forerun.grouped_mm")
EXCHANGE = "_c10d_functional.all_to_all_single"
TILE_ROWS = 128
"""Rows of a tile of the grouped kernel; stated, not measured."""


def expert_warnings(trace: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast; none where the model has no experts."""
    calls = list(trace.warm_calls())
    forward = [call for call, _ in calls if call.name.startswith(GROUPED) and _groups(call)]
    if not forward:
        return [text for text in trace.assumed_values if text.startswith(ROUTING)]
    seconds = sum(times * costs.device_seconds(call) for call, times in calls if call.name.startswith(GROUPED))
    total = sum(times * costs.device_seconds(call) for call, times in calls if not call.is_view)
    rows, groups = max((_rows(call), _groups(call)) for call in forward)
    groups_of_ranks = {_group(call) for call, _ in calls if call.name.startswith(EXCHANGE)}
    ranks = math.prod(size for _, size in groups_of_ranks)  # rows of other machines come through several groups
    if ranks > 1 and _is_dealt(trace):
        return [
            f"Assumed: {rows:,} rows reach each of {ranks} ranks, {rows / groups:,.0f} for each of its {groups} "
            f"experts. Where routing is uneven the rank that gets most rows decides memory and step; no token is "
            f"dropped. Grouped products take {format_seconds(seconds)} a step, "
            f"{format_percent(seconds / max(total, 1e-12))} of the GPU's time."
        ]
    even, worst = tiles(rows, groups, even=True), tiles(rows, groups, even=False)
    return [
        f"Assumed: {rows:,} rows are routed evenly over {groups} experts, {rows / groups:,.0f} each. Memory does not "
        f"depend on it, as no token is dropped. Grouped products take {format_seconds(seconds)} a step, "
        f"{format_percent(seconds / max(total, 1e-12))} of the GPU's time; uneven routing fills at most "
        f"{worst / math.ceil(rows / TILE_ROWS) - 1:.0%} more tiles of {TILE_ROWS} rows than the rows have, even "
        f"routing {even / math.ceil(rows / TILE_ROWS) - 1:.0%}."
    ]


def _is_dealt(trace: Trace) -> bool:
    """Whether rows are sent to experts: pieces of sequences go round in the backward pass only."""
    ops = [trace.ops[index] for kind, index in trace.events[trace.warm_from :] if kind == OP]
    return any(op.phase is Phase.FORWARD and trace.calls[op.call].name.startswith(EXCHANGE) for op in ops)


def tiles(rows: int, groups: int, *, even: bool) -> int:
    """Tiles of a grouped product whose groups are padded to whole ones: at even routing, or the most there can be.

    Most are filled where every group has one row more than whole tiles: each group adds at most one tile.
    """
    if even:
        smaller, larger = rows // groups, rows % groups
        return larger * math.ceil((smaller + 1) / TILE_ROWS) + (groups - larger) * math.ceil(smaller / TILE_ROWS)
    used = min(groups, rows)
    return used + (rows - used) // TILE_ROWS


def _groups(call: Call) -> int:
    """Experts of a product of sorted rows (R, K) with weights (E, K, N); 0 for a gradient of weights."""
    shapes = [spec.shape for spec in _factors(call)]
    return shapes[1][0] if len(shapes) == 2 and len(shapes[0]) == 2 and len(shapes[1]) == 3 else 0


def _group(call: Call) -> tuple[tuple[int, ...], int]:
    """Ranks of an exchange, where the trace has them, and how many they are."""
    keywords = dict(call.keywords)
    return keywords.get(RANKS, ()), keywords.get(GROUP_SIZE, 1)


def _rows(call: Call) -> int:
    return _factors(call)[0].shape[0]


def _factors(call: Call) -> list[TensorSpec]:
    """Both factors of a grouped product; one that a kernel of its own computes is given its result before them."""
    return [spec for spec in call.inputs if not spec.dtype.startswith("int")][-2:]
