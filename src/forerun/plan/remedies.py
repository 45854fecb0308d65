"""What would help where nothing fits or no candidate keeps the limits: the cheapest change first, with its numbers."""

from collections.abc import Sequence

from forerun.clock.timeline import replay_clock
from forerun.errors import ForerunError
from forerun.forecasting.step_model import choose_costs
from forerun.hardware.catalogue import Device
from forerun.hardware.catalogue import devices as catalogue
from forerun.memory.card import replay_on_card
from forerun.plan.candidates import CandidatePool, Estimate, StepClass, Workbench
from forerun.plan.front import PlanFinalist, cost_of
from forerun.plan.outcome import Remedy
from forerun.plan.space import (
    can_run,
    changed,
    method_ladder,
    offloading,
    precisions,
    recomputations,
    samples_per_device,
)
from forerun.settings.schema import Settings
from forerun.units import format_bytes, format_seconds

SHORTEST = 64
"""Tokens; shorter sequences are not offered."""


def remedies(
    original: Settings, devices: Sequence[Device], finalists: Sequence[PlanFinalist], pools: Sequence[CandidatePool],
    deadline: float | None, budget: float | None, bench: Workbench, has_method: bool,
) -> list[Remedy]:  # fmt: skip
    """Changes that would make the plan work, in the order in which to consider them."""
    if not finalists:
        largest = max(devices, key=lambda device: device.memory_bytes)
        state = min((e.state_bytes for pool in pools for e in pool.tried()), default=0)
        return _to_fit(original, largest, bench, state)
    return _to_keep(original, finalists, deadline, budget, bench, has_method)


def leanest(settings: Settings, device: Device, bench: Workbench) -> Estimate:
    """The candidate that needs least memory: one sample at a time, all recomputed, the loss in chunks.

    Raises:
        ForerunError: it cannot be built or traced.
    """
    lean = changed(settings, {
        "precision": precisions(settings, device)[0], "compile": "none", "compile_unit": "model",
        "model.attention": "auto", "optimizer.implementation": "auto", **recomputations(settings)[-1],
    })  # fmt: skip
    return StepClass(lean, device, bench, []).at(1, samples_per_device(settings))


def _to_fit(original: Settings, device: Device, bench: Workbench, state_bytes: int) -> list[Remedy]:
    """What would make it fit; `state_bytes` of weights, gradients and optimizer state are there whatever the length."""
    offers = []
    has = format_bytes(device.memory_bytes)
    if device.kind == "cuda" and (moved := offloading(original)):
        estimate = _leanest_or_none(changed(original, moved), device, bench)
        if estimate is not None and estimate.fits:
            words = " ".join(f"{path}={value}" for path, value in moved.items())
            needs = f"needs {format_bytes(estimate.device_bytes)} of {has}"
            offers.append(_remedy(words, f"{words}: {needs}; a program of your own trains so, not forerun", estimate))
    for name, changes in method_ladder(original, device):
        estimate = _leanest_or_none(changed(original, changes), device, bench)
        if estimate is not None and estimate.fits:
            words = " ".join(f"{path}={value}" for path, value in changes.items())
            text = f"{name} (--allow method; {words}): needs {format_bytes(estimate.device_bytes)} of {has}"
            offers.append(_remedy(words, text, estimate))
            break
    shorter = original.batch.sequence_length // 2
    while shorter >= SHORTEST and state_bytes <= device.memory_bytes:
        settings = changed(original, {"batch.sequence_length": shorter, "data.mean_tokens": _cut(original, shorter)})
        estimate = _leanest_or_none(settings, device, bench)
        if estimate is None or estimate.state_bytes > device.memory_bytes:
            break
        if estimate.fits:
            change = f"batch.sequence_length={shorter}"
            offers.append(_remedy(change, f"{change}: needs {format_bytes(estimate.device_bytes)} of {has}", estimate))
            break
        shorter //= 2
    least = max(device.memory_bytes, state_bytes)
    return [*offers, *_larger_gpus(original, least, bench)]


def _cut(original: Settings, length: int) -> float | None:
    return None if original.data.mean_tokens is None else min(original.data.mean_tokens, length)


def _larger_gpus(original: Settings, least: int, bench: Workbench) -> list[Remedy]:
    """The cheapest and the smallest card of the catalogue on which the leanest settings fit."""
    larger = [d for d in catalogue() if d.memory_bytes > least and d.is_offered]
    offers: dict[str, Remedy] = {}
    by_price = sorted((d for d in larger if d.price_per_hour), key=lambda d: d.price_per_hour or 0.0)
    for word, ordered in (("cheapest", by_price), ("smallest", sorted(larger, key=lambda d: d.memory_bytes))):
        for gpu in ordered:
            estimate = _leanest_or_none(original, gpu, bench)
            if estimate is None or not estimate.fits:
                continue
            price = "" if gpu.price_per_hour is None else f", ${gpu.price_per_hour:.2f} an hour"
            text = (
                f"--gpu {gpu.name}, the {word} on which it fits{price}: needs {format_bytes(estimate.device_bytes)} of "
                f"{format_bytes(gpu.memory_bytes)} at micro_batch_size 1 with everything recomputed"
            )
            offers.setdefault(gpu.name, _remedy(f"--gpu {gpu.name}", text, estimate))
            break
    return list(offers.values())


def _leanest_or_none(settings: Settings, device: Device, bench: Workbench) -> Estimate | None:
    try:
        return leanest(settings, device, bench)
    except ForerunError:
        return None  # not for this model or device


def _remedy(change: str, text: str, estimate: Estimate) -> Remedy:
    cost = cost_of(estimate, estimate.training_seconds)
    return Remedy(
        change=change, said=text, device_bytes=estimate.device_bytes, run_seconds=estimate.training_seconds, cost=cost
    )  # fmt: skip


def _to_keep(
    original: Settings, finalists: Sequence[PlanFinalist], deadline: float | None, budget: float | None,
    bench: Workbench, has_method: bool,
) -> list[Remedy]:  # fmt: skip
    """Another GPU, more of them, fewer epochs, or what the limit would have to be."""
    fastest = min(finalists, key=lambda f: f.seconds)
    offers = []
    others = sorted(_elsewhere(fastest, bench), key=lambda pair: pair[1])
    keeping = [
        (gpu, seconds, cost) for gpu, seconds in others
        if (deadline is None or seconds <= deadline)
        and ((cost := cost_of_run(gpu, seconds, original)) is not None or budget is None)
        and (budget is None or (cost is not None and cost <= budget))
    ]  # fmt: skip
    if keeping:
        gpu, seconds, cost = min(keeping, key=lambda row: (row[2] is None, row[2] or row[1]))
        offers.append(_on_gpu(gpu, seconds, cost, "keeps the limits with the plan's settings"))
    elif others and deadline is not None:
        gpu, seconds = others[0]
        offers.append(_on_gpu(gpu, seconds, cost_of_run(gpu, seconds, original), "the fastest of the catalogue"))
    if deadline is not None and fastest.seconds > deadline:
        rest = fastest.seconds - fastest.forecast.run.phases.training_seconds
        if deadline > rest:
            count = -(-fastest.forecast.run.phases.training_seconds // (deadline - rest))
            name = fastest.estimate.device.name
            text = f"{count:.0f} devices of {name} at least (taken as perfectly parallel, not forecast)"
            offers.append(Remedy(change=f"parallel.kind=ddp parallel.world_size={count:.0f}", said=text))
        text = f"--deadline {format_seconds(fastest.seconds)}: what {fastest.estimate.device.name} needs"
        offers.append(Remedy(change="--deadline", said=text, run_seconds=fastest.seconds))
    costs = [f.cost for f in finalists if f.cost is not None]
    if budget is not None and costs and min(costs) > budget:
        text = f"--budget {min(costs):.2f}: the cheapest run that fits"
        offers.append(Remedy(change="--budget", said=text, cost=min(costs)))
    if budget is not None and not costs:
        offers.append(Remedy(change="--gpu", said="no price is known for the GPUs asked about; name one that has one"))
    return offers


def cost_of_run(gpu: Device, seconds: float, settings: Settings) -> float | None:
    """Dollars of a run on `gpu`; None where no price is known."""
    from forerun.units import HOUR

    return None if gpu.price_per_hour is None else gpu.price_per_hour * seconds / HOUR * settings.parallel.world_size


def _on_gpu(gpu: Device, seconds: float, cost: float | None, why: str) -> Remedy:
    dollars = "no price known" if cost is None else f"${cost:,.2f}"
    text = f"--gpu {gpu.name}: {format_seconds(seconds)}, {dollars}; {why}"
    return Remedy(change=f"--gpu {gpu.name}", said=text, run_seconds=seconds, cost=cost)


def _elsewhere(fastest: PlanFinalist, bench: Workbench) -> list[tuple[Device, float]]:
    """Run seconds on the other GPUs of the catalogue: the plan's step as traced, replayed on each that can run it."""
    settings, here = fastest.estimate.settings, fastest.estimate.device
    if here.kind != "cuda" or not bench.traces:
        return []
    batch = settings.batch
    request = bench.request(settings, here)
    step_class = StepClass(settings, here, bench, [])
    trace = step_class.trace_at(batch.micro_batch_size, batch.gradient_accumulation_steps)
    base = replay_clock(trace, choose_costs(here, [trace], request.calibration)).seconds
    rest = fastest.seconds - fastest.forecast.run.phases.training_seconds
    runs = []
    for gpu in catalogue():
        if gpu.name == here.name or not can_run(settings, gpu):
            continue
        if not replay_on_card(trace, gpu).fits:
            continue
        ratio = replay_clock(trace, choose_costs(gpu, [trace])).seconds / base
        runs.append((gpu, fastest.forecast.run.phases.training_seconds * ratio + rest))
    return runs
