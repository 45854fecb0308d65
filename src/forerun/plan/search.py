"""Which candidates of one device are worth a trace? Step classes, ordered so that those that cannot win are skipped.

If the whole batch of a step fits at once with nothing recomputed, no recomputation, chunked loss or smaller micro-batch
can be faster. Where memory limits the micro-batch, the step that holds the whole batch without regard to memory is the
floor: a class is tried only while the best that fits is above the floor of every class that it does more than.
Compiling is tried last, on the best. What is left out, and why, is written down.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device
from forerun.plan import reasons
from forerun.plan.candidates import CandidatePool, Estimate, StepClass, Workbench, run_seconds
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
from forerun.step.generic import GENERIC

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
    """Device memory of the smallest candidate that does not fit; of the best where all do."""


def search(original: Settings, device: Device, bench: Workbench, *, change_global: bool = False) -> CandidatePool:
    """The candidates that may be chosen for `original` on `device`."""
    pool = CandidatePool(device)
    start = _simplify(original, device, bench, pool)
    bases = _bases(start, device, bench, pool)
    best: Estimate | None = None
    for base in bases:
        if best is None or (base.floor < best.step_seconds * (1 - WORTH_A_TRACE) and not bench.is_out_of_time):
            contender = _try_recomputing(base, device, bench, pool).best
            best = min((e for e in (best, contender) if e is not None), key=lambda e: e.step_seconds, default=None)
    if not bases:
        _try_leanest(start, device, bench, pool)
    if pool.ranked():
        if change_global:
            _try_other_globals(original, pool, bench)
        _try_compiling(original, pool, bench)
        _add_neighbours(original, pool, bench)
    return pool


def _simplify(original: Settings, device: Device, bench: Workbench, pool: CandidatePool) -> Settings:
    """The settings without what only slows them down, padded as little as the workload allows."""
    start = changed(original, {"compile": "none", "compile_unit": "model"})
    # a package is no choice of the planner's, which cannot know whether it is installed; its user does
    if original.model.attention != "auto" and not _runs_package(original, device):
        start = changed(start, {"model.attention": "auto"})
        pool.reasons.append(reasons.attention(original, device))
    if original.optimizer.implementation != "auto":
        start = changed(start, {"optimizer.implementation": "auto"})
        pool.reasons.append(reasons.implementation(original))
    return _choose_padding(start, device, bench, pool)


def _runs_package(original: Settings, device: Device) -> bool:
    from forerun.step.attention import runs_package  # with it comes PyTorch, which a comparison of kept traces spares

    return runs_package(original, device.compute_capability)


def _choose_padding(start: Settings, device: Device, bench: Workbench, pool: CandidatePool) -> Settings:
    """Padding policy with the fewest padded tokens, counted over the batch plan."""
    own_padding = start.batch.padding
    if own_padding not in PADDINGS:
        return start
    if start.workload in GENERIC and start.data.mean_tokens is None:
        return start
    padded: dict[str, int] = {}
    for padding in (own_padding, *(p for p in PADDINGS if p != own_padding)):
        tried = changed(start, {"batch.padding": padding, "precision": precisions(start, device)[0]})
        try:
            padded[padding] = bench.request(tried, device).plan.padded_tokens
        except ForerunError as error:
            pool.rejected.append(Reason(about="batch.padding", said=f"batch.padding={padding}: {error}"))
    best = min(padded, key=lambda name: padded[name])
    if padded[best] > padded[own_padding] * (1 - NEGLIGIBLE):
        best = own_padding
    for padding, tokens in padded.items():
        if padding != best:
            pool.rejected.append(reasons.padding(padding, tokens, best, padded[best]))
    if best != own_padding:
        pool.reasons.append(reasons.padding(best, padded[best], own_padding, padded[own_padding]))
    return changed(start, {"batch.padding": best})


def _bases(start: Settings, device: Device, bench: Workbench, pool: CandidatePool) -> list[BestOfClass]:
    """The classes with nothing recomputed, one for each precision and strategy, the best first.

    Where memory limits the micro-batch, the second may be the best once something is recomputed.
    """
    leading: BestOfClass | None = None
    bases: list[BestOfClass] = []
    formats = precisions(start, device)
    for number, precision in enumerate(formats):
        if number and leading is not None and leading.best is not None:
            if leading.best.host_share < HOST_BOUND and device.kind == "cuda":
                pool.rejected.append(reasons.precision_not_tried(precision, formats[0], leading.best, device))
                continue
            if bench.is_out_of_time:
                break
        if leading is not None and leading.best is None and leading.state_bytes > device.memory_bytes:
            break  # the state of training is the same in every mixed precision
        for kind in strategies(start):
            usual = {"precision": precision, "parallel.kind": kind, **recomputations(start)[0]}
            result = _try(changed(start, usual), device, bench, pool)
            if result is not None:
                bases.append(result)
                leading = result if leading is None or _is_better(result, leading) else leading
    return sorted(bases, key=lambda base: base is not leading)


def _is_better(one: BestOfClass, other: BestOfClass) -> bool:
    if one.best is None or other.best is None:
        return one.best is not None or (other.best is None and one.needed_bytes < other.needed_bytes)
    return one.best.training_seconds < other.best.training_seconds * (1 - NEGLIGIBLE)


def _try_recomputing(leading: BestOfClass, device: Device, bench: Workbench, pool: CandidatePool) -> BestOfClass:
    """The leading class, or one that recomputes and so has room for larger micro-batches."""
    start = leading.step_class.settings
    if leading.best is None and leading.state_bytes > device.memory_bytes:
        pool.rejected.append(reasons.state_alone(leading.state_bytes, device))
        return leading
    results = [(recomputations(start)[0], leading)]
    best, slower = leading, []
    for saving in recomputations(start)[1:]:
        floor = max((result.floor for less, result in results if is_leaner(saving, less)), default=0.0)
        if best.best is not None and best.best.step_seconds <= floor * (1 + WORTH_A_TRACE):
            slower.append(saving)
            continue
        if bench.is_out_of_time and best.best is not None:
            break
        # A class whose whole batch is no faster than the best so far cannot win with smaller micro-batches.
        beat = float("inf") if best.best is None else best.best.step_seconds * (1 - NEGLIGIBLE)
        result = _try(changed(start, saving), device, bench, pool, beat)
        if result is None:
            continue
        if result.best is None and best.best is not None and result.floor >= beat:
            pool.classes.remove(result.step_class)
            pool.rejected.append(reasons.slower_in_any_memory(changed(start, saving), result.floor, best.best))
        results.append((saving, result))
        if _is_better(result, best):
            best = result
    if slower and best.best is not None:
        pool.rejected.append(reasons.cannot_be_faster(slower, best.best, leading.floor))
    return best


def _try_leanest(start: Settings, device: Device, bench: Workbench, pool: CandidatePool) -> None:
    """Nothing could be traced as it stands: whether the class that saves most can."""
    _try(changed(start, {"precision": precisions(start, device)[0], **recomputations(start)[-1]}), device, bench, pool)


def _try(
    settings: Settings, device: Device, bench: Workbench, pool: CandidatePool, beat: float = float("inf")
) -> BestOfClass | None:
    try:
        result = best_of_class(settings, device, bench, beat)
    except ForerunError as error:
        pool.rejected.append(reasons.refused(settings, error))
        return None
    pool.estimates.extend(result.step_class.estimates)
    pool.classes.append(result.step_class)
    return result


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
    # Memory grows with the micro-batch, so bisection finds the largest size that fits; sizes[high] never does.
    low, high = -1, len(sizes) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if step_class.at(sizes[middle], batch // sizes[middle]).fits:
            low = middle
        else:
            high = middle
    misfit = step_class.at(sizes[high], batch // sizes[high])
    tried = [step_class.at(n, batch // n) for n in sizes[max(0, low - 1) : low + 1]]
    best = min(tried, key=lambda e: e.step_seconds, default=None)
    return BestOfClass(step_class, best, largest.step_seconds, misfit.state_bytes, misfit.device_bytes)


def _on_cpu(step_class: StepClass, sizes: list[int], batch: int) -> BestOfClass:
    """The fastest of a few sizes; a CPU's caches can favour small ones."""
    own_size = step_class.settings.batch.micro_batch_size
    trial_sizes = sorted({own_size, *sizes[-CPU_SIZES:]} & set(sizes), key=lambda n: n != own_size)
    tried = [step_class.at(n, batch // n) for n in trial_sizes]
    fitting = [e for e in tried if e.fits] or [e for e in [step_class.at(1, batch)] if e.fits]
    best = min(fitting, key=lambda e: e.step_seconds, default=None)
    least = min(tried, key=lambda e: e.device_bytes)
    floor = min(e.step_seconds for e in tried)
    return BestOfClass(step_class, best, floor, least.state_bytes, least.device_bytes)


def _try_other_globals(original: Settings, pool: CandidatePool, bench: Workbench) -> None:
    """The best class with other global batches; the rate and the warm-up follow by rule."""
    best = pool.ranked()[0].settings
    for factor in GLOBAL_FACTORS:
        global_batch = original.global_batch_size * factor
        if bench.is_out_of_time:
            return
        if global_batch != int(global_batch) or global_batch % original.parallel.data_ranks:
            continue
        if original.data.examples and global_batch > original.data.examples:
            continue
        _try(with_global_batch(best, original, int(global_batch)), pool.device, bench, pool)


def _try_compiling(original: Settings, pool: CandidatePool, bench: Workbench) -> None:
    """The best eager candidate compiled: block by block, and as the user had it."""
    if pool.device.kind == "cpu":
        if original.compile != "none":
            pool.reasons.append(reasons.compile_on_cpu(original))
        return
    best = pool.ranked()[0]
    for mode in _compile_modes(original):
        if bench.is_out_of_time:
            return
        settings = changed(best.settings, mode)
        step_class = StepClass(settings, pool.device, bench, [])
        try:
            compiled = step_class.at(best.size, best.settings.batch.gradient_accumulation_steps)
        except ForerunError as error:
            pool.rejected.append(reasons.refused(settings, error))
            continue
        pool.classes.append(step_class)
        compiled = _enlarge(step_class, compiled, bench)
        if run_seconds(compiled) < run_seconds(best) and compiled.step_seconds < best.step_seconds * (1 - NEGLIGIBLE):
            pool.estimates.append(compiled)
        else:
            pool.rejected.append(reasons.compile_does_not_pay(compiled, best))


def _enlarge(step_class: StepClass, compiled: Estimate, bench: Workbench) -> Estimate:
    """Compiled steps keep less: the next larger micro-batches, as long as they fit and are faster."""
    batch = samples_per_device(compiled.settings)
    for size in batch_sizes(compiled.settings, batch):
        if size > compiled.size and not bench.is_out_of_time:
            larger = step_class.at(size, batch // size)
            if not larger.fits or larger.step_seconds >= compiled.step_seconds:
                break
            compiled = larger
    return compiled


def _compile_modes(original: Settings) -> Iterator[dict[str, Any]]:
    yield {"compile": "default", "compile_unit": "blocks"}
    if original.compile != "none" and (original.compile, original.compile_unit) != ("default", "blocks"):
        yield {"compile": original.compile, "compile_unit": original.compile_unit}


def _add_neighbours(original: Settings, pool: CandidatePool, bench: Workbench) -> None:
    """Smaller and larger micro-batches of the best, for the front and for the reasons."""
    best = next((e for e in pool.ranked() if e.settings.compile == "none"), None)
    if best is None or pool.device.kind == "cpu":
        return
    batch = samples_per_device(best.settings)
    sizes = batch_sizes(best.settings, batch)
    step_class = next((c for c in pool.classes if best in c.estimates), None)
    if step_class is None:
        return
    here = sizes.index(best.size)
    near = [sizes[i] for i in (here + 1, here - 1) if 0 <= i < len(sizes)]
    near += [original.batch.micro_batch_size] if original.batch.micro_batch_size in sizes else []
    near += [sizes[i] for i in (here - 2, here - 3) if i >= 0]
    for size in dict.fromkeys(near):
        if bench.is_out_of_time:
            break
        estimate = step_class.at(size, batch // size)
        if estimate not in pool.estimates:
            pool.estimates.append(estimate)
