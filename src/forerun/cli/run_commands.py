"""Commands that train and look back: `train`, `run`, `runs`, `report`, `evaluate`, `export`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import (
    EXIT_CRITERION_FAILED,
    EXIT_INTERRUPTED,
    BadgeOption,
    JsonOption,
    RunArgument,
    SetOption,
    TargetArgument,
    ThreadsOption,
    ledger_url,
    print_json,
    use_threads,
)
from forerun.cli.output import print_view, with_format
from forerun.errors import InvalidSettings, NotSupported

if TYPE_CHECKING:
    from forerun.runs.recipe import Experiment
    from forerun.runs.run import RunResult
    from forerun.settings.schema import Settings

RUN_SCHEMA, RUNS_SCHEMA, EXPORT_SCHEMA = "forerun.run/1", "forerun.runs/1", "forerun.exported/1"
PRUNE_SCHEMA, REBUILD_SCHEMA = "forerun.prune/1", "forerun.rebuild/1"

ResumeOption = Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run, or `last`.")]
LogOption = Annotated[
    list[str] | None, typer.Option("--log", metavar="TRACKER", help="tensorboard, wandb, mlflow or trackio; repeat.")
]
UnsafeOption = Annotated[
    bool, typer.Option("--unsafe", help="Run code that a model wrote even where the kernel cannot shut it in.")
]


class ReportFormat(StrEnum):
    """What a run's report is written as."""

    html = "html"
    markdown = "markdown"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (train, run, evaluate, report, export):
        app.command()(command)
    of_runs = typer.Typer(invoke_without_command=True)
    of_runs.callback()(runs)
    of_runs.command()(prune)
    of_runs.command()(rebuild)
    app.add_typer(of_runs, name="runs")


def run(
    target: TargetArgument,
    overrides: SetOption = None,
    resume: ResumeOption = None,
    trackers: LogOption = None,
    is_unsafe: UnsafeOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast, train, evaluate and verify on the device here. Exit code 4: a criterion failed."""
    use_threads(threads)
    _require_trackers(trackers)
    _finish(_run(_open(target, _with_unsafe(overrides, is_unsafe), resume), resume, trackers, as_json), as_json)


def train(
    target: TargetArgument,
    overrides: SetOption = None,
    resume: ResumeOption = None,
    processes: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Processes on this machine; a lost one is started again.")
    ] = None,
    trackers: LogOption = None,
    is_unsafe: UnsafeOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train on the device here, forecast and verdict included in the ledger; prints the measurement."""
    use_threads(threads)
    _require_trackers(trackers)
    overrides = _with_unsafe(overrides, is_unsafe)
    if processes is not None and processes > 1:
        more = [word for name in trackers or [] for word in ("--log", name)] + (["--json"] if as_json else [])
        raise typer.Exit(_in_processes(target, overrides, resume, more, processes))
    outcome = _run(_open(target, overrides, resume), resume, trackers, as_json)
    if as_json and outcome is not None:
        print_json(outcome.measurement)


def _with_unsafe(overrides: list[str] | None, is_unsafe: bool) -> list[str]:
    """Overrides with the recipe's option that `--unsafe` stands for."""
    return [*(overrides or []), *(["recipe.unsafe=true"] if is_unsafe else [])]


def _in_processes(target: str, overrides: list[str], resume: str | None, more: list[str], processes: int) -> int:
    """Exit code of the same command in several processes."""
    from forerun.api import resolve
    from forerun.train.launch import launch

    several = overrides_for_processes(target, overrides, processes)
    _require_data(resolve(target, several))
    arguments = ["train", target]
    for text in several:
        arguments += ["--set", text]
    arguments += ["--resume", resume] if resume else []
    return launch([*arguments, *more], processes)


def overrides_for_processes(target: str, overrides: list[str], processes: int) -> list[str]:
    """What is set for so many processes: nothing where the layout of the settings has as many, else DDP, or FSDP."""
    from forerun.api import resolve

    if resolve(target, overrides).parallel.world_size == processes:
        return overrides
    is_sharded = any(text.replace(" ", "") == "parallel.kind=fsdp" for text in overrides)
    kind = "fsdp" if is_sharded or resolve(target).parallel.kind == "fsdp" else "ddp"
    return [f"parallel.kind={kind}", *overrides, f"parallel.world_size={processes}"]


def _require_trackers(names: list[str] | None) -> None:
    """Refuse unknown trackers before anything is opened, forecast or entered in the ledger, and in one process only."""
    from forerun.runs.trackers import require_trackers

    require_trackers(names or ())


def _run(experiment: "Experiment", resume: str | None, trackers: list[str] | None, as_json: bool) -> "RunResult | None":
    from forerun.runs.local import run_locally
    from forerun.train.interrupt import Interrupted

    try:
        return run_locally(experiment, ledger_url(), resume=resume, quiet=as_json, trackers=trackers or ())
    except Interrupted as stop:
        raise typer.Exit(EXIT_INTERRUPTED) from stop


@with_format
def evaluate(run_id: RunArgument, is_unsafe: UnsafeOption = False, as_json: JsonOption = False) -> None:
    """Score the model of a run, the best or newest checkpoint, on held-out data, beside the baselines."""

    from forerun.hardware.detect import detect
    from forerun.ledger.store import open_ledger
    from forerun.report.terminal import result_table
    from forerun.runs.run import run_folder, start_training
    from forerun.settings.load import settings_from
    from forerun.train.best import load_judged

    with open_ledger(ledger_url()) as ledger:
        row = ledger.run(run_id)
    settings = settings_from(row.settings, _with_unsafe(None, is_unsafe))
    experiment = open_settings(settings)
    training = start_training(experiment, detect().device, run_folder(row))
    if not load_judged(training.folder, training.step):
        raise InvalidSettings(f"Run {row.id} has no checkpoint in {training.folder}. Resume it, or start a new run.")
    judgement = experiment.baselines(experiment.judge(training.step))
    if as_json:
        print_json({"schema": "forerun.evaluation/1", "run_id": row.id, "metrics": judgement.metrics})
    else:
        print_view(*(result_table(table) for table in judgement.tables))


@with_format
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the latest runs of the ledger; `runs prune` removes checkpoints, `runs rebuild` brings lost rows back."""
    if context.invoked_subcommand is not None:
        return

    from forerun.ledger.store import open_ledger
    from forerun.report.terminal import runs_table

    with open_ledger(ledger_url()) as ledger:
        rows = ledger.runs(limit)
    if as_json:
        print_json({"schema": RUNS_SCHEMA, "runs": [row.model_dump(mode="json") for row in rows]})
    else:
        print_view(runs_table(rows))


@with_format
def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Newest runs that keep their checkpoints.")] = 10,
    days: Annotated[float, typer.Option("--days", min=0, help="Days without a write or read before one goes.")] = 30,
    is_dry: Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would go, in bytes.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Remove checkpoints of old runs below ./runs, and frozen states that nobody reads; by default only says which.

    Best runs, runs that another one names, runs that train, exports, pages and the ledger stay.
    """

    from forerun.ledger.store import open_ledger
    from forerun.report.terminal import result_table
    from forerun.runs.prune import PrunePolicy, bytes_that_go, prune_plan, prune_table, remove
    from forerun.runs.run import RUNS_FOLDER

    with open_ledger(ledger_url()) as ledger:
        items = prune_plan(ledger, RUNS_FOLDER, PrunePolicy(keep, days))
    if not is_dry:
        remove(items)
    if as_json:
        rows = [item.model_dump() for item in items]
        print_json({"schema": PRUNE_SCHEMA, "is_dry_run": is_dry, "bytes_that_go": bytes_that_go(items), "items": rows})
    else:
        print_view(result_table(prune_table(items, is_dry=is_dry)))


def rebuild(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of runs.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Bring runs back into a ledger that was lost or damaged, from what each run keeps in its own folder."""
    from dataclasses import asdict

    from forerun.ledger.store import open_ledger

    with open_ledger(ledger_url()) as ledger:
        back = ledger.rebuild(folder)
    if not back.folders:
        raise InvalidSettings(f"FOLDER: one with folders of runs; found none with rows of a ledger in {folder}.")
    if as_json:
        print_json({"schema": REBUILD_SCHEMA, **asdict(back)})
    else:
        lost = f" {back.lines_lost} lines cannot be read." if back.lines_lost else ""
        typer.echo(f"{back.runs} runs and {back.rows} rows came back from {back.folders} folders.{lost}")


def report(
    run_id: RunArgument,
    to: Annotated[Path | None, typer.Option("--to", help="File to write.")] = None,
    page_format: Annotated[
        ReportFormat,
        typer.Option("--format", help="html: a page in one file; markdown: for a pull request, to stdout or --to."),
    ] = ReportFormat.html,
    badge: BadgeOption = None,
) -> None:
    """Write the page of a run: charts and tables in one file that loads nothing, for the browser and for print."""
    from forerun.ledger.store import open_ledger
    from forerun.report.badge import badge_of
    from forerun.report.markdown import markdown_page
    from forerun.runs.pages import page_content, write_page

    with open_ledger(ledger_url()) as ledger:
        run = ledger.run(run_id).id
        content = page_content(ledger, run)
        if badge is not None:
            badge.write_text(badge_of([content.forecast]), encoding="utf-8")
        if page_format is ReportFormat.html:
            typer.echo(str(write_page(ledger, run, to)))
        elif to is None:
            typer.echo(markdown_page(content))
        else:
            to.write_text(markdown_page(content), encoding="utf-8")
            typer.echo(str(to))


@with_format
def export(
    run_id: RunArgument,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to make; default: export in the run's own.")] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add an adapter to its base: one plain model.")] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write model.onnx too, scored before it counts.")] = False,
    gguf: Annotated[bool, typer.Option("--gguf", help="Write model.gguf too, for llama.cpp and Ollama.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's model for transformers or peft, read it back, score it, and refuse what moved."""

    from forerun.hardware.detect import detect
    from forerun.ledger.store import open_ledger
    from forerun.own.facts import ASSETS, FACTS, how_to_read, read_assets
    from forerun.report.model_card import model_card
    from forerun.report.terminal import result_table
    from forerun.runs.export import Form, export_run, export_tables, in_one_process
    from forerun.runs.pages import page_content
    from forerun.runs.run import run_folder
    from forerun.settings.load import settings_from

    with open_ledger(ledger_url()) as ledger:
        row = ledger.run(run_id)
        content = page_content(ledger, row.id) if ledger.forecast(row.id) is not None else None
    folder = run_folder(row)
    experiment = open_settings(in_one_process(settings_from(row.settings)), folder)
    note = how_to_read(read_assets(folder / ASSETS)[0]) if (folder / ASSETS / FACTS).exists() else ""
    forms: list[Form] = [*(["gguf"] if gguf else []), *(["onnx"] if onnx else [])]  # the second makes weights fp32
    exported = export_run(
        row.id, experiment, detect().device, folder, to or folder / "export", merge=merge, forms=forms,
        card=None if content is None else lambda kind: model_card(content, kind, note),
    )  # fmt: skip
    if as_json:
        print_json({"schema": EXPORT_SCHEMA, **exported.model_dump(mode="json")})
    else:
        print_view(*(result_table(table) for table in export_tables(exported)))


def _open(target: str, overrides: list[str] | None, resume: str | None = None) -> "Experiment":
    from forerun.api import resolve
    from forerun.ledger.store import open_ledger
    from forerun.runs.run import run_folder

    folder = None
    if resume is not None:
        with open_ledger(ledger_url()) as ledger:
            folder = run_folder(ledger.run(resume))
    return open_settings(resolve(target, overrides or ()), folder)


def open_settings(settings: object, run_folder: Path | None = None) -> "Experiment":
    """The experiment (data and evaluation) of settings that name a recipe, or a generic workload and its data;
    `run_folder` is that of a run that goes on or is exported."""
    from forerun.runs.registry import open_experiment
    from forerun.train.interrupt import Interrupted

    try:
        return open_experiment(_require_data(settings), run_folder=run_folder)
    except Interrupted as stop:  # while it made a model to begin with
        typer.echo(f"{stop} The same command goes on from there.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from stop


def _require_data(settings: object) -> "Settings":
    from forerun.runs.registry import recipe_names, trains_own_data
    from forerun.settings.media import MEDIA
    from forerun.settings.schema import Settings

    if not isinstance(settings, Settings) or not (settings.workload in recipe_names() or trains_own_data(settings)):
        if getattr(settings, "workload", None) in MEDIA:
            raise NotSupported(
                f"workload: {getattr(settings, 'workload', None)} is forecast here by its sizes, not trained. Train it "
                f"with your own script; forerun exec forecasts that too."
            )
        raise NotSupported(
            f"data.source: training needs data, which a recipe brings and data.source names; found workload "
            f"{getattr(settings, 'workload', None)!r} without any. Set data.source to a file, a folder or a hub id, or "
            f"take a recipe: {', '.join(recipe_names())}."
        )
    return settings


def _finish(outcome: "RunResult | None", as_json: bool) -> None:
    from forerun.ledger.store import open_ledger
    from forerun.runs.pages import related_tables
    from forerun.verify.compare import failure_line

    if outcome is None:  # one of several ranks, and not the first
        return
    if as_json:
        document = {
            "schema": RUN_SCHEMA,
            "run_id": outcome.run_id,
            "forecast": outcome.forecast.model_dump(mode="json", by_alias=True, exclude={"detail"}),
            "measurement": outcome.measurement.model_dump(mode="json", by_alias=True),
            "verdict": outcome.verdict.model_dump(mode="json", by_alias=True),
        }
        with open_ledger(ledger_url()) as ledger:
            beside = related_tables(ledger, ledger.run(outcome.run_id))
        if beside:
            document["beside"] = [table.model_dump(mode="json") for table in beside]
        print_json(document)
    if not outcome.verdict.passed:
        typer.echo(failure_line(outcome.verdict.criteria), err=True)
        raise typer.Exit(EXIT_CRITERION_FAILED)
