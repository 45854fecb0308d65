"""`similar`: which of these files are alike, with the lines; `embed`: train what finds solutions that share no code."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli.options import JsonOption, print_json
from forerun.errors import BadData, InvalidSettings

if TYPE_CHECKING:
    from forerun.recipes.code_detector.embedding.nearest import NearPair
    from forerun.recipes.code_detector.embedding.vectors import FileVectors
    from forerun.recipes.code_detector.similarity.compare import SourceFile
    from forerun.report.tables import ResultTable

SIMILAR_SCHEMA, EMBED_SCHEMA = "forerun.similar/1", "forerun.embed/1"
ENDINGS = {".py": "python", ".java": "java", ".cpp": "cpp", ".cc": "cpp", ".cxx": "cpp", ".hpp": "cpp", ".h": "cpp"}
NO_EMBEDDING = "none"
"""Value of --embedding for words and syntax alone."""
EMBEDDING_FOLDER = Path("runs/embedding")
EmbeddingOption = Annotated[
    Path | None, typer.Option("--embedding", metavar="FOLDER", help="An embedding that forerun embed made.")
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (similar, embed):
        app.command()(command)


def similar(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Files, or folders of them.")],
    base: Annotated[list[Path] | None, typer.Option("--base", help="Code that was handed out; repeat.")] = None,
    query: Annotated[Path | None, typer.Option("--query", help="Only pairs with this file.")] = None,
    embedding: Annotated[
        Path | None,
        typer.Option("--embedding", metavar="FOLDER|none", help="What forerun embed made; default: runs/embedding."),
    ] = None,
    pair_limit: Annotated[int, typer.Option("--shown", min=1, help="Pairs to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Compare files with one another: shared words and syntax, learned likeness, and the lines of each."""
    from forerun.recipes.code_detector.embedding.tables import similar_tables
    from forerun.recipes.code_detector.embedding.usual import usual_embedding
    from forerun.recipes.code_detector.embedding.vectors import read_embedding
    from forerun.recipes.code_detector.service.comparing import STATEMENT
    from forerun.recipes.code_detector.similarity.cohort import compare_all
    from forerun.recipes.code_detector.similarity.compare import Sizes

    files, handed_out = _sources(paths if query is None else [query, *paths]), _sources(base or [])
    trained = None
    if str(embedding) != NO_EMBEDDING:
        trained = usual_embedding() if embedding is None else read_embedding(embedding)
    everything = len(files) * (len(files) - 1) // 2
    report = compare_all(files, sizes=Sizes(), base=handed_out, pair_limit=everything if query else pair_limit)
    if query is not None:
        own = files[0].name
        best = [pair for pair in report.best if own in (pair.comparison.a, pair.comparison.b)][:pair_limit]
        report = report.model_copy(update={"best": best})
    nearest = None if trained is None else _nearest(files, handed_out, trained, pair_limit, 0 if query else None)
    if as_json:
        near = None if nearest is None else [pair.model_dump(mode="json") for pair in nearest]
        print_json(
            {"schema": SIMILAR_SCHEMA, **report.model_dump(mode="json"), "nearest": near, "statement": list(STATEMENT)}
        )
        return
    _show(similar_tables(report, nearest, None if trained is None else trained.card), STATEMENT)


def embed(
    data: Annotated[
        Path | None, typer.Option("--data", help="JSON lines with code, language and task; default: the shipped rows.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder to make.")] = EMBEDDING_FOLDER,
    epochs: Annotated[int, typer.Option("--epochs", min=0)] = 6,
    minilm: Annotated[bool, typer.Option("--minilm", help="MiniLM's vectors as a part of the input.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train the similarity embedding by supervised contrast over tasks, for similar and serve."""
    from rich.console import Console

    from forerun.recipes.code_detector.embedding.training import make_embedding, task_files
    from forerun.recipes.code_detector.embedding.vectors import write_embedding

    if to.exists():
        raise InvalidSettings(f"--to: {to} exists, and would be overwritten. Name another folder.")
    err = Console(stderr=True)

    def on_progress(epoch: int, loss: float, floor: float, score: float) -> None:
        err.print(f"epoch {epoch}: loss {loss:.3f} (floor {floor:.3f}), validation MAP@R {score:.3f}", highlight=False)

    embedding = make_embedding(
        task_files(data),
        "the shipped rows" if data is None else data.name,
        epochs=epochs,
        minilm=minilm,
        on_progress=on_progress,
    )
    card = embedding.card
    write_embedding(embedding.model, card, to)
    if as_json:
        figures = card.model_dump(mode="json", exclude={"unrelated"})
        print_json({"schema": EMBED_SCHEMA, "folder": str(to), **figures})
    else:
        Console().print(
            f"{to}: {card.tasks:,} tasks of {card.data}; validation MAP@R {card.map_at_r_before:.3f} "
            f"before, {card.map_at_r:.3f} after {card.epochs} epochs.", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _sources(paths: list[Path]) -> "list[SourceFile]":
    """Files of a known language, named from the folder that holds them all; those of folders by their endings.

    Raises:
        BadData: a file cannot be read, or has an unknown ending.
    """
    from forerun.recipes.code_detector.similarity.compare import SourceFile

    languages: dict[Path, str] = {}
    for path in (each.resolve() for each in paths):
        if path.is_dir():
            languages |= {each: ENDINGS[each.suffix] for each in sorted(path.rglob("*")) if each.suffix in ENDINGS}
        elif path.suffix.lower() not in ENDINGS:
            raise BadData(f"{path}: the ending says the language; found {path.suffix!r}. Known: {', '.join(ENDINGS)}.")
        else:
            languages[path] = ENDINGS[path.suffix.lower()]
    files, parents = [], [str(path.parent) for path in languages]
    root = Path(os.path.commonpath(parents)) if parents else Path()
    for path, language in languages.items():
        try:
            files.append(
                SourceFile(
                    str(path.resolve().relative_to(root)), path.read_text(encoding="utf-8", errors="replace"), language
                )
            )
        except OSError as error:
            raise BadData(f"{path}: cannot be read: {error.strerror}. Check the path.") from error
    return files


def _nearest(
    files: "list[SourceFile]", base: "list[SourceFile]", trained: "FileVectors", pair_limit: int, query: int | None
) -> "list[NearPair]":
    from forerun.recipes.code_detector.embedding.nearest import nearest_pairs
    from forerun.recipes.code_detector.similarity.compare import Sizes, base_code

    sizes = Sizes()
    return nearest_pairs(trained.embed_sources(files, sizes, base_code(base, sizes)), trained, pair_limit, query)


def _show(tables: "list[ResultTable]", statement: tuple[str, ...]) -> None:
    from rich.console import Console

    from forerun.report.terminal import result_table

    console = Console()
    for table in tables:
        console.print(result_table(table))
    for sentence in statement:
        console.print(f"- {sentence}", soft_wrap=True)
