"""The Python interface: forecast settings, a step of your own, or move a model to a virtual GPU and look."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.data.plan import plan_from_settings
from forerun.errors import InvalidSettings, nearest
from forerun.experience import StepObservation
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.request import ForecastRequest, MeasuredTimes
from forerun.forecasting.shared_traces import SharedTraces
from forerun.forecasting.step_model import model_steps
from forerun.hardware.catalogue import Device, under_cuda
from forerun.records import Forecast
from forerun.runs.registry import (
    load_recipe,
    open_experiment,
    profiles,
    recipe_names,
    target_names,
    trains_own_data,
)
from forerun.settings.load import load_settings, settings_from
from forerun.settings.media import BY_SCRIPT
from forerun.settings.plain import in_short
from forerun.settings.schema import Settings
from forerun.step.generic import GENERIC
from forerun.step.library_versions import as_of_versions, cuda_of, prefers_cudnn
from forerun.trace import Call
from forerun.verify.recalibrate import with_experience

if TYPE_CHECKING:  # imported by the functions that need them: a forecast from kept traces answers in half a second
    from forerun.ledger.store import Ledger
    from forerun.memory.explanation import Explanation
    from forerun.models.footprint import ModelDescription
    from forerun.plan.choose import PlanLimits
    from forerun.plan.cluster_outcome import ClusterPlan
    from forerun.plan.outcome import GpuComparison, Migration, RunPlan, WhatIf
    from forerun.verify.alternatives import Alternative
    from forerun.verify.miss import MissExplanation

Target = Settings | Mapping[str, Any] | str | Path


def forecast(
    target: Target, gpu: str = "a100-40gb", overrides: Sequence[str] = (), ledger: str | None = None
) -> Forecast:
    """Memory, time and cost of a run on `gpu` (a catalogue name, or `cpu` for this machine), before it starts.

    `target` is settings, a mapping of them, a YAML file or a recipe's name; `overrides` are `dotted.path=value`.
    `ledger` is the SQLAlchemy URL of one whose calibration and past runs count; without it nothing is read.

    Raises:
        ForerunError: the settings, the GPU or the model is wrong; see `forerun.errors`.
    """
    device, settings = find_device(gpu), resolve(target, overrides)
    if ledger is None:
        return forecast_settings(settings, device)
    from forerun.ledger.store import open_ledger

    with open_ledger(ledger) as store:
        return forecast_settings(settings, device, ledger=store)


def resolve(target: Target, overrides: Sequence[str] = ()) -> Settings:
    """Settings of a target.

    Raises:
        InvalidSettings: no such file or recipe, or a setting is wrong.
    """
    if isinstance(target, Settings):
        return settings_from(target.model_dump(), overrides) if overrides else target
    if isinstance(target, Mapping):
        return settings_from(target, overrides)
    if not isinstance(target, str | Path):
        raise InvalidSettings(
            f"TARGET: settings, a mapping of them, a file or a recipe's name; found {in_short(target)}."
        )
    if Path(target).suffix.lower() in (".yaml", ".yml", ".json"):  # a file's name, and no recipe's
        return load_settings(Path(target), overrides)
    if str(target) in recipe_names():
        return settings_from(load_recipe(str(target)).SETTINGS.model_dump(), overrides)
    if str(target) in profiles():
        return load_settings(profiles()[str(target)], overrides)
    if not _is_there(target):
        raise InvalidSettings(
            f"TARGET: a recipe's name or a YAML file; found {in_short(str(target))}, which is neither. "
            f"Shipped: {nearest(str(target), target_names())}."
        )
    return load_settings(Path(target), overrides)


def _is_there(target: str | Path) -> bool:
    try:
        return Path(target).exists()
    except (OSError, ValueError):  # a name longer than any file's, or with a NUL character
        return False


def find_device(gpu: str) -> Device:
    """A GPU of the catalogue, or the CPU of this machine under the name `cpu`.

    Raises:
        UnknownDevice: neither.
    """
    if not isinstance(gpu, str):
        raise InvalidSettings(f"gpu: the name of a GPU, or cpu; found {in_short(gpu)}.")
    if gpu.lower() == "cpu":
        from forerun.hardware.detect import detect_cpu

        return detect_cpu().device
    from forerun.hardware.catalogue import device

    return device(gpu)


def forecast_settings(
    settings: Settings,
    device: Device,
    price_per_hour: float | None = None,
    ledger: "Ledger | None" = None,
    timed_calls: dict[Call, float] | None = None,
) -> Forecast:
    """The forecast of checked settings on a device; a ledger adds what was measured there before.

    Calls timed on the CPU are looked up in, and added to, `timed_calls`: forecasts of variants time what they share
    once.
    """
    with _no_cycle_collection():
        request = request_of(settings, device, price_per_hour)
        if ledger is not None:
            request = with_experience(request, ledger)
        return make_forecast(request, model_steps(request, timed_calls))


def forecast_on_cards(
    settings: Settings,
    devices: Sequence[Device],
    price_per_hour: float | None = None,
    ledger: "Ledger | None" = None,
) -> list[Forecast]:
    """The forecast of checked settings on each device: data are opened once, cards that ask alike share traces."""
    with _no_cycle_collection():
        forecasts = []
        for request in requests_of(settings, devices, price_per_hour):
            question = request if ledger is None else with_experience(request, ledger)
            forecasts.append(make_forecast(question, model_steps(question)))
        return forecasts


def explain_settings(
    settings: Settings, device: Device, on_progress: Callable[[str], None] = lambda change: None
) -> "Explanation":
    """Tensors alive at the memory peak of checked settings on a device, and the bytes that each setting would save."""
    from forerun.forecasting.explain import explain_memory

    with _no_cycle_collection():
        return explain_memory(request_of(settings, device, None), on_progress)


def explain_step(
    settings: Settings,
    device: Device,
    observation: StepObservation,
    ledger: "Ledger | None" = None,
    on_progress: Callable[[str], None] = lambda cause: None,
) -> "tuple[Forecast, MissExplanation]":
    """The forecast of checked settings, and what would explain that a user's step was measured otherwise."""
    from forerun.verify.alternatives import OlderCausalLoss
    from forerun.verify.explain_miss import explain_miss

    request = _request_maker(ledger)(settings, device)

    def again(alternative: "Alternative") -> Forecast:
        changed = settings_from(settings.model_dump(), alternative.overrides)
        question = replace(request_of(changed, alternative.device or device, None), correction=request.correction)
        if alternative.has_older_loss:
            question = replace(question, own_workload=OlderCausalLoss())
        return make_forecast(question, model_steps(question))

    with _no_cycle_collection():
        forecast = make_forecast(request, model_steps(request))
        return forecast, explain_miss(forecast, observation, settings, device, again, on_progress)


def plan_settings(
    settings: Settings,
    devices: Sequence[Device],
    ledger: "Ledger | None" = None,
    *,
    limits: "PlanLimits | None" = None,
    allow: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda what: None,
) -> "RunPlan":
    """The settings to run with on the best of `devices`, within `limits`; `allow` widens what may be changed."""
    from forerun.plan.choose import make_plan

    with _no_cycle_collection():
        return make_plan(settings, devices, _request_maker(ledger), limits=limits, allow=allow, on_progress=on_progress)


def plan_cluster_settings(
    settings: Settings,
    device: Device,
    counts: Sequence[int],
    ledger_url: str | None = None,
    *,
    limits: "PlanLimits | None" = None,
    workers: str = "1",
    on_progress: Callable[[str], None] = lambda what: None,
) -> "ClusterPlan":
    """The number of GPUs, of `counts`, and the layout to run with; `workers` is a number of processes, auto or ray.

    Scripts that ask for several processes start them below `if __name__ == "__main__"`.
    """
    from forerun.plan.cluster import make_cluster_plan
    from forerun.plan.fan_out import fan_out

    ask = RequestMaker(ledger_url)
    with _no_cycle_collection(), fan_out(workers) as fan:
        return make_cluster_plan(settings, device, counts, ask, limits=limits, fan=fan, on_progress=on_progress)


@dataclass(frozen=True)
class RequestMaker:
    """Makes requests of settings; goes to other processes as it is."""

    ledger_url: str | None

    def __call__(self, settings: Settings, device: Device) -> ForecastRequest:
        """The request, with what the ledger knows of such runs."""
        request = request_of(settings, device, None)
        if self.ledger_url is None:
            return request
        from forerun.ledger.store import open_ledger

        with open_ledger(self.ledger_url) as ledger:
            return with_experience(request, ledger)


def migrate_settings(
    settings: Settings,
    before: Device,
    after: Device,
    ledger: "Ledger | None" = None,
    *,
    limits: "PlanLimits | None" = None,
    allow: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda what: None,
) -> "Migration":
    """Plans of one run on two GPUs, and what changes between them."""
    from forerun.plan.migrate import make_migration

    with _no_cycle_collection():
        return make_migration(
            settings, before, after, _request_maker(ledger), limits=limits, allow=allow, on_progress=on_progress
        )


def compare_settings(
    settings: Settings,
    devices: Sequence[Device],
    ledger: "Ledger | None" = None,
    *,
    limits: "PlanLimits | None" = None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> "GpuComparison":
    """Time and cost of a run on each of `devices`, and which to take within `limits`."""
    from forerun.forecasting.traces import is_kept
    from forerun.plan.compare import compare_gpus

    with _no_cycle_collection():
        keeps = ledger is None and is_kept(settings) and all(device.kind == "cuda" for device in devices)
        return compare_gpus(
            settings, devices, _request_maker(ledger), limits=limits, keeps=keeps, on_progress=on_progress
        )


def confirm_plan(
    plan: "RunPlan",
    settings: Settings,
    device: Device,
    ledger: "Ledger | None" = None,
    *,
    on_progress: Callable[[str], None] = lambda what: None,
) -> "RunPlan":
    """The plan of `settings` with a few real steps of its best candidates on `device`, the one here."""
    from forerun.verify.confirm import confirm

    def forecast_of(candidate: Settings) -> Forecast:
        return forecast_settings(candidate, device, ledger=ledger)

    return confirm(plan, settings, device, _request_maker(ledger), forecast_of, on_progress)


def what_if_settings(
    settings: Settings,
    device: Device,
    ledger: "Ledger | None" = None,
    on_progress: Callable[[str], None] = lambda what: None,
) -> "list[WhatIf]":
    """Effect of each single change of checked settings on memory and time on a device."""
    from forerun.plan.what_if import what_if

    with _no_cycle_collection():
        return what_if(settings, device, _request_maker(ledger), on_progress)


def trace_sizes_nearby(settings: Settings, device: Device) -> list[str]:
    """Trace from what other batches and lengths are worked out at once; names of what is kept of that now.

    Raises:
        ForerunError: as `forecast_settings`.
    """
    from forerun.forecasting.nearby import trace_nearby

    with _no_cycle_collection():
        return trace_nearby(request_of(settings, device, None))


def _request_maker(ledger: "Ledger | None") -> Callable[[Settings, Device], ForecastRequest]:
    def ask(settings: Settings, device: Device) -> ForecastRequest:
        request = request_of(settings, device, None)
        return request if ledger is None else with_experience(request, ledger)

    return ask


@contextlib.contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Switch Python's cycle collector off: tracing makes many objects and few cycles, and takes a quarter less time.

    Lifetimes of tensors then follow reference counts alone, so that two traces of a step are the same.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # plan/candidates.py freezes objects between traces; they return to the collector here.
        gc.unfreeze()
        if was_on:
            gc.enable()


def describe_model(name: str, gpus: Sequence[str] = (), overrides: Sequence[str] = ()) -> "ModelDescription":
    """Sizes and sources of a model and what it needs at least; on each of `gpus`, forecasts of three ways to train it.

    Raises:
        UnknownModel: no catalogue name, words of one, hub id or folder with a configuration.
        UnknownDevice: no such GPU.
    """
    from forerun.runs.model_description import described

    return described(name, [find_device(gpu) for gpu in gpus], overrides, forecast_settings)


def request_of(settings: Settings, device: Device, price_per_hour: float | None) -> ForecastRequest:
    """The question that checked settings ask of a device: workload, batch plan, and what is known of the run."""
    return next(requests_of(settings, [device], price_per_hour))


def requests_of(
    settings: Settings, devices: Sequence[Device], price_per_hour: float | None
) -> Iterator[ForecastRequest]:  # fmt: skip
    """The question that checked settings ask of each device; their workload and data are opened once."""
    devices = [under_cuda(device, cuda_of(settings.versions)) for device in devices]
    if not prefers_cudnn(settings.versions):
        devices = [device.model_copy(update={"prefers_cudnn": False}) for device in devices]
    is_generic = settings.workload in GENERIC  # no recipe's name, which would be looked for among installed packages
    if trains_own_data(settings) or (not is_generic and settings.workload in recipe_names()):
        experiment, shared = open_experiment(settings, lengths_only=True), SharedTraces()
        for device in devices:
            yield ForecastRequest(
                experiment.settings,
                experiment.workload,
                experiment.plan,
                device,
                price_per_hour,
                experiment.known_times(device),
                shared=shared,
            )
    elif is_generic:
        if settings.recipe:
            raise InvalidSettings(
                f"recipe: is for recipes; found workload={settings.workload!r}. Leave it out, or set workload to one "
                f"of {', '.join(recipe_names())}."
            )
        plan, settings = plan_from_settings(settings), as_of_versions(settings)
        for device in devices:
            yield ForecastRequest(settings, None, plan, device, price_per_hour, MeasuredTimes())
    else:
        names = ", ".join([*GENERIC, *recipe_names()])
        raise InvalidSettings(f"workload: one of {names}; found {settings.workload!r}.{BY_SCRIPT}")
