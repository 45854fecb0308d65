"""The search on one device: step classes in an order in which those that cannot win are never traced.

If the whole batch of a step fits at once with nothing recomputed, no recomputation, chunked loss or smaller micro-batch
can be faster. Where memory limits the micro-batch, the step that holds the whole batch without regard to memory is the
floor: a class is tried only while the best that fits is above the floor of every class that it does more than.
Compiling is tried last, on the best. What is left out, and why, is written down.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device
from forerun.plan import reasons
from forerun.plan.candidates import Estimate, StepClass, Workbench
from forerun.plan.outcome import Reason
from forerun.plan.scaling import with_global_batch
from forerun.plan.space import (
    GLOBAL_FACTORS,
    PADDINGS,
    batch_sizes,
    changed,
    is_leaner,
    precisions,
    recomputations,
    samples_per_device,
    strategies,
)
from forerun.settings.schema import Settings
from forerun.step.heads import GENERIC

NEGLIGIBLE = 0.01
"""Differences in time below this share do not count: the simpler settings win."""
WORTH_A_TRACE = 0.02
"""A class is traced only where the best could become faster by more than this share."""
HOST_BOUND = 0.15
"""Share of the step in which the GPU waits for launches, above which full precision, with its fewer operators, is
looked at."""
CPU_SIZES = 3
"""Micro-batch sizes tried on a CPU, where each candidate's operators are timed."""


@dataclass
class BestOfClass:
    """One step class: its best candidate that fits, and the time of its whole batch without regard to memory."""

    step_class: StepClass
    best: Estimate | None
    floor: float
    state_bytes: int
    needed_bytes: float
    """Of the smallest candidate that does not fit; of the best where all do."""


@dataclass
class Found:
    """Everything that the search on one device found."""

    device: Device
    estimates: list[Estimate] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    rejected: list[Reason] = field(default_factory=list)
    classes: list[StepClass] = field(default_factory=list)

    def tried(self) -> list[Estimate]:
        """Every candidate that was worked out."""
        return [estimate for step_class in self.classes for estimate in step_class.known]

    def ranked(self) -> list[Estimate]:
        """Candidates that fit, the fastest first; among equals the one with more room."""
        fitting = {id(e): e for e in self.estimates if e.fits}.values()
        return sorted(fitting, key=lambda e: (run_seconds(e), e.device_bytes))


def run_seconds(estimate: Estimate) -> float:
    """Training and compiling of a candidate."""
    return estimate.training_seconds + estimate.compiling_seconds


def search(given: Settings, device: Device, bench: Workbench, *, change_global: bool = False) -> Found:
    """Search what may be chosen for `given` on `device`."""
    found = Found(device)
    start = _simplified(given, device, bench, found)
    bases = _bases(start, device, bench, found)
    best: Estimate | None = None
    for base in bases:
        if best is None or (base.floor < best.step_seconds * (1 - WORTH_A_TRACE) and not bench.is_out_of_time):
            made = _recomputed(base, device, bench, found).best
            best = min((e for e in (best, made) if e is not None), key=lambda e: e.step_seconds, default=None)
    if not bases:
        _leanest(start, device, bench, found)
    if found.ranked():
        if change_global:
            _other_globals(given, found, bench)
        _compiled(given, found, bench)
        _neighbours(given, found, bench)
    return found


def _simplified(given: Settings, device: Device, bench: Workbench, found: Found) -> Settings:
    """The settings without what only slows them down, padded as little as the workload allows."""
    start = changed(given, {"compile": "none", "compile_unit": "model"})
    if given.model.attention != "auto":
        start = changed(start, {"model.attention": "auto"})
        found.reasons.append(reasons.attention(given, device))
    if given.optimizer.implementation != "auto":
        start = changed(start, {"optimizer.implementation": "auto"})
        found.reasons.append(reasons.implementation(given))
    return _padded(start, device, bench, found)


def _padded(start: Settings, device: Device, bench: Workbench, found: Found) -> Settings:
    """Padding policy with the fewest padded tokens, counted over the batch plan."""
    given = start.batch.padding
    if given not in PADDINGS:
        return start
    if start.workload in GENERIC and start.data.mean_tokens is None:
        return start
    padded: dict[str, int] = {}
    for padding in (given, *(p for p in PADDINGS if p != given)):
        tried = changed(start, {"batch.padding": padding, "precision": precisions(start, device)[0]})
        try:
            padded[padding] = bench.request(tried, device).plan.padded_tokens
        except ForerunError as error:
            found.rejected.append(Reason(about="batch.padding", said=f"batch.padding={padding}: {error}"))
    best = min(padded, key=lambda name: padded[name])
    if padded[best] > padded[given] * (1 - NEGLIGIBLE):
        best = given
    for padding, tokens in padded.items():
        if padding != best:
            found.rejected.append(reasons.padding(padding, tokens, best, padded[best]))
    if best != given:
        found.reasons.append(reasons.padding(best, padded[best], given, padded[given]))
    return changed(start, {"batch.padding": best})


def _bases(start: Settings, device: Device, bench: Workbench, found: Found) -> list[BestOfClass]:
    """The classes with nothing recomputed, one for each precision and strategy, the best first.

    Where memory limits the micro-batch, the second may be the best once something is recomputed.
    """
    leading: BestOfClass | None = None
    bases: list[BestOfClass] = []
    formats = precisions(start, device)
    for number, precision in enumerate(formats):
        if number and leading is not None and leading.best is not None:
            if leading.best.host_share < HOST_BOUND and device.kind == "cuda":
                found.rejected.append(reasons.precision_not_tried(precision, formats[0], leading.best, device))
                continue
            if bench.is_out_of_time:
                break
        if leading is not None and leading.best is None and leading.state_bytes > device.memory_bytes:
            break  # the state of training is the same in every mixed precision
        for kind in strategies(start):
            usual = {"precision": precision, "parallel.kind": kind, **recomputations(start)[0]}
            made = _try(changed(start, usual), device, bench, found)
            if made is not None:
                bases.append(made)
                leading = made if leading is None or _is_better(made, leading) else leading
    return sorted(bases, key=lambda base: base is not leading)


def _is_better(one: BestOfClass, other: BestOfClass) -> bool:
    if one.best is None or other.best is None:
        return one.best is not None or (other.best is None and one.needed_bytes < other.needed_bytes)
    return one.best.training_seconds < other.best.training_seconds * (1 - NEGLIGIBLE)


def _recomputed(leading: BestOfClass, device: Device, bench: Workbench, found: Found) -> BestOfClass:
    """The leading class, or one that recomputes and so has room for larger micro-batches."""
    start = leading.step_class.settings
    if leading.best is None and leading.state_bytes > device.memory_bytes:
        found.rejected.append(reasons.state_alone(leading.state_bytes, device))
        return leading
    known = [(recomputations(start)[0], leading)]
    best, slower = leading, []
    for saving in recomputations(start)[1:]:
        floor = max((made.floor for less, made in known if is_leaner(saving, less)), default=0.0)
        if best.best is not None and best.best.step_seconds <= floor * (1 + WORTH_A_TRACE):
            slower.append(saving)
            continue
        if bench.is_out_of_time and best.best is not None:
            break
        beat = float("inf") if best.best is None else best.best.step_seconds * (1 - NEGLIGIBLE)
        made = _try(changed(start, saving), device, bench, found, beat)
        if made is None:
            continue
        if made.best is None and best.best is not None and made.floor >= beat:
            found.classes.remove(made.step_class)
            found.rejected.append(reasons.slower_in_any_memory(changed(start, saving), made.floor, best.best))
        known.append((saving, made))
        if _is_better(made, best):
            best = made
    if slower and best.best is not None:
        found.rejected.append(reasons.cannot_be_faster(slower, best.best, leading.floor))
    return best


def _leanest(start: Settings, device: Device, bench: Workbench, found: Found) -> None:
    """Nothing could be traced as it stands: whether the class that saves most can."""
    _try(changed(start, {"precision": precisions(start, device)[0], **recomputations(start)[-1]}), device, bench, found)


def _try(
    settings: Settings, device: Device, bench: Workbench, found: Found, beat: float = float("inf")
) -> BestOfClass | None:
    try:
        made = best_of_class(settings, device, bench, beat)
    except ForerunError as error:
        found.rejected.append(reasons.refused(settings, error))
        return None
    found.estimates.extend(made.step_class.known)
    found.classes.append(made.step_class)
    return made


def best_of_class(settings: Settings, device: Device, bench: Workbench, beat: float = float("inf")) -> BestOfClass:
    """The largest micro-batch that fits, or the next smaller where that is faster.

    A class whose whole batch, memory disregarded, takes `beat` seconds or more is not searched further.
    """
    batch = samples_per_device(settings)
    sizes = batch_sizes(settings, batch)
    step_class = StepClass(settings, device, bench, [n for n in sizes if n < batch])
    if device.kind == "cpu":
        return _on_cpu(step_class, sizes, batch)
    largest = step_class.at(sizes[-1], batch // sizes[-1])
    if largest.fits:
        return BestOfClass(step_class, largest, largest.step_seconds, largest.state_bytes, largest.device_bytes)
    if largest.state_bytes > device.memory_bytes or largest.step_seconds >= beat:
        return BestOfClass(step_class, None, largest.step_seconds, largest.state_bytes, largest.device_bytes)
    low, high = -1, len(sizes) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if step_class.at(sizes[middle], batch // sizes[middle]).fits:
            low = middle
        else:
            high = middle
    needed = step_class.at(sizes[high], batch // sizes[high])
    tried = [step_class.at(n, batch // n) for n in sizes[max(0, low - 1) : low + 1]]
    best = min(tried, key=lambda e: e.step_seconds, default=None)
    return BestOfClass(step_class, best, largest.step_seconds, needed.state_bytes, needed.device_bytes)


def _on_cpu(step_class: StepClass, sizes: list[int], batch: int) -> BestOfClass:
    """The fastest of a few sizes; a CPU's caches can favour small ones."""
    given = step_class.settings.batch.micro_batch_size
    wanted = sorted({given, *sizes[-CPU_SIZES:]} & set(sizes), key=lambda n: n != given)
    tried = [step_class.at(n, batch // n) for n in wanted]
    fitting = [e for e in tried if e.fits] or [e for e in [step_class.at(1, batch)] if e.fits]
    best = min(fitting, key=lambda e: e.step_seconds, default=None)
    needed = min(tried, key=lambda e: e.device_bytes)
    floor = min(e.step_seconds for e in tried)
    return BestOfClass(step_class, best, floor, needed.state_bytes, needed.device_bytes)


def _other_globals(given: Settings, found: Found, bench: Workbench) -> None:
    """The best class with other global batches; the rate and the warm-up follow by rule."""
    best = found.ranked()[0].settings
    for factor in GLOBAL_FACTORS:
        wanted = given.global_batch_size * factor
        if bench.is_out_of_time:
            return
        if wanted != int(wanted) or wanted % given.parallel.world_size or wanted > (given.data.examples or wanted):
            continue
        _try(with_global_batch(best, given, int(wanted)), found.device, bench, found)


def _compiled(given: Settings, found: Found, bench: Workbench) -> None:
    """The best eager candidate compiled, block by block and as the user had it."""
    if found.device.kind == "cpu":
        if given.compile != "none":
            found.reasons.append(reasons.compile_on_cpu(given))
        return
    best = found.ranked()[0]
    for mode in _compile_modes(given):
        if bench.is_out_of_time:
            return
        settings = changed(best.settings, mode)
        step_class = StepClass(settings, found.device, bench, [])
        try:
            made = step_class.at(best.size, best.settings.batch.gradient_accumulation_steps)
        except ForerunError as error:
            found.rejected.append(reasons.refused(settings, error))
            continue
        found.classes.append(step_class)
        made = _larger_compiled(step_class, made, bench)
        if run_seconds(made) < run_seconds(best) and made.step_seconds < best.step_seconds * (1 - NEGLIGIBLE):
            found.estimates.append(made)
        else:
            found.rejected.append(reasons.compile_does_not_pay(made, best))


def _larger_compiled(step_class: StepClass, made: Estimate, bench: Workbench) -> Estimate:
    """Compiled steps keep less: the next larger micro-batches, as long as they fit and are faster."""
    batch = samples_per_device(made.settings)
    for size in batch_sizes(made.settings, batch):
        if size > made.size and not bench.is_out_of_time:
            larger = step_class.at(size, batch // size)
            if not larger.fits or larger.step_seconds >= made.step_seconds:
                break
            made = larger
    return made


def _compile_modes(given: Settings) -> Iterator[dict[str, Any]]:
    yield {"compile": "default", "compile_unit": "blocks"}
    if given.compile != "none" and (given.compile, given.compile_unit) != ("default", "blocks"):
        yield {"compile": given.compile, "compile_unit": given.compile_unit}


def _neighbours(given: Settings, found: Found, bench: Workbench) -> None:
    """Smaller and larger micro-batches of the best, for the front and for the reasons."""
    best = next((e for e in found.ranked() if e.settings.compile == "none"), None)
    if best is None or found.device.kind == "cpu":
        return
    batch = samples_per_device(best.settings)
    sizes = batch_sizes(best.settings, batch)
    step_class = next((c for c in found.classes if best in c.known), None)
    if step_class is None:
        return
    here = sizes.index(best.size)
    near = [sizes[i] for i in (here + 1, here - 1) if 0 <= i < len(sizes)]
    near += [given.batch.micro_batch_size] if given.batch.micro_batch_size in sizes else []
    near += [sizes[i] for i in (here - 2, here - 3) if i >= 0]
    for size in dict.fromkeys(near):
        if bench.is_out_of_time:
            break
        made = step_class.at(size, batch // size)
        if made not in found.estimates:
            found.estimates.append(made)
