"""One line for each choice and each rejected neighbour, with the numbers that decided."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forerun.clock.costs import EFFICIENT_SHARE_OF_FLASH
from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Estimate
from forerun.plan.outcome import Reason, SettingChange
from forerun.plan.space import differences
from forerun.settings.schema import Settings
from forerun.units import TERA, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from forerun.plan.front import PlanFinalist
    from forerun.plan.search import Found

FOLLOWS_THE_BATCH = ("optimizer.learning_rate", "schedule.warmup_steps", "schedule.max_steps")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tfloat32", "fp32": "float32"}


def against(chosen: Estimate, other: Estimate) -> Reason:
    """Why `other`, which is one step away, was not taken."""
    batches = chosen.settings.global_batch_size, other.settings.global_batch_size
    if batches[0] != batches[1]:
        return _against_global(chosen, other, batches)
    changes = differences(chosen.settings, other.settings)
    label = " ".join(filter(None, map(_label, changes)))
    about = changes[0].path if changes else ""
    if not other.fits:
        has = format_bytes(other.device.memory_bytes)
        said = f"needs {format_bytes(other.device_bytes)}, {other.device.name} has {has}"
    else:
        said = f"needs {format_bytes(other.device_bytes)}, {longer(chosen, other)}"
    return Reason(about=about, said=f"{label}: {said}")


def _against_global(chosen: Estimate, other: Estimate, batches: tuple[int, int]) -> Reason:
    """Steps of different batches do not compare; runs do."""
    share = other.training_seconds / chosen.training_seconds - 1
    times = f"{format_seconds(chosen.training_seconds)} → {format_seconds(other.training_seconds)}"
    changes = [c for c in differences(chosen.settings, other.settings) if c.path not in FOLLOWS_THE_BATCH]
    label = " ".join(filter(None, map(_label, changes)))
    said = (
        f"global batch {batches[0]} → {batches[1]}, {label}: needs {format_bytes(other.device_bytes)}, the run trains "
        f"{format_percent(abs(share))} {'longer' if share > 0 else 'less'} ({times})"
    )
    return Reason(about="global-batch", said=said)


def longer(chosen: Estimate, other: Estimate) -> str:
    """How the step of `other` compares with that of `chosen`."""
    share = other.step_seconds / chosen.step_seconds - 1
    times = f"{format_seconds(chosen.step_seconds)} → {format_seconds(other.step_seconds)}"
    if abs(share) < 5e-4:
        return f"the step takes as long ({format_seconds(chosen.step_seconds)})"
    return f"the step takes {format_percent(abs(share))} {'longer' if share > 0 else 'less'} ({times})"


def _label(change: SettingChange) -> str:
    name = change.path.removeprefix("batch.")
    if name == "micro_batch_size":
        return f"{name} {change.old} → {change.new}"
    return "" if name == "gradient_accumulation_steps" else f"{change.path}={change.new}"


def attention(given: Settings, device: Device) -> Reason:
    """Why a named attention kernel is replaced."""
    kernel = given.model.attention
    said = f"model.attention {kernel} → auto: the quickest kernel that {device.name} has for this model"
    if kernel in ("eager", "math"):
        length = given.batch.sequence_length
        said += f"; {kernel} stores {length} × {length} scores for each head"
    if kernel == "efficient":
        said += f"; the efficient kernel has about {EFFICIENT_SHARE_OF_FLASH:g} of flash's speed"
    return Reason(about="model.attention", said=said)


def implementation(given: Settings) -> Reason:
    """Why a named way to issue the update is replaced."""
    optimizer = given.optimizer
    kind = "fused, one kernel for many tensors" if optimizer.name in ("adamw", "sgd") else "the quickest it has"
    said = f"optimizer.implementation {optimizer.implementation} → auto: for {optimizer.name} that is {kind}"
    return Reason(about="optimizer.implementation", said=said)


def padding(one: str, tokens: int, other: str, other_tokens: int) -> Reason:
    """Padded tokens of an epoch under two policies."""
    share = tokens / other_tokens - 1
    word = "more" if share >= 0 else "fewer"
    said = (
        f"batch.padding={one}: {tokens:,} padded tokens an epoch, {format_percent(abs(share))} {word} than the "
        f"{other_tokens:,} of {other}"
    )
    return Reason(about="batch.padding", said=said)


def precision_not_tried(precision: str, leading: str, best: Estimate, device: Device) -> Reason:
    """Full precision has slower products and larger tensors; its fewer operators help only where the host is late."""
    rates = [device.peak_flops_per_second.get(DTYPES[name[:4]]) for name in (precision, leading)]
    known = [f"{rate / TERA:.3g}" for rate in rates if rate]
    peaks = f"products at {known[0]} instead of {known[1]} TFLOP/s, and " if len(known) == 2 else ""
    waits = format_percent(best.host_share)
    said = f"precision={precision}: {peaks}the GPU waits for launches in {waits} of the step only"
    return Reason(about="precision", said=said)


def state_alone(state_bytes: int, device: Device) -> Reason:
    """Nothing about activations can help."""
    said = (
        f"weights, gradients and optimizer state alone take {format_bytes(state_bytes)}, {device.name} has "
        f"{format_bytes(device.memory_bytes)}: no micro-batch size and no recomputation can help"
    )
    return Reason(about="memory", said=said)


def cannot_be_faster(savings: Sequence[Mapping[str, str]], best: Estimate, floor: float) -> Reason:
    """Classes that are not traced: even with unlimited memory a class that does less takes as long as the best."""
    words = [f"{n}={v}" for saving in savings for n, v in saving.items() if v not in ("none", "full")]
    chosen = best.settings
    own = {f"activation_checkpointing={chosen.activation_checkpointing}", f"cross_entropy={chosen.cross_entropy}"}
    listed = ", ".join(word for word in dict.fromkeys(words) if word not in own)
    said = (
        f"{listed}: cannot be faster; micro_batch_size {best.size} fits without at "
        f"{format_seconds(best.step_seconds)} a step, and with unlimited memory it would take {format_seconds(floor)}"
    )
    return Reason(about="activation_checkpointing", said=said)


def slower_in_any_memory(made: Settings, step_seconds: float, best: Estimate) -> Reason:
    """A class whose whole batch at once, memory disregarded, takes as long as the best that fits without it."""
    words = " ".join(c.said for c in differences(best.settings, made) if not c.path.startswith("batch."))
    said = (
        f"{words}: the step would take {format_seconds(step_seconds)} with unlimited memory; micro_batch_size "
        f"{best.size} takes {format_seconds(best.step_seconds)} without"
    )
    return Reason(about="activation_checkpointing", said=said)


def refused(settings: Settings, error: ForerunError) -> Reason:
    """A class that this model, workload or version does not offer."""
    parts = [f"precision={settings.precision}"]
    for name in ("activation_checkpointing", "cross_entropy", "compile"):
        value = getattr(settings, name)
        if value not in ("none", "full"):
            parts.append(f"{name}={value}")
    about = parts[-1].partition("=")[0]
    return Reason(about=about, said=f"{' '.join(parts)}: {error}")


def compile_does_not_pay(made: Estimate, best: Estimate) -> Reason:
    """The compiled step is not faster, or not by enough for the run."""
    mode = f"compile={made.settings.compile} compile_unit={made.settings.compile_unit}"
    gain = best.training_seconds - made.training_seconds
    saved = f"the run {'saves' if gain > 0 else 'loses'} {format_seconds(abs(gain))}"
    taken = format_seconds(made.compiling_seconds)
    said = f"{mode}: {longer(best, made)}; {saved}, compiling takes about {taken}"
    return Reason(about="compile", said=said)


def compile_on_cpu(given: Settings) -> Reason:
    """Compiling is not searched on a CPU."""
    return Reason(about="compile", said=f"compile {given.compile} → none: not searched on a CPU, where it is measured")


def needs_more(found: "Found") -> list[Reason]:
    """For a device on which nothing fits: the candidate that needs least, by precision and recomputation."""
    tried = sorted(found.tried(), key=lambda e: e.device_bytes)
    if not tried:
        return []
    least, has = tried[0], format_bytes(found.device.memory_bytes)
    if least.state_bytes > found.device.memory_bytes:
        return []  # the search says so
    settings = least.settings
    said = (
        f"micro_batch_size {least.size} activation_checkpointing={settings.activation_checkpointing} "
        f"precision={settings.precision}: needs {format_bytes(least.device_bytes)}, {found.device.name} has {has}"
    )
    return [Reason(about="memory", said=said)]


def for_changes(given: Settings, chosen: Estimate, found: "Found", eager: Estimate | None) -> list[Reason]:
    """Each change of the plan, against the candidate that lacks it where one was worked out."""
    written = []
    if eager is not None and chosen.settings.compile != "none":
        inner = for_changes(given, eager, found, None)
        mode = f"compile={chosen.settings.compile} compile_unit={chosen.settings.compile_unit}"
        return [*inner, Reason(about="compile", said=f"{mode}: {longer(eager, chosen)}, {_room(chosen)}")]
    for change in differences(given, chosen.settings):
        section = change.path
        if section == "batch.gradient_accumulation_steps":
            continue
        if section == "batch.micro_batch_size":
            written.append(Reason(about=section, said=_why_size(change, chosen, found)))
        elif section in ("precision", "activation_checkpointing", "cross_entropy", "compile", "parallel.kind"):
            written.append(Reason(about=section, said=_why(change, given, chosen, found)))
    return written


def _why_size(change: SettingChange, chosen: Estimate, found: "Found") -> str:
    other = _alike(chosen, found, {change.path: change.old})
    said = change.said.removeprefix("batch.")
    if other is not None:
        verdict = longer(other, chosen) if other.fits else against(chosen, other).said.partition(": ")[2]
        said += f": {'' if other.fits else 'the given size '}{verdict}"
        return said
    return f"{said}: the step takes {format_seconds(chosen.step_seconds)} and needs {_room(chosen)}"


def _room(estimate: Estimate) -> str:
    return f"{format_bytes(estimate.device_bytes)} of {format_bytes(estimate.device.memory_bytes)}"


def _why(change: SettingChange, given: Settings, chosen: Estimate, found: "Found") -> str:
    other = _alike(chosen, found, {change.path: change.old})
    if other is not None and other.fits:
        return f"{change.said}: {longer(other, chosen)}"
    if other is not None:
        return f"{change.said}: without it a step {against(chosen, other).said.partition(': ')[2]}"
    device = chosen.device
    if change.path == "precision" and given.precision.startswith("bf16") and not device.has_bf16:
        return f"{change.said}: {device.name} has no bfloat16 (compute capability below 8.0)"
    if change.path == "precision":
        peaks = [device.peak_flops_per_second.get(DTYPES[str(p)[:4]], 0) / TERA for p in (change.old, change.new)]
        return f"{change.said}: products at {peaks[1]:.3g} instead of {peaks[0]:.3g} TFLOP/s on {device.name}"
    if change.path in ("activation_checkpointing", "cross_entropy") and change.new in ("none", "full"):
        return f"{change.said}: fits without it, {_room(chosen)}, and nothing is computed twice"
    return f"{change.said}: a step of {format_seconds(chosen.step_seconds)}, {_room(chosen)}"


def _alike(chosen: Estimate, found: "Found", reverted: Mapping[str, object]) -> Estimate | None:
    """The candidate that differs from the chosen one in just this."""
    for estimate in found.tried():
        apart = {c.path: c.new for c in differences(chosen.settings, estimate.settings)}
        apart.pop("batch.gradient_accumulation_steps", None)
        if apart == reverted:
            return estimate
    return None


def rejected(chosen: Estimate, found: "Found", eager: Estimate | None) -> list[Reason]:
    """Neighbours of the chosen candidate that were worked out: of each class the best, of its own class the nearest.

    Those of a compiled candidate are its neighbours before it was compiled.
    """
    if eager is not None and chosen.settings.compile != "none":
        before = [r.model_copy(update={"said": f"not compiled, {r.said}"}) for r in rejected(eager, found, None)]
        return [against(chosen, eager), *before]
    written = []
    for step_class in found.classes:
        others = [e for e in step_class.known if e is not chosen and e.settings != chosen.settings]
        if chosen in step_class.known or any(e.settings == chosen.settings for e in step_class.known):
            near = sorted(others, key=lambda e: abs(e.size - chosen.size))
            larger = [e for e in near if e.size > chosen.size][:1]
            smaller = [e for e in near if e.size < chosen.size][:1]
            written += [against(chosen, e) for e in larger + smaller]
            continue
        fitting = [e for e in others if e.fits]
        best = min(fitting, key=lambda e: e.step_seconds) if fitting else min(
            others, key=lambda e: e.device_bytes, default=None
        )  # fmt: skip
        if best is not None and best.settings.compile == "none":
            written.append(against(chosen, best))
    return written


def against_gpu(chosen: "PlanFinalist", other: "PlanFinalist") -> Reason:
    """Why another of the GPUs asked about was not taken."""
    costs = [f"${f.cost:,.2f}" if f.cost is not None else "no price" for f in (other, chosen)]
    said = (
        f"{chosen.estimate.device.name} rather than {other.estimate.device.name}: {format_seconds(chosen.seconds)} "
        f"({costs[1]}) against {format_seconds(other.seconds)} ({costs[0]})"
    )
    return Reason(about="gpu", said=said)
