"""`serve`: a trained detector behind HTTP on this machine; `monitor`: what it has answered since."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, ledger_url, print_json
from forerun.cli.run_commands import RunArgument, open_settings
from forerun.cli.use_commands import LOCAL, TOKEN_VARIABLE, RateOption, serve_run
from forerun.cli.used_run import used_run
from forerun.current_work import work
from forerun.errors import InvalidSettings, MissingExtra
from forerun.recipes.code_detector.embedding.commands import EmbeddingOption

if TYPE_CHECKING:
    from forerun.ledger.store import RunRow
    from forerun.recipes.code_detector.embedding.vectors import FileVectors
    from forerun.recipes.code_detector.service.serving import ServedDetector
    from forerun.recipes.code_detector.service.store import PredictionStore

STORE_FILE = "predictions.sqlite"
MONITOR_SCHEMA = "forerun.monitor/1"


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (serve, monitor):
        app.command()(command)


def serve(
    run_id: RunArgument,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000,
    keep_code: Annotated[
        bool, typer.Option("--keep-code", help="Store the code of requests too, for retraining.")
    ] = False,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0, help="Older predictions are deleted at the start.")
    ] = 90,
    no_store: Annotated[bool, typer.Option("--no-store", help="Remember nothing.")] = False,
    rate: RateOption = 50.0,
    embedding: EmbeddingOption = None,
) -> None:
    """Serve a run: own data by OpenAI's paths, a detector with its page. FORERUN_SERVE_TOKEN: a token for all."""
    from rich.console import Console

    from forerun.runs.registry import recipe_names

    token = os.environ.get(TOKEN_VARIABLE)
    if host not in LOCAL and not token:
        raise InvalidSettings(
            f"--host: {host} can be reached by others, so it wants a token. Set {TOKEN_VARIABLE}, or use 127.0.0.1."
        )
    row = used_run(run_id)
    if row.workload not in recipe_names():
        serve_run(row, None, host, port, token, rate)
        return
    with work("reading the detector, and making what compares files"):
        detector = _detector(row)
        trained = _embedding(row, embedding)
    store = None if no_store else _store(row, keep_code=keep_code)
    err = Console(stderr=True)
    if store is not None:
        deleted_count = store.forget_before(keep_days)
        file = _folder(row) / STORE_FILE
        err.print(f"Predictions go to {file}; {deleted_count} older than {keep_days:g} days deleted.")
    for sentence in detector.card.full_statement:
        err.print(f"- {sentence}")
    _listen(host, port, detector=detector, token=token, store=store, embedding=trained, rate=rate)


def _listen(
    host: str,
    port: int,
    *,
    detector: "ServedDetector",
    token: str | None,
    store: "PredictionStore | None",
    embedding: "FileVectors",
    rate: float,
) -> None:
    try:
        from forerun.infer.listener import announce, listen, reserve_port
        from forerun.recipes.code_detector.service.app import ServiceLimits, make_app
    except ImportError as error:
        raise MissingExtra(
            f"serve: needs FastAPI and uvicorn; importing {error.name} failed. Install them with: pip install "
            f"'forerun[serve]'."
        ) from error
    hosts = (host,) if host in LOCAL else None  # others call it by names that are not known here, with a token
    limits = ServiceLimits(requests_per_second=rate)
    app = make_app(detector, limits=limits, token=token, store=store, embedding=embedding, hosts=hosts)
    sockets = reserve_port(host, port)
    announce("Detector", host, sockets)
    listen(app, sockets)


def monitor(
    run_id: RunArgument,
    days: Annotated[float | None, typer.Option("--days", min=0, help="Look at the last days only.")] = None,
    edge_cases: Annotated[
        Path | None, typer.Option("--edge-cases", help="Write cases worth learning from: a new file of JSON lines.")
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", metavar="RUN", help="Another run, side by side, before it replaces this.")
    ] = None,
    forget_before: Annotated[
        float | None, typer.Option("--forget-before", metavar="DAYS", min=0, help="Delete what is older.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="PREDICTION", help="Delete all on the file of a prediction.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a served detector has answered: drift, feedback, edge cases; and deletion."""
    from rich.console import Console

    from forerun.recipes.code_detector.service.drift import drift_report, releases, write_edge_cases
    from forerun.recipes.code_detector.service.monitoring import drift_tables
    from forerun.report.terminal import result_table

    row = _row(run_id)
    store = _store(row, keep_code=False)
    deleted = (store.forget_before(forget_before) if forget_before is not None else 0) + (
        store.forget(forget) if forget else 0
    )
    detector = _detector(row)
    predictions = store.predictions(days)
    report = drift_report(predictions, detector.card)
    other = None if against is None else _row(against)
    if other is not None and (_folder(other) / STORE_FILE).exists():  # what the other has answered, if it was served
        more = releases(_store(other, keep_code=False).predictions(days))
        report = report.model_copy(update={"releases": [*report.releases, *more]})
    edge_case_count = write_edge_cases(predictions, detector.card, edge_cases) if edge_cases else None
    tables = drift_tables(report)
    document = {
        "schema": MONITOR_SCHEMA, "run_id": row.id, "deleted": deleted, "written": edge_case_count,
        **report.model_dump(mode="json"),
    }  # fmt: skip
    if other is not None:
        from forerun.recipes.code_detector.service.promotion import side_by_side

        table, figures = side_by_side(detector, _detector(other), predictions)
        tables.append(table)
        document["against"] = figures
    if as_json:
        print_json(document)
        return
    console = Console()
    for table in tables:
        console.print(result_table(table))
    if deleted or edge_case_count is not None:
        console.print(f"{deleted} predictions deleted; {edge_case_count or 0} edge cases written.")


def _row(run_id: str) -> "RunRow":
    from forerun.ledger.store import open_ledger

    with open_ledger(ledger_url()) as ledger:
        return ledger.run(run_id)


def _folder(row: "RunRow") -> Path:
    from forerun.runs.run import run_folder

    return run_folder(row)


def _store(row: "RunRow", *, keep_code: bool) -> "PredictionStore":
    from forerun.recipes.code_detector.service.store import PredictionStore

    folder = _folder(row)
    folder.mkdir(parents=True, exist_ok=True)
    return PredictionStore(f"sqlite:///{folder / STORE_FILE}", keep_code=keep_code)


def _detector(row: "RunRow") -> "ServedDetector":
    """The detector of a run's export; the run is exported first where it was not."""
    from rich.console import Console

    from forerun.hardware.detect import detect
    from forerun.recipes.code_detector.service.serving import open_detector
    from forerun.runs.export import export_run
    from forerun.settings.load import settings_from

    folder = _folder(row) / "export"
    if not folder.exists():
        Console(stderr=True).print(f"Exporting run {row.id}: what is served is read back and scored first.")
        export_run(
            row.id, open_settings(settings_from(row.settings)), detect().device, _folder(row), folder, merge=False
        )
    return open_detector(folder)


def _embedding(row: "RunRow", path: Path | None) -> "FileVectors":
    """The embedding at `path`, or the run's own, which is trained on the shipped rows where there is none."""
    from rich.console import Console

    from forerun.recipes.code_detector.embedding.training import SHIPPED_EPOCHS, make_embedding, task_files
    from forerun.recipes.code_detector.embedding.vectors import read_embedding, write_embedding

    folder = path or _folder(row) / "embedding"
    if path is None and not folder.exists():
        Console(stderr=True).print("Training the similarity embedding on the shipped rows, once. See forerun embed.")
        vectors = make_embedding(task_files(None), "the shipped rows", epochs=SHIPPED_EPOCHS)
        write_embedding(vectors.model, vectors.card, folder)
    return read_embedding(folder)
