"""What would each single change of the settings do to memory and time? One line each, for `--what-if`.

Every line is a step traced and replayed with that one change; the global batch stays as it is. Memory is what the
device needs at most (conservative), time that of all steps of the run.
"""

from collections.abc import Callable, Iterator

from forerun.errors import ForerunError
from forerun.forecasting.explain import candidate_changes
from forerun.hardware.catalogue import Device
from forerun.plan.candidates import Ask, Estimate, StepClass, Workbench
from forerun.plan.outcome import WhatIf
from forerun.plan.space import PADDINGS, offloading, precisions, recomputations
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings


def what_if(
    original: Settings, device: Device, ask: Ask, on_progress: Callable[[str], None] = lambda change: None
) -> list[WhatIf]:
    """Changes that can be made to `original` on `device`, the fastest first.

    Raises:
        ForerunError: the original settings cannot be traced themselves.
    """
    bench = Workbench(ask, float("inf"))
    on_progress("the given settings")
    now = _estimate(original, device, bench)
    lines = []
    for overrides, changes_method in changes(original, device):
        on_progress(" ".join(overrides))
        try:
            then = _estimate(settings_from(original.model_dump(), overrides), device, bench)
        except ForerunError:
            continue  # not for this model or device
        lines.append(
            WhatIf(
                change=" ".join(overrides),
                more_bytes=then.device_bytes - now.device_bytes,
                time_ratio=then.training_seconds / now.training_seconds,
                device_bytes=then.device_bytes,
                fits=then.fits,
                changes_method=changes_method,
            )
        )
    return sorted(lines, key=lambda line: line.time_ratio)


def _estimate(settings: Settings, device: Device, bench: Workbench) -> Estimate:
    batch = settings.batch
    return StepClass(settings, device, bench, []).at(batch.micro_batch_size, batch.gradient_accumulation_steps)


def changes(original: Settings, device: Device) -> Iterator[tuple[list[str], bool]]:
    """Overrides of each change that `original` leaves open, and whether what is trained changes with it."""
    earlier: set[tuple[str, ...]] = set()
    for overrides, changes_method in [
        *_computed(original, device),
        *((c[1], c[2]) for c in candidate_changes(original)),
    ]:
        if tuple(overrides) not in earlier:
            earlier.add(tuple(overrides))
            yield overrides, changes_method


def _computed(original: Settings, device: Device) -> Iterator[tuple[list[str], bool]]:
    """Changes in how the same updates are computed."""
    for saving in recomputations(original):
        differing = [f"{name}={value}" for name, value in saving.items() if str(getattr(original, name)) != value]
        if len(differing) == 1:
            yield differing, False
    batch = original.batch
    if batch.gradient_accumulation_steps % 2 == 0:
        size, steps = batch.micro_batch_size * 2, batch.gradient_accumulation_steps // 2
        yield [f"batch.micro_batch_size={size}", f"batch.gradient_accumulation_steps={steps}"], False
    for precision in precisions(original, device):
        if precision != original.precision:
            yield [f"precision={precision}"], False
    if device.kind == "cuda" and original.compile == "none":
        yield ["compile=default", "compile_unit=blocks"], False
    if device.kind == "cuda":
        yield from (([f"{name}={value}"], False) for name, value in offloading(original).items())
    if original.model.attention != "auto":
        yield ["model.attention=auto"], False
    if batch.padding in PADDINGS and original.data.mean_tokens is not None:
        yield from (([f"batch.padding={padding}"], False) for padding in PADDINGS if padding != batch.padding)
