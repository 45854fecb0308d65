"""Which layout, micro-batch and recomputation is best on each number of GPUs? Bounds first, then few shallow traces.

The global batch stays. Layouts fall by arithmetic (heads, rows for each rank, bytes of state) before anything is
traced. The rest share traces by their operators (`shallow.py`): for each way of recomputing, the mildest first,
micro-batches grow until they fit nowhere or gain nothing. A leaner way is tried where the milder left some layout
without room, or small. Layers are split and experts dealt only where the best whole layers are slower than the same
step with nothing recomputed and nothing exchanged, which split layers cannot beat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from forerun.errors import ForerunError, NotSupported
from forerun.forecasting.request import ForecastRequest
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask
from forerun.plan.cluster_outcome import Cause, LostLayout
from forerun.plan.layouts import ClusterLayout, ModelSize, indivisible, layouts_of, least_bytes, with_layout
from forerun.plan.shallow import ShallowStep, StepEstimate
from forerun.plan.space import recomputations, with_batch
from forerun.settings.schema import Settings
from forerun.step.expert_parallel import require_expert_parallel
from forerun.units import format_bytes, format_percent, format_seconds

GAIN = 0.01
"""Share of a row's time that a micro-batch must save beside the next smaller for a larger one to be tried."""
WORTH_SPLITTING = 0.02
"""Above the floor by which the best of whole layers must lie before split layers are traced."""
WORTH_COPYING = 0.01
"""Share of a step that exchanges take, from which on copies of shards are traced, and gathering once a step."""
MOST_MICRO_BATCHES = 3
"""That differ in a trace: the first, those between, and the last, which sends gradients where they are sent once."""


@dataclass(frozen=True)
class ClusterQuestion:
    """What is searched; it goes to other processes as it is."""

    settings: Settings
    device: Device
    ask: Ask
    counts: tuple[int, ...]
    size: ModelSize


@dataclass(frozen=True)
class ClusterCandidate:
    """One layout with a micro-batch and a way of recomputing."""

    layout: ClusterLayout
    settings: Settings
    estimate: StepEstimate

    @property
    def description(self) -> str:
        """Micro-batch and recomputation in words."""
        batch, saving = self.settings.batch, self.settings.activation_checkpointing
        return f"{batch.micro_batch_size} × {batch.gradient_accumulation_steps} rows, recomputing {saving}"


@dataclass
class ShapeResult:
    """Layouts with the same operators."""

    candidates: list[ClusterCandidate] = field(default_factory=list)
    lost: list[LostLayout] = field(default_factory=list)
    traces: int = 0
    floor: float = float("inf")
    """Seconds of one GPU for one row with nothing recomputed and nothing exchanged."""


def possible_layouts(question: ClusterQuestion) -> tuple[list[ClusterLayout], list[LostLayout]]:
    """Layouts that arithmetic leaves, and those that it does not."""
    layouts, lost = [], []
    for count in question.counts:
        for layout in layouts_of(question.settings, count, question.size.experts):
            cause, text = _impossible(question, layout)
            if cause is None:
                layouts.append(layout)
            else:
                lost.append(lost_layout(layout, cause, text, is_untraced=True))
    return layouts, lost


def _impossible(question: ClusterQuestion, layout: ClusterLayout) -> tuple[Cause | None, str]:
    rows, ranks = question.settings.global_batch_size, layout.data_ranks
    if text := indivisible(layout, question.size):
        return "heads", text
    if layout.expert > 1:
        try:
            require_expert_parallel(with_layout(question.settings, layout))
        except NotSupported as error:
            return "refused", str(error)
    if rows < ranks:
        return "batch", f"too small a batch: {rows} rows for {ranks} ranks"
    if rows % ranks:
        return "batch", f"{rows} rows of the global batch cannot be dealt evenly to {ranks} ranks"
    least, capacity = least_bytes(question.settings, layout, question.size), question.device.memory_bytes
    if least > capacity:
        needs, has = format_bytes(least), format_bytes(capacity)
        return "memory", f"weights, gradients and optimizer state alone need {needs} of {has}"
    return None, ""


def lost_layout(
    layout: ClusterLayout, cause: Cause, text: str, seconds: float | None = None, *, is_untraced: bool = False
) -> LostLayout:
    """The record of a layout that was not taken."""
    return LostLayout(
        gpus=layout.gpus, layout=layout.description, cause=cause, text=text, step_seconds=seconds,
        is_untraced=is_untraced,
    )  # fmt: skip


def search_layouts(question: ClusterQuestion, layouts: Sequence[ClusterLayout]) -> ShapeResult:
    """Candidates of `layouts`, which have the same operators but for exchanges; those over all ranks are looked at
    first, then copies of shards, then weights that are gathered once a step.
    """
    result = ShapeResult()
    for turn in sorted({_turn(layout) for layout in layouts}):
        group = [layout for layout in layouts if _turn(layout) == turn]
        if any(turn) and result.candidates:
            group = _worth_tracing(group, result)
        if group:
            _search_group(question, group, result)
    return result


def _turn(layout: ClusterLayout) -> tuple[int, bool]:
    """What is looked at together, in the order in which it is: all exchanges first, then stage 2 of ZeRO, then 1."""
    return (3 - layout.zero if layout.zero else 0), layout.replicate > 1


def _worth_tracing(group: list[ClusterLayout], result: ShapeResult) -> list[ClusterLayout]:
    """Layouts of numbers of GPUs on which the best so far waits for exchanges, or none has room."""
    best: dict[int, ClusterCandidate] = {}
    for candidate in sorted(result.candidates, key=lambda c: -c.estimate.seconds):
        best[candidate.layout.gpus] = candidate
    waits = {gpus: c.estimate.communication_seconds / c.estimate.seconds for gpus, c in best.items()}
    worth = [layout for layout in group if waits.get(layout.gpus, 1.0) > WORTH_COPYING]
    for layout in group:
        if layout not in worth:
            text = f"not traced: the best so far waits for others in {format_percent(waits[layout.gpus])} of a step"
            result.lost.append(lost_layout(layout, "not-traced", text, is_untraced=True))
    return worth


def _search_group(question: ClusterQuestion, group: list[ClusterLayout], result: ShapeResult) -> None:
    reference = max(group, key=lambda layout: (layout.shard, layout.gpus))
    base = with_layout(question.settings, reference)
    least: dict[ClusterLayout, float] = {}
    roomy: set[ClusterLayout] = set()
    for number, saving in enumerate(recomputations(base)):
        try:
            tried = list(_grow(question, group, reference, saving, result))
        except ForerunError as error:
            result.lost += [lost_layout(layout, "refused", str(error)) for layout in group if layout not in roomy]
            return
        if number == 0:
            rows = [c.settings.global_batch_size / c.layout.gpus for c in tried]
            each = [c.estimate.alone_seconds / n for c, n in zip(tried, rows, strict=True)]
            result.floor = min(each, default=result.floor)
        for candidate in tried:
            need = candidate.estimate.device_bytes
            least[candidate.layout] = min(need, least.get(candidate.layout, need))
            if need <= question.device.memory_bytes:
                result.candidates.append(candidate)
                roomy.add(candidate.layout)
        if set(group) <= roomy:
            break  # whatever recomputes more is slower
    for layout in group:
        if layout not in roomy:
            has = format_bytes(question.device.memory_bytes)
            text = f"needs {format_bytes(least[layout])} of {has} with as much recomputed as can be"
            result.lost.append(lost_layout(layout, "memory", text))


def _grow(
    question: ClusterQuestion, group: list[ClusterLayout], reference: ClusterLayout, saving: dict[str, str],
    result: ShapeResult,
) -> Iterator[ClusterCandidate]:  # fmt: skip
    """Candidates with growing micro-batches, until they fit nowhere or gain nothing."""
    rows = {layout: question.settings.global_batch_size // layout.data_ranks for layout in group}
    before = float("inf")
    for size in range(1, max(rows.values()) + 1):
        users = [layout for layout in group if rows[layout] % size == 0]
        if not users:
            continue
        tried = []
        most = MOST_MICRO_BATCHES if reference.zero == 1 else 2
        for traced in range(1, most + 1):
            own = [layout for layout in users if min(rows[layout] // size, most) == traced]
            if not own:
                continue
            settings = with_batch(with_layout(question.settings, reference, **saving), size, traced)
            step = ShallowStep(request_for(question, settings), question.device, reference, question.size)
            result.traces += len(step.traces)
            for layout in own:
                count = rows[layout] // size
                own_settings = with_batch(with_layout(question.settings, layout, **saving), size, count)
                tried.append(ClusterCandidate(layout, own_settings, step.estimate(layout, count)))
        yield from tried
        each = min(_alone_for_a_row(candidate) for candidate in tried)
        if all(c.estimate.device_bytes > question.device.memory_bytes for c in tried) or each > before * (1 - GAIN):
            return
        before = each


def _alone_for_a_row(candidate: ClusterCandidate) -> float:
    batch = candidate.settings.batch
    return candidate.estimate.alone_seconds / (batch.micro_batch_size * batch.gradient_accumulation_steps)


def request_for(question: ClusterQuestion, settings: Settings) -> ForecastRequest:
    """The request of `settings`; a batch plan's lengths are the same for all layouts of one global batch."""
    return replace(question.ask(settings, question.device), settings=settings)


def worth_splitting(
    question: ClusterQuestion, layouts: Sequence[ClusterLayout], whole: Sequence[ShapeResult]
) -> tuple[list[ClusterLayout], list[LostLayout]]:
    """Of `layouts`, all with split layers, those of numbers of GPUs on which whole layers leave something to gain."""
    best: dict[int, float] = {}
    for candidate in (c for result in whole for c in result.candidates):
        count = candidate.layout.gpus
        best[count] = min(candidate.estimate.seconds, best.get(count, float("inf")))
    floor = min((result.floor for result in whole), default=float("inf"))
    worth, lost = [], []
    for layout in layouts:
        least = floor * question.settings.global_batch_size / layout.gpus
        here = best.get(layout.gpus, float("inf"))
        if here <= least * (1 + WORTH_SPLITTING):
            text = (
                f"not traced: whole layers take {format_seconds(here)} a step; with nothing recomputed or exchanged "
                f"it were {format_seconds(least)}"
            )
            lost.append(lost_layout(layout, "not-traced", text, is_untraced=True))
        else:
            worth.append(layout)
    return worth, lost


def ranked(candidates: Sequence[ClusterCandidate], gpus: int) -> list[ClusterCandidate]:
    """Candidates of one number of GPUs, the fastest first; among equals the one with more room."""
    own = [candidate for candidate in candidates if candidate.layout.gpus == gpus]
    return sorted(own, key=lambda c: (c.estimate.seconds, c.estimate.device_bytes))


def slower(candidate: ClusterCandidate, best: ClusterCandidate) -> LostLayout:
    """Why a layout that fits was not taken: what its operators, or its exchanges, take more."""
    own, its = candidate.estimate, best.estimate
    # Exchanges cost what is waited for, and what products lose beside them.
    exchanges, others = own.seconds - own.alone_seconds, its.seconds - its.alone_seconds
    cause: Cause = "communication" if exchanges - others > own.alone_seconds - its.alone_seconds else "operators"
    more, waits = own.seconds / its.seconds - 1, own.communication_seconds / own.seconds
    text = f"{format_seconds(own.seconds)} a step, {format_percent(more, signed=True)}"
    if own.bubble_seconds > max(GAIN * own.seconds, (own.seconds - its.seconds) / 2):
        cause = "bubble"
        text += f": stages wait {format_seconds(own.bubble_seconds)} of it for each other"
    if exchanges > GAIN * own.seconds:
        text += f": exchanges cost {format_seconds(exchanges)} of it, {format_percent(waits)} of the step is waited for"
    if cause == "operators":
        text += (
            f"; its operators alone take {format_seconds(own.alone_seconds)}, not {format_seconds(its.alone_seconds)}"
        )
    return lost_layout(candidate.layout, cause, f"{text}; {candidate.description}", own.seconds)
