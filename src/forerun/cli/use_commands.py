"""Commands that use a trained model: `predict`, `generate`, `chat`; and what `serve` does for runs on own data."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, print_json
from forerun.cli.run_commands import RunArgument
from forerun.cli.used_run import PIPE, answers_file, rows_file, used_run
from forerun.errors import InvalidSettings, MissingExtra

if TYPE_CHECKING:
    from forerun.ledger.store import RunRow
    from forerun.own.trained import TrainedModel
    from forerun.runs.trained_recipe import TrainedRecipe
    from forerun.serving.writing import Sampling, Writer

PREDICTED_SCHEMA, GENERATED_SCHEMA = "forerun.predicted/1", "forerun.generated/1"
LOCAL = ("127.0.0.1", "localhost", "::1")
ROW_PATHS = {"vectors": "/v1/embeddings", "masks": "/v1/fill-mask"}
TOKEN_VARIABLE = "FORERUN_SERVE_TOKEN"

RateOption = Annotated[
    float, typer.Option("--rate", min=0, help="Requests a second of one address; 0, as behind a proxy: any number.")
]
NewTokensOption = Annotated[int, typer.Option("--new-tokens", min=1, help="At most so many tokens.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", min=0, max=2, help="0 takes the likeliest token.")]
TopPOption = Annotated[float, typer.Option("--top-p", min=0.01, max=1, help="Draw from tokens with this probability.")]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, max=2**63 - 1, help="Fixes what is drawn.")]
StopOption = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End before this text; repeat.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (predict, generate, chat):
        app.command()(command)


def predict(
    run_id: RunArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Rows as those of data.source, without the answers; `-` reads them.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="FILE", help="File to write: .jsonl, .csv or .tsv; `-` prints JSON lines.")
    ],
    new_tokens: NewTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    repair: Annotated[
        list[str] | None, typer.Option("--repair", metavar="WORD", help="A word of data.repair; repeat.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer every row of a file with a trained model: labels, tags, numbers, vectors, hidden words or text."""
    from forerun.serving.predictions import predict_file, write_predictions

    if as_json and to == PIPE:
        raise InvalidSettings("--to: - prints the answers, and --json another document. Name a file, or leave one out.")
    row = used_run(run_id)
    source = (row.settings.get("data") or {}).get("source")
    with rows_file(file, source) as rows, answers_file(to) as answers:
        if (recipe := _trained_recipe(row, temperature)) is not None:
            result = write_predictions(lambda: recipe.answered_rows(rows, new_tokens, _repairs(repair)), answers)
        else:
            trained = _trained_model(row)
            result = predict_file(
                trained, rows, answers, sampling=_sampling(new_tokens, temperature, top_p, seed, None), name=row.name,
                repair=_repairs(repair),
            )  # fmt: skip
    if as_json:
        print_json({"schema": PREDICTED_SCHEMA, "run_id": row.id, **result.model_dump(mode="json")})
    else:
        without = f", {result.unanswered:,} without an answer" if result.unanswered else ""
        typer.echo(f"{result.rows:,} rows with {', '.join(result.columns)}{without}: {to}", err=to == PIPE)
        for line in result.repairs:
            typer.echo(line, err=True)
        if result.truncated:
            typer.echo(
                f"Rows whose end was left out, as they are longer than the model reads (batch.sequence_length): "
                f"{result.truncated:,}.", err=True,
            )  # fmt: skip


def generate(
    run_id: RunArgument,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="Text to continue, or what to ask; `-` reads it.")
    ] = None,
    new_tokens: NewTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text, or answer one message, with a trained language model."""
    row = used_run(run_id)
    text = sys.stdin.read() if prompt == "-" else prompt or ""
    if (recipe := _trained_recipe(row, temperature)) is not None:
        answer = recipe.text(text, new_tokens)
        if as_json:
            print_json({"schema": GENERATED_SCHEMA, "run_id": row.id, "prompt": text, "text": answer})
        else:
            typer.echo(answer)
        return
    writer = _writer(row)
    if writer.is_chat and not text.strip():
        raise InvalidSettings(
            f"PROMPT: a message for {row.name}, which was trained on chats; found none. Give one, or - to read it from "
            f"the input; forerun chat asks for one after the other."
        )
    ids = writer.chat_ids([{"role": "user", "content": text}]) if writer.is_chat else writer.text_ids(text)
    writing = writer.write(ids, _sampling(new_tokens, temperature, top_p, seed, stop))
    pieces = []
    for piece in writing:
        pieces.append(piece)
        if not as_json:
            typer.echo(piece, nl=False)
    if not as_json:
        typer.echo()
        return
    print_json(
        {
            "schema": GENERATED_SCHEMA, "run_id": row.id, "prompt": text, "text": "".join(pieces),
            "prompt_tokens": writing.prompt_tokens, "new_tokens": writing.new_tokens,
            "finish_reason": writing.finish_reason,
        }
    )  # fmt: skip


def chat(
    run_id: RunArgument,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told first.")
    ] = None,
    new_tokens: NewTokensOption = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    seed: SeedOption = None,
) -> None:
    """Talk to a trained model, line by line: /reset begins anew, /exit or the end of the input leaves."""
    row = used_run(run_id)
    writer = _writer(row)
    start = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    writer.chat_ids([*messages, {"role": "user", "content": "?"}])  # refuses a model without chats before anybody types
    sampling = _sampling(new_tokens, temperature, top_p, seed, None)
    typer.echo(f"{row.name} ({row.id}). /reset begins anew, /exit leaves.", err=True)
    while True:
        typer.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() in ("/exit", "/quit", "/bye"):
            return
        if line.strip() == "/reset":
            messages = list(start)
            continue
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\n")})
        try:
            answer = _say(writer, messages, sampling)
        except InvalidSettings as error:  # the chat is longer than the model
            typer.echo(f"{error} /reset begins anew.", err=True)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _say(writer: "Writer", messages: list[dict[str, str]], sampling: "Sampling") -> str:
    """Print the answer while it comes; Ctrl-C ends the answer, not the chat."""
    pieces = []
    writing = writer.write(writer.chat_ids(messages), sampling)
    try:
        for piece in writing:
            pieces.append(piece)
            typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        writing.cancel()
    typer.echo()
    return "".join(pieces)


def serve_run(row: "RunRow", folder: Path | None, host: str, port: int, token: str | None, rate: float) -> None:
    """Serve a model that was trained on own data, from `folder` or its run's; until stopped.

    `rate` is how many requests a second one address may send; 0 for any number.

    Raises:
        InvalidSettings: the port or the address cannot be had.
        NotSupported: the model's workload is not served.
        MissingExtra: FastAPI or uvicorn is not installed.
    """
    try:
        from forerun.infer.listener import announce, listen, reserve_port
        from forerun.serving.app import TextServiceLimits, make_text_app
    except ImportError as error:
        raise MissingExtra(
            f"serve: needs FastAPI and uvicorn; importing {error.name} failed. Install them with: pip install "
            f"'forerun[serve]'."
        ) from error
    from forerun.own.trained import open_trained
    from forerun.serving.row_model import KINDS, RowModel

    sockets = reserve_port(host, port)  # before the model is read, which takes a while
    trained = open_trained(folder) if folder is not None else _trained_model(row)
    rows = RowModel(trained) if trained.facts.workload in KINDS else None
    writer = None if rows is not None else _writer_of(trained, row.name)
    app = make_text_app(
        row.name, writer=writer, rows=rows, hosts=(host,) if host in LOCAL else None, token=token,
        limits=TextServiceLimits(requests_per_second=rate),
    )  # fmt: skip
    path = ROW_PATHS.get(rows.kind, "/v1/classify") if rows is not None else "/v1/completions"
    path = "/v1/chat/completions" if writer is not None and writer.is_chat else path
    announce(row.name, host, sockets, path)
    listen(app, sockets)


def _trained_recipe(row: "RunRow", temperature: float) -> "TrainedRecipe | None":
    """The trained model where `row` is a recipe's run; None for other runs.

    Raises:
        InvalidSettings: `temperature` is not 0: recipes' models are asked as they were judged.
    """
    from forerun.runs.registry import recipe_names

    if row.workload not in recipe_names():
        return None
    if temperature:
        raise InvalidSettings(
            f"--temperature: models of recipes answer as they were judged, by the likeliest token; found "
            f"{temperature:g}. Leave it out, or use the export."
        )
    from forerun.cli.run_commands import open_settings
    from forerun.hardware.detect import detect
    from forerun.runs.run import run_folder
    from forerun.runs.trained_recipe import open_trained_recipe
    from forerun.settings.load import settings_from

    experiment = open_settings(settings_from(row.settings))
    return open_trained_recipe(row.id, experiment, detect().device, run_folder(row))


def _trained_model(row: "RunRow") -> "TrainedModel":
    from forerun.own.trained import open_trained
    from forerun.runs.run import run_folder

    return open_trained(run_folder(row))


def _writer(row: "RunRow") -> "Writer":
    return _writer_of(_trained_model(row), row.name)


def _writer_of(trained: "TrainedModel", name: str) -> "Writer":
    from forerun.serving.writing import WRITES, writer_of

    if trained.facts.workload not in WRITES:
        raise InvalidSettings(
            f"{name} is a {trained.facts.workload} model, which writes no text; {', '.join(WRITES)} do. Use forerun "
            f"predict for rows."
        )
    return writer_of(trained, name)


def _sampling(
    new_tokens: int, temperature: float, top_p: float, seed: int | None, stop: list[str] | None
) -> "Sampling":
    from forerun.serving.writing import Sampling

    return Sampling(new_tokens, temperature, top_p, tuple(stop or ()), seed)


def _repairs(words: list[str] | None) -> list:  # type: ignore[type-arg]
    from typing import get_args

    from forerun.settings.schema import Repair

    unknown = [word for word in words or [] if word not in get_args(Repair)]
    if unknown:
        raise InvalidSettings(f"--repair: one of {', '.join(get_args(Repair))}; found {unknown[0]!r}.")
    return list(words or [])
