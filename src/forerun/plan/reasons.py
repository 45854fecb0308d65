"""Why this and not its neighbours? One line for each choice and each rejection, with the numbers that decided."""

from collections.abc import Mapping, Sequence

from forerun.clock.costs import EFFICIENT_SHARE_OF_FLASH
from forerun.errors import ForerunError
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import CandidatePool, Estimate
from forerun.plan.front import PlanFinalist
from forerun.plan.outcome import Reason, SettingChange
from forerun.plan.space import differences
from forerun.settings.schema import Settings
from forerun.units import TERA, format_bytes, format_percent, format_seconds

FOLLOWS_THE_BATCH = ("optimizer.learning_rate", "schedule.warmup_steps", "schedule.max_steps")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tfloat32", "fp32": "float32"}


def against(choice: Estimate, other: Estimate) -> Reason:
    """Why `other`, which is one step away, was not taken."""
    batches = choice.settings.global_batch_size, other.settings.global_batch_size
    if batches[0] != batches[1]:
        return _against_global(choice, other, batches)
    changes = differences(choice.settings, other.settings)
    label = " ".join(filter(None, map(_label, changes)))
    about = changes[0].path if changes else ""
    if not other.fits:
        has = format_bytes(other.device.memory_bytes)
        text = f"needs {format_bytes(other.device_bytes)}, {other.device.name} has {has}"
    else:
        text = f"needs {format_bytes(other.device_bytes)}, {longer(choice, other)}"
    return Reason(about=about, said=f"{label}: {text}")


def _against_global(choice: Estimate, other: Estimate, batches: tuple[int, int]) -> Reason:
    """Steps of different batches do not compare; runs do."""
    share = other.training_seconds / choice.training_seconds - 1
    times = f"{format_seconds(choice.training_seconds)} → {format_seconds(other.training_seconds)}"
    changes = [c for c in differences(choice.settings, other.settings) if c.path not in FOLLOWS_THE_BATCH]
    label = " ".join(filter(None, map(_label, changes)))
    text = (
        f"global batch {batches[0]} → {batches[1]}, {label}: needs {format_bytes(other.device_bytes)}, the run trains "
        f"{format_percent(abs(share))} {'longer' if share > 0 else 'less'} ({times})"
    )
    return Reason(about="global-batch", said=text)


def longer(choice: Estimate, other: Estimate) -> str:
    """How the step of `other` compares with that of `choice`."""
    share = other.step_seconds / choice.step_seconds - 1
    times = f"{format_seconds(choice.step_seconds)} → {format_seconds(other.step_seconds)}"
    if abs(share) < 5e-4:
        return f"the step takes as long ({format_seconds(choice.step_seconds)})"
    return f"the step takes {format_percent(abs(share))} {'longer' if share > 0 else 'less'} ({times})"


def _label(change: SettingChange) -> str:
    name = change.path.removeprefix("batch.")
    if name == "micro_batch_size":
        return f"{name} {change.old} → {change.new}"
    return "" if name == "gradient_accumulation_steps" else f"{change.path}={change.new}"


def attention(original: Settings, device: Device) -> Reason:
    """Why a named attention kernel is replaced."""
    kernel = original.model.attention
    text = f"model.attention {kernel} → auto: the quickest kernel that {device.name} has for this model"
    if kernel in ("eager", "sdpa:math"):
        length = original.batch.sequence_length
        text += f"; {kernel} stores {length} × {length} scores for each head"
    if kernel == "sdpa:efficient":
        text += f"; the efficient kernel has about {EFFICIENT_SHARE_OF_FLASH:g} of flash's speed"
    return Reason(about="model.attention", said=text)


def implementation(original: Settings) -> Reason:
    """Why a named way to issue the update is replaced."""
    optimizer = original.optimizer
    kind = "fused, one kernel for many tensors" if optimizer.name in ("adamw", "sgd") else "the quickest it has"
    text = f"optimizer.implementation {optimizer.implementation} → auto: for {optimizer.name} that is {kind}"
    return Reason(about="optimizer.implementation", said=text)


def padding(one: str, tokens: int, other: str, other_tokens: int) -> Reason:
    """Padded tokens of an epoch under two policies."""
    share = tokens / other_tokens - 1
    word = "more" if share >= 0 else "fewer"
    text = (
        f"batch.padding={one}: {tokens:,} padded tokens an epoch, {format_percent(abs(share))} {word} than the "
        f"{other_tokens:,} of {other}"
    )
    return Reason(about="batch.padding", said=text)


def precision_not_tried(precision: str, leading: str, best: Estimate, device: Device) -> Reason:
    """Full precision has slower products and larger tensors; its fewer operators help only where the host is late."""
    rates = [device.peak_flops_per_second.get(DTYPES[name[:4]]) for name in (precision, leading)]
    teraflops = [f"{rate / TERA:.3g}" for rate in rates if rate]
    peaks = f"products at {teraflops[0]} instead of {teraflops[1]} TFLOP/s, and " if len(teraflops) == 2 else ""
    waits = format_percent(best.host_share)
    text = f"precision={precision}: {peaks}the GPU waits for launches in {waits} of the step only"
    return Reason(about="precision", said=text)


def state_alone(state_bytes: int, device: Device) -> Reason:
    """Nothing about activations can help."""
    text = (
        f"weights, gradients and optimizer state alone take {format_bytes(state_bytes)}, {device.name} has "
        f"{format_bytes(device.memory_bytes)}: no micro-batch size and no recomputation can help"
    )
    return Reason(about="memory", said=text)


def cannot_be_faster(savings: Sequence[Mapping[str, str]], best: Estimate, floor: float) -> Reason:
    """Classes that are not traced: even with unlimited memory a class that does less takes as long as the best."""
    words = [f"{n}={v}" for saving in savings for n, v in saving.items() if v not in ("none", "full")]
    settings = best.settings
    own = {f"activation_checkpointing={settings.activation_checkpointing}", f"cross_entropy={settings.cross_entropy}"}
    listed = ", ".join(word for word in dict.fromkeys(words) if word not in own)
    text = (
        f"{listed}: cannot be faster; micro_batch_size {best.size} fits without at "
        f"{format_seconds(best.step_seconds)} a step, and with unlimited memory it would take {format_seconds(floor)}"
    )
    return Reason(about="activation_checkpointing", said=text)


def slower_in_any_memory(leaner: Settings, step_seconds: float, best: Estimate) -> Reason:
    """A class whose whole batch at once, memory disregarded, takes as long as the best that fits without it."""
    words = " ".join(c.description for c in differences(best.settings, leaner) if not c.path.startswith("batch."))
    text = (
        f"{words}: the step would take {format_seconds(step_seconds)} with unlimited memory; micro_batch_size "
        f"{best.size} takes {format_seconds(best.step_seconds)} without"
    )
    return Reason(about="activation_checkpointing", said=text)


def refused(settings: Settings, error: ForerunError) -> Reason:
    """A class that this model, workload or version does not offer."""
    parts = [f"precision={settings.precision}"]
    for name in ("activation_checkpointing", "cross_entropy", "compile"):
        value = getattr(settings, name)
        if value not in ("none", "full"):
            parts.append(f"{name}={value}")
    about = parts[-1].partition("=")[0]
    return Reason(about=about, said=f"{' '.join(parts)}: {error}")


def compile_does_not_pay(compiled: Estimate, best: Estimate) -> Reason:
    """The compiled step is not faster, or not by enough for the run."""
    mode = f"compile={compiled.settings.compile} compile_unit={compiled.settings.compile_unit}"
    gain = best.training_seconds - compiled.training_seconds
    saved = f"the run {'saves' if gain > 0 else 'loses'} {format_seconds(abs(gain))}"
    compiling = format_seconds(compiled.compiling_seconds)
    text = f"{mode}: {longer(best, compiled)}; {saved}, compiling takes about {compiling}"
    return Reason(about="compile", said=text)


def compile_on_cpu(original: Settings) -> Reason:
    """Compiling is not searched on a CPU."""
    return Reason(
        about="compile", said=f"compile {original.compile} → none: not searched on a CPU, where it is measured"
    )


def needs_more(pool: CandidatePool) -> list[Reason]:
    """The candidate that needs least memory, for a device on which nothing fits."""
    tried = sorted(pool.tried(), key=lambda e: e.device_bytes)
    if not tried:
        return []
    least, has = tried[0], format_bytes(pool.device.memory_bytes)
    if least.state_bytes > pool.device.memory_bytes:
        return []  # the search says so
    settings = least.settings
    text = (
        f"micro_batch_size {least.size} activation_checkpointing={settings.activation_checkpointing} "
        f"precision={settings.precision}: needs {format_bytes(least.device_bytes)}, {pool.device.name} has {has}"
    )
    return [Reason(about="memory", said=text)]


def for_changes(original: Settings, choice: Estimate, pool: CandidatePool, eager: Estimate | None) -> list[Reason]:
    """Each change of the plan, against the candidate that lacks it where one was worked out."""
    reasons = []
    if eager is not None and choice.settings.compile != "none":
        inner = for_changes(original, eager, pool, None)
        mode = f"compile={choice.settings.compile} compile_unit={choice.settings.compile_unit}"
        return [*inner, Reason(about="compile", said=f"{mode}: {longer(eager, choice)}, {_room(choice)}")]
    for change in differences(original, choice.settings):
        section = change.path
        if section == "batch.gradient_accumulation_steps":
            continue
        if section == "batch.micro_batch_size":
            reasons.append(Reason(about=section, said=_why_size(change, choice, pool)))
        elif section in ("precision", "activation_checkpointing", "cross_entropy", "compile", "parallel.kind"):
            reasons.append(Reason(about=section, said=_why(change, original, choice, pool)))
    return reasons


def _why_size(change: SettingChange, choice: Estimate, pool: CandidatePool) -> str:
    other = _alike(choice, pool, {change.path: change.old})
    text = change.description.removeprefix("batch.")
    if other is not None:
        verdict = longer(other, choice) if other.fits else against(choice, other).said.partition(": ")[2]
        text += f": {'' if other.fits else 'the given size '}{verdict}"
        return text
    return f"{text}: the step takes {format_seconds(choice.step_seconds)} and needs {_room(choice)}"


def _room(estimate: Estimate) -> str:
    return f"{format_bytes(estimate.device_bytes)} of {format_bytes(estimate.device.memory_bytes)}"


def _why(change: SettingChange, original: Settings, choice: Estimate, pool: CandidatePool) -> str:
    other = _alike(choice, pool, {change.path: change.old})
    if other is not None and other.fits:
        return f"{change.description}: {longer(other, choice)}"
    if other is not None:
        return f"{change.description}: without it a step {against(choice, other).said.partition(': ')[2]}"
    device = choice.device
    if change.path == "precision" and original.precision.startswith("bf16") and not device.has_bf16:
        return f"{change.description}: {device.name} has no bfloat16 (compute capability below 8.0)"
    if change.path == "precision":
        peaks = [device.peak_flops_per_second.get(DTYPES[str(p)[:4]], 0) / TERA for p in (change.old, change.new)]
        return f"{change.description}: products at {peaks[1]:.3g} instead of {peaks[0]:.3g} TFLOP/s on {device.name}"
    if change.path in ("activation_checkpointing", "cross_entropy") and change.new in ("none", "full"):
        return f"{change.description}: fits without it, {_room(choice)}, and nothing is computed twice"
    return f"{change.description}: a step of {format_seconds(choice.step_seconds)}, {_room(choice)}"


def _alike(choice: Estimate, pool: CandidatePool, reverted: Mapping[str, object]) -> Estimate | None:
    """The candidate that differs from the choice in `reverted` alone; accumulation follows the micro-batch."""
    for estimate in pool.tried():
        apart = {c.path: c.new for c in differences(choice.settings, estimate.settings)}
        apart.pop("batch.gradient_accumulation_steps", None)
        if apart == reverted:
            return estimate
    return None


def rejected(choice: Estimate, pool: CandidatePool, eager: Estimate | None) -> list[Reason]:
    """Neighbours of the choice that were worked out: of each class the best, of its own class the nearest.

    Those of a compiled candidate are its neighbours before it was compiled.
    """
    if eager is not None and choice.settings.compile != "none":
        before = [r.model_copy(update={"said": f"not compiled, {r.said}"}) for r in rejected(eager, pool, None)]
        return [against(choice, eager), *before]
    reasons = []
    for step_class in pool.classes:
        others = [e for e in step_class.estimates if e is not choice and e.settings != choice.settings]
        if choice in step_class.estimates or any(e.settings == choice.settings for e in step_class.estimates):
            near = sorted(others, key=lambda e: abs(e.size - choice.size))
            larger = [e for e in near if e.size > choice.size][:1]
            smaller = [e for e in near if e.size < choice.size][:1]
            reasons += [against(choice, e) for e in larger + smaller]
            continue
        fitting = [e for e in others if e.fits]
        best = min(fitting, key=lambda e: e.step_seconds) if fitting else min(
            others, key=lambda e: e.device_bytes, default=None
        )  # fmt: skip
        if best is not None and best.settings.compile == "none":
            reasons.append(against(choice, best))
    return reasons


def against_gpu(choice: PlanFinalist, other: PlanFinalist) -> Reason:
    """Why another of the GPUs asked about was not taken."""
    costs = [f"${f.cost:,.2f}" if f.cost is not None else "no price" for f in (other, choice)]
    text = (
        f"{choice.estimate.device.name} rather than {other.estimate.device.name}: {format_seconds(choice.seconds)} "
        f"({costs[1]}) against {format_seconds(other.seconds)} ({costs[0]})"
    )
    return Reason(about="gpu", said=text)
