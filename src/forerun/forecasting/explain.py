"""Why a run needs the memory that it needs: what is alive at the peak, and what each setting would save.

Each lever is a forecast of its own: the step is traced again with that one change.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from forerun.data.plan import BatchShape
from forerun.errors import ForerunError
from forerun.forecasting.collectives import count_collectives
from forerun.forecasting.request import ForecastRequest
from forerun.forecasting.sizes import largest_that_fits
from forerun.forecasting.traces import step_trace
from forerun.memory.card import replay_on_card
from forerun.memory.explain import by_module, live_at_peak, op_at_peak
from forerun.memory.explanation import Explanation, Lever
from forerun.memory.replay import MemoryReplay, replay_memory
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.trace import Trace

LARGEST, MODULES = 10, 12
Change = dict[str, Any]


def explain_memory(request: ForecastRequest, on_progress: Callable[[str], None] = lambda change: None) -> Explanation:
    """What is alive at the peak of the longest step, and the levers, each given to `on_progress` before it is tried."""
    trace, replay = _replay(request, keep_lines=True)
    live, op = live_at_peak(trace, replay), op_at_peak(trace, replay)
    warm = trace.part(trace.warm_from, len(trace.events))
    return Explanation(
        phase=op.phase.value if op else "",
        module=op.module if op else "",
        operator=trace.calls[op.call].name if op else "",
        largest=live[:LARGEST],
        modules=dict(list(by_module(live).items())[:MODULES]),
        largest_micro_batch_size=_largest(request, on_progress),
        levers=sorted(_levers(request, replay.peak_allocated_bytes, on_progress), key=lambda lever: -lever.saves_bytes),
        exchanges=count_collectives(warm),
    )


def _largest(request: ForecastRequest, on_progress: Callable[[str], None]) -> int | None:
    if request.device.kind == "cpu":
        return None
    on_progress("batch.micro_batch_size")
    length = request.plan.longest.length

    def trace(size: int) -> Trace:
        return step_trace(request, BatchShape(size, length))

    return largest_that_fits(trace, request.device)


def _levers(request: ForecastRequest, peak: int, on_progress: Callable[[str], None]) -> Iterator[Lever]:
    for text, change, changes_method in candidate_changes(request.settings):
        on_progress(text)
        try:
            settings = settings_from(request.settings.model_dump(), change)
            _, replay = _replay(replace(request, settings=settings))
        except ForerunError:
            continue  # not for this model or device
        yield Lever(change=text, saves_bytes=peak - replay.peak_allocated_bytes, changes_method=changes_method)


def candidate_changes(settings: Settings) -> list[tuple[str, list[str], bool]]:
    """Text, overrides, and whether what is trained changes, of every lever that these settings leave open."""
    batch = settings.batch
    candidates: list[tuple[list[str], bool]] = []
    if settings.activation_checkpointing == "none":
        candidates.append((["activation_checkpointing=blocks"], False))
    if settings.cross_entropy == "full" and settings.workload in ("causal-lm", "masked-lm", "seq2seq-lm"):
        candidates.append((["cross_entropy=chunked"], False))
    if batch.micro_batch_size > 1:
        smaller = batch.micro_batch_size // 2
        steps = batch.gradient_accumulation_steps * batch.micro_batch_size // smaller
        halved = [f"batch.micro_batch_size={smaller}", f"batch.gradient_accumulation_steps={steps}"]
        candidates.append((halved, batch.micro_batch_size % smaller != 0))
    if settings.optimizer.name in ("adamw", "sgd") and settings.optimizer.implementation in ("foreach", "for-loop"):
        candidates.append((["optimizer.implementation=fused"], False))
    if settings.optimizer.name == "adamw":
        candidates.append((["optimizer.name=adamw-8bit", "optimizer.implementation=auto"], True))
        candidates.append((["optimizer.name=paged-adamw-8bit", "optimizer.implementation=auto"], True))
    if settings.model.attention in ("eager", "sdpa:math"):
        candidates.append((["model.attention=auto"], False))
    if settings.precision in ("fp32", "tf32"):
        candidates.append((["precision=bf16-mixed"], True))
    elif settings.adapter.kind == "lora" and settings.precision == "bf16-true":
        candidates.append((["precision=bf16-mixed", "model.dtype=bfloat16"], True))
    elif settings.adapter.kind == "lora" and settings.precision == "bf16-mixed" and settings.model.dtype == "auto":
        candidates.append((["model.dtype=bfloat16"], True))
    if settings.adapter.kind == "lora" and settings.quantization == "none":
        candidates.append((["quantization=nf4-double"], True))
    return [(" ".join(change), change, changes) for change, changes in candidates]


def _replay(request: ForecastRequest, *, keep_lines: bool = False) -> tuple[Trace, MemoryReplay]:
    size, length = request.settings.batch.micro_batch_size, request.plan.longest.length
    trace = step_trace(request, BatchShape(size, length), keep_lines=keep_lines)
    if request.device.kind == "cpu":
        return trace, replay_memory(trace, is_host=True)
    return trace, replay_on_card(trace, request.device).memory
