"""`forerun forecast`: memory, time and cost of a run, on one GPU or several side by side."""

from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import (
    EXIT_DOES_NOT_FIT,
    NOT_IN_DOCUMENT,
    BadgeOption,
    CloudOption,
    GpuOption,
    JsonOption,
    SetOption,
    TargetArgument,
    ThreadsOption,
    WhatIfOption,
    at_prices_of,
    gpu_names,
    ledger_if_any,
    print_json,
    uncollected,
    use_threads,
    usual_gpu,
)
from forerun.cli.output import print_view, with_format
from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from forerun.memory.explanation import Explanation
    from forerun.plan.outcome import WhatIf
    from forerun.records import Forecast

COMPARISON_SCHEMA = "forerun.comparison/1"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="forecast")(forecast)


@with_format
def forecast(
    target: TargetArgument,
    gpu: GpuOption = None,
    overrides: SetOption = None,
    price: Annotated[float | None, typer.Option("--price", help="Price per hour of one device, in dollars.")] = None,
    cloud: CloudOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what is alive at the memory peak and what each setting would save.")
    ] = False,
    what_if: WhatIfOption = False,
    threads: ThreadsOption = None,
    versions: Annotated[
        str | None,
        typer.Option("--versions", metavar="NAME=VERSION,…", help="Libraries of the run: transformers=4.44,peft=0.12."),
    ] = None,
    badge: BadgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast memory, time and cost of a run before it starts. Exit code 3: it does not fit."""
    use_threads(threads)
    with uncollected():
        from forerun.api import explain_settings, find_device, forecast_on_cards, resolve, what_if_settings
        from forerun.forecasting.apart import only_forecasts
        from forerun.settings.load import settings_from

    devices = at_prices_of(cloud, price, [find_device(name) for name in gpu_names(gpu, default=usual_gpu)])
    only_forecasts()
    settings = resolve(target, overrides or ())
    if versions is not None:
        settings = settings_from(settings.model_dump() | {"versions": versions_of(versions)})
    with ledger_if_any([device.name for device in devices]) as ledger:
        forecasts = forecast_on_cards(settings, devices, price, ledger)
        what_ifs = [
            what_if_settings(settings, device, ledger, _say_trying)
            for device in devices if what_if
        ]  # fmt: skip
    explanations = []
    if explain:
        explanations = [explain_settings(settings, d, _say_trying) for d in devices]
    _show(settings.name, forecasts, explanations, what_ifs, as_json)
    if badge is not None:
        from forerun.report.badge import badge_of

        badge.write_text(badge_of(forecasts), encoding="utf-8")
    if not any(f.fits for f in forecasts):
        raise typer.Exit(EXIT_DOES_NOT_FIT)


def _say_trying(change: object) -> None:
    from rich.console import Console

    Console(stderr=True).print(f"trying {change}")


def versions_of(text: str) -> dict[str, str]:
    """Versions by library of `--versions`; as text, since 4.50 is no number.

    Raises:
        InvalidSettings: a part of it is no NAME=VERSION.
    """
    versions = {}
    for part in text.split(","):
        name, sign, version = (piece.strip() for piece in part.partition("="))
        if not (name and sign and version):
            raise InvalidSettings(
                f"--versions: NAME=VERSION, comma-separated; found {part.strip()!r}. Write transformers=4.44,peft=0.12."
            )
        versions[name] = version
    return versions


def _show(
    name: str, forecasts: "list[Forecast]", explanations: "list[Explanation]", what_ifs: "list[list[WhatIf]]",
    as_json: bool,
) -> None:  # fmt: skip
    """Print each forecast, why its memory is what it is, and what changes would do."""
    if as_json:
        documents = [f.model_dump(mode="json", by_alias=True, exclude=NOT_IN_DOCUMENT) for f in forecasts]
        for document, explanation in zip(documents, explanations, strict=False):
            document["explanation"] = explanation.model_dump(mode="json")
        for document, effects in zip(documents, what_ifs, strict=False):
            document["what_if"] = [line.model_dump(mode="json") for line in effects]
        print_json(documents[0] if len(documents) == 1 else {"schema": COMPARISON_SCHEMA, "forecasts": documents})
    else:
        from rich.console import Group
        from rich.text import Text

        from forerun.report.explanation import explanation_tables
        from forerun.report.plan import what_if_lines
        from forerun.report.terminal import forecast_comparison, forecast_table

        view = forecast_table(forecasts[0], name) if len(forecasts) == 1 else forecast_comparison(forecasts)
        print_view(
            view,
            *(explanation_tables(why, forecast.gpu) for forecast, why in zip(forecasts, explanations, strict=False)),
            *(
                Group(Text(f"\n{forecast.gpu}"), *what_if_lines(effects))
                for forecast, effects in zip(forecasts, what_ifs, strict=False)
            ),
        )
