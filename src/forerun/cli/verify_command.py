"""`forerun verify`: a finished run, or a step that the user measured elsewhere, beside its forecast."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import (
    EXIT_CRITERION_FAILED,
    GpuOption,
    JsonOption,
    SetOption,
    gpu_names,
    ledger_if_any,
    ledger_url,
    print_json,
    usual_gpu,
)
from forerun.cli.output import print_view, with_format
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.experience import StepObservation
    from forerun.records import Forecast
    from forerun.verify.miss import MissExplanation


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="verify")(verify)


@with_format
def verify(
    target: Annotated[
        str | None, typer.Argument(metavar="RUN|TARGET", help="A run's id or `last`; with --measured, settings.")
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option("--measured", metavar="step=TIME,peak=BYTES", help="Your own log: step=0.54s,peak=18.2GiB."),
    ] = None,
    forecast_file: Annotated[
        Path | None, typer.Option("--forecast", metavar="FILE", help="A forecast's --json in place of TARGET.")
    ] = None,
    gpu: GpuOption = None,
    overrides: SetOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the measured step, for the next forecast.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare forecast and measurement, and say what explains a miss. Exit code 4: a criterion failed."""
    if measured:
        _explain(target, measured, forecast_file, gpu, overrides or [], keep, as_json)
        return
    options = {"--forecast": forecast_file, "--gpu": gpu, "--set": overrides, "--keep": keep}
    extra = [name for name, value in options.items() if value]
    if extra or target is None:
        what = f"{extra[0]} goes with --measured" if extra else "verify wants a run, or --measured with settings"
        raise InvalidSettings(
            f"{what}; found no --measured. Example: forerun verify run.yaml --measured step=0.54s,peak=18.2GiB."
        )
    _verify_run(target, as_json)


def _verify_run(run_id: str, as_json: bool) -> None:

    from forerun.ledger.store import open_ledger
    from forerun.report.terminal import verdict_table
    from forerun.runs.registry import criteria_of
    from forerun.settings.load import settings_from
    from forerun.verify.compare import failure_line
    from forerun.verify.compare import verify as compare

    with open_ledger(ledger_url()) as ledger:
        row = ledger.run(run_id)
        forecast, measurement = ledger.forecast(row.id), ledger.measurement(row.id)
        if forecast is None or measurement is None:
            missing = "forecast" if forecast is None else "measurement"
            raise InvalidSettings(
                f"Run {row.id} is {row.state} and has no {missing}. Finish it with --resume {row.id}."
            )
        verdict = compare(row.id, forecast, measurement, criteria_of(row.workload, settings_from(row.settings)))
        ledger.record_verdict(row.id, verdict)
    if as_json:
        print_json(verdict)
    else:
        print_view(verdict_table(verdict))
    if not verdict.passed:
        typer.echo(failure_line(verdict.criteria), err=True)
        raise typer.Exit(EXIT_CRITERION_FAILED)


def _explain(
    target: str | None, texts: list[str], forecast_file: Path | None, gpu: list[str] | None, overrides: list[str],
    keep: bool, as_json: bool,
) -> None:  # fmt: skip

    from forerun.report.miss import miss_view
    from forerun.verify.measured_step import observation_of

    observation = observation_of(texts)
    if keep and observation.seconds is None:
        raise InvalidSettings(
            "--keep teaches the next forecast a step's time; found --measured without step. Add step=TIME."
        )
    if (target is None) == (forecast_file is None):
        raise InvalidSettings(
            "--measured wants the settings that ran, or --forecast FILE with the forecast of a program; found "
            f"{'neither' if target is None else 'both'}. Example: forerun verify run.yaml --measured {texts[0]}."
        )
    if forecast_file is not None and overrides:
        raise InvalidSettings("--set changes settings; found it with --forecast. Leave it out, or give settings.")
    if target is not None:
        explanation = _of_settings(target, overrides, gpu, observation, keep)
    else:
        assert forecast_file is not None
        explanation = _of_document(forecast_file, gpu, observation, keep)
    if as_json:
        print_json(explanation)
    else:
        print_view(miss_view(explanation))


def _of_settings(
    target: str, overrides: list[str], gpu: list[str] | None, observation: "StepObservation", keep: bool
) -> "MissExplanation":
    from rich.console import Console

    from forerun.api import explain_step, find_device, resolve

    settings, device = resolve(target, overrides), find_device(_one_gpu(gpu) or usual_gpu())
    log = Console(stderr=True).print
    with ledger_if_any() as ledger:
        forecast, explanation = explain_step(
            settings, device, observation, ledger, lambda cause: log(f"trying: {cause}", markup=False)
        )
    return _kept_in_ledger(settings.model_dump(mode="json"), forecast, explanation) if keep else explanation


def _of_document(
    file: Path, gpu: list[str] | None, observation: "StepObservation", keep: bool
) -> "MissExplanation":  # fmt: skip
    from forerun.verify.explain_miss import explain_miss
    from forerun.verify.measured_step import forecast_in

    forecast = forecast_in(file, _one_gpu(gpu))
    if forecast.step.seconds.expected <= 0 and observation.seconds is not None:
        raise InvalidSettings(
            f"--forecast {file} has no time: its program ended before an optimizer step. Give --measured without step."
        )
    explanation = explain_miss(forecast, observation)
    script = getattr(forecast, "script", None)
    if not keep:
        return explanation
    if script is None:
        raise InvalidSettings(
            f"--keep wants what ran: settings, or the forecast of a program; found {file}, which has neither settings "
            f"nor command. Give the settings as TARGET."
        )
    return _kept_in_ledger({"command": script.command}, forecast, explanation)


def _kept_in_ledger(
    settings: dict[str, object], forecast: "Forecast", explanation: "MissExplanation"
) -> "MissExplanation":  # fmt: skip
    from forerun.ledger.store import open_ledger

    with open_ledger(ledger_url()) as ledger:
        ledger.record_observation(settings, forecast, explanation.observation)
    return explanation.model_copy(update={"is_kept": True})


def _one_gpu(gpu: list[str] | None) -> str | None:
    names = gpu_names(gpu, default="")
    if len(names) > 1:
        raise InvalidSettings(f"--measured is of one GPU; found --gpu {','.join(names)}. Name the one that ran.")
    return names[0] or None
