"""Which pipelines are worth a trace on each number of GPUs, and what is one with deep stages like?

A bound comes first: one GPU's seconds for a row with nothing recomputed or exchanged, over all GPUs, and the bubble of
the schedule, (stages - 1) / (micro-batches x parts) of it (Narayanan et al., SC 2021, arXiv:2104.04473, section 2.2).
Where no layout without a pipeline could be traced there is no floor, and the bubbles alone order them. The few with the
least bound, where they could win a third of the step or nothing else has room, are traced with one block and with two
in each part; seconds and bytes are continued to the blocks of the
part that has most. What is chosen is forecast in full. At 16 blocks of width 2048 over 2 stages (2026-11-25) seconds
were those of the full forecast within 0.1 %, bytes 3.3 to 4.9 % below its conservative ones, as reserved bytes grow by
more than the allocated ones that are continued; four candidates are forecast in full until one fits.

Not covered: schedules other than 1F1B and interleaved 1F1B, copies of shards, experts, sequences over ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.data.plan import BatchShape
from forerun.errors import ForerunError
from forerun.forecasting.stages import PipelineForecast, forecast_pipeline, trace_pipeline
from forerun.forecasting.step_model import choose_costs
from forerun.memory.card import FRAGMENTATION_SHARE
from forerun.models.build import config_of
from forerun.plan.candidates import give_back_memory
from forerun.plan.cluster_outcome import LostLayout
from forerun.plan.cluster_search import (
    GAIN,
    ClusterCandidate,
    ClusterQuestion,
    ShapeResult,
    lost_layout,
    request_for,
)
from forerun.plan.layouts import ClusterLayout, with_layout
from forerun.plan.shallow import StepEstimate
from forerun.plan.space import recomputations, with_batch
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_percent, format_seconds

MOST_TRACED = 4
"""Pipelines of one number of GPUs that are traced at most; a choice, for the time that they take."""
WORTH_PIPING = 1.5
"""Times its bound that a step without a pipeline must take before one is traced: 12 of a 7B model took over five
minutes (2026-11-25), and on fast networks they could have won a few per cent. A choice."""
DEPTHS = (1, 2)
"""Blocks of each part of the shallow models."""


def bubble_fraction(layout: ClusterLayout, micro_batches: int) -> float:
    """Bubble over the time of a stage's own work."""
    return (layout.pipeline - 1) / (micro_batches * layout.virtual_stages)


def worth_piping(
    question: ClusterQuestion, layouts: Sequence[ClusterLayout], others: Sequence[ShapeResult]
) -> tuple[list[ClusterLayout], list[LostLayout]]:
    """Of `layouts`, all pipelines, those that could be faster than the `others`; the least bounds of each number."""
    best: dict[int, float] = {}
    for candidate in (c for result in others for c in result.candidates):
        count = candidate.layout.gpus
        best[count] = min(candidate.estimate.seconds, best.get(count, math.inf))
    floor = min((result.floor for result in others), default=math.inf)
    worth, lost = [], []
    here_already: dict[int, int] = {}
    rows = question.settings.global_batch_size
    # Of equal bounds the fewest split layers first, as their exchanges are the dearest.
    for layout in sorted(layouts, key=lambda one: (bubble_fraction(one, rows // one.data_ranks), one.tensor)):
        count = rows // layout.data_ranks
        bubble, gpus = bubble_fraction(layout, count), layout.gpus
        least, here = floor * rows / gpus * (1 + bubble), best.get(gpus, math.inf)
        if count < layout.pipeline or (layout.virtual_stages > 1 and count % layout.pipeline):
            text = f"{count} micro-batches for each pipeline of {layout.pipeline} stages"
            lost.append(lost_layout(layout, "batch", text, is_untraced=True))
        elif math.isfinite(here) and here <= least * WORTH_PIPING:
            text = (
                f"not traced: without a pipeline a step takes {format_seconds(here)}; with a bubble of "
                f"{format_percent(bubble)} and nothing recomputed or exchanged it were {format_seconds(least)}"
            )
            lost.append(lost_layout(layout, "bubble", text, is_untraced=True))
        elif here_already.get(gpus, 0) >= MOST_TRACED:
            text = f"not traced: a bubble of {format_percent(bubble)}, {MOST_TRACED} pipelines come before it"
            lost.append(lost_layout(layout, "not-traced", text, is_untraced=True))
        else:
            here_already[gpus] = here_already.get(gpus, 0) + 1
            worth.append(layout)
    return worth, lost


def search_pipeline(question: ClusterQuestion, layout: ClusterLayout) -> ShapeResult:
    """Candidates of one pipeline: the mildest recomputation that has room, with growing micro-batches."""
    result, least = ShapeResult(), math.inf
    rows, capacity = question.settings.global_batch_size // layout.data_ranks, question.device.memory_bytes
    for saving in recomputations(with_layout(question.settings, layout)):
        if saving["cross_entropy"] != "full":
            continue  # the last stage makes whole logits
        before = math.inf
        for size in (n for n in range(1, rows + 1) if _can_run(layout, rows, n)):
            settings = with_batch(with_layout(question.settings, layout, **saving), size, rows // size)
            try:
                step = PipelineStep.at(question, settings)
            except ForerunError as error:
                result.lost.append(lost_layout(layout, "refused", str(error)))
                return result
            result.traces += step.traces
            least = min(least, step.estimate.device_bytes)
            if step.estimate.device_bytes > capacity:
                break
            result.candidates.append(ClusterCandidate(layout, settings, step.estimate))
            if step.estimate.seconds > before * (1 - GAIN):
                break
            before = step.estimate.seconds
        if result.candidates:
            return result
    text = f"needs {format_bytes(least)} of {format_bytes(capacity)} with as much recomputed as can be"
    result.lost.append(lost_layout(layout, "memory", text))
    return result


def _can_run(layout: ClusterLayout, rows: int, size: int) -> bool:
    """Whether micro-batches of `size` make whole rounds of the schedule."""
    count = rows // size
    return (
        rows % size == 0 and count >= layout.pipeline and (layout.virtual_stages == 1 or count % layout.pipeline == 0)
    )


@dataclass(frozen=True)
class PipelineStep:
    """The step of a pipeline, and how many stages were traced for it."""

    estimate: StepEstimate
    traces: int

    @classmethod
    def at(cls, question: ClusterQuestion, settings: Settings) -> "PipelineStep":
        """From two pipelines of shallow stages.

        Raises:
            ForerunError: the step cannot be built or traced.
        """
        parallel, blocks = settings.parallel, question.size.blocks
        parts = parallel.pipeline * parallel.virtual_stages
        deepest = math.ceil(blocks / parts)
        depths = DEPTHS if deepest > DEPTHS[-1] else (0,)
        steps, traces = [], 0
        for depth in depths:
            step, count = _forecast(question, _at_depth(settings, depth * parts) if depth else settings)
            steps.append(step)
            traces += count
        more = (deepest - depths[-1]) if len(depths) > 1 else 0
        return cls(_deeper(steps[0], steps[-1], more), traces)


def _forecast(question: ClusterQuestion, settings: Settings) -> tuple[PipelineForecast, int]:
    request = request_for(question, settings)
    pipeline = trace_pipeline(request, BatchShape(settings.batch.micro_batch_size, request.plan.longest.length))
    traces = [*pipeline.longer, *pipeline.shorter]
    costs = choose_costs(question.device, traces, request.calibration)
    forecast = forecast_pipeline(pipeline, question.device, costs)
    give_back_memory()
    return forecast, len(traces)


def _deeper(first: PipelineForecast, last: PipelineForecast, more: int) -> StepEstimate:
    """`last` with `more` times what it has over `first`."""

    def deep(before: float | None, value: float | None) -> float:
        assert before is not None  # a pipeline's stages are timed
        assert value is not None
        return value + more * (value - before)

    kinds = list(zip(first.kinds, last.kinds, strict=True))
    waits = [deep(a.exposed_communication_seconds, b.exposed_communication_seconds) for a, b in kinds]
    peaks = [b.device_bytes + more * max(0, b.peak_allocated_bytes - a.peak_allocated_bytes) for a, b in kinds]
    seconds, stage = deep(first.time.seconds, last.time.seconds), peaks.index(max(peaks))
    # The fragmentation that may come on top is that of the stage which decides.
    margin = last.card.device_bytes.conservative - last.card.device_bytes.expected
    growth = max(0.0, peaks[stage] - last.kinds[stage].device_bytes)
    bubble = deep(first.kinds[stage].bubble_seconds, last.kinds[stage].bubble_seconds)
    needs = peaks[stage] + margin + growth * (FRAGMENTATION_SHARE - 1)
    return StepEstimate(seconds, waits[stage], seconds - waits[stage], needs, bubble)


def _at_depth(settings: Settings, blocks: int) -> Settings:
    """The same settings with a model of `blocks` blocks."""
    config = config_of(settings)
    field, depth = type(config).attribute_map.get("num_hidden_layers", "num_hidden_layers"), config.num_hidden_layers
    lists = {n: v for n, v in config.to_dict().items() if isinstance(v, list | tuple) and len(v) == depth}
    changes = {field: blocks} | {name: list(values[:blocks]) for name, values in lists.items()}
    model = settings.model.model_copy(update={"config": {**settings.model.config, **changes}})
    return settings.model_copy(update={"model": model})
