"""A file of rows → a file of rows with the model's answers beside them; any length, in bounded memory.

The new file has every column of the old one and those of the answer, named `predicted_…` where the old one has a column
of that name. It appears under its name when it is whole, and never replaces another. A row with an empty text is an
error, or stays without an answer where `repair` allows `empty-texts`.
"""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from forerun.data.own.columns import Row
from forerun.data.own.repairs import MEANINGS, Repairs
from forerun.data.own.rows import read_own_rows
from forerun.data.own.text_files import is_text_file
from forerun.errors import BadData, FilesNotWritten, InvalidSettings
from forerun.own.trained import TrainedModel
from forerun.records import Record
from forerun.serving.hidden_words import likeliest
from forerun.serving.plain_texts import rows_with_columns
from forerun.serving.questions import Question, question_of, require_columns
from forerun.serving.row_model import KINDS, RowModel
from forerun.serving.writing import Sampling, Writer, writer_of
from forerun.settings.schema import Repair

ROWS_AT_ONCE = 256
"""Rows that are read, answered and written before the next ones."""
NOT_COUNTED = ("tokens", "words", "truncated")
"""Parts of an answer that say nothing of the row."""
ROW_PARTS = ("header", "id", "sentence", "words", "tags")
"""Parts of `data.fields` that say what a row of a file is."""
UNANSWERED: Repair = "empty-texts"
MEANINGS_HERE: Mapping[Repair, str] = {**MEANINGS, UNANSWERED: "writes rows with an empty text without an answer"}
SUFFIXES = (".jsonl", ".csv", ".tsv")
Answers = Callable[[Sequence[Question]], list[Mapping[str, Any]]]


class PredictedFile(Record):
    """What was written."""

    rows: int
    file: str
    columns: list[str]
    """Columns of the answer."""
    unanswered: int = 0
    """Rows with an empty text, which have no answer."""
    truncated: int = 0
    """Rows whose text goes on after the tokens that the model reads."""
    repairs: list[str] = []
    """What was mended or left out, a sentence a kind."""


def predict_file(
    trained: TrainedModel, source: str, to: Path, *, sampling: Sampling, name: str, repair: Sequence[Repair] = ()
) -> PredictedFile:
    """Answer every row of `source` into the new file `to`.

    Raises:
        InvalidSettings: `to` is there, or ends in none of `SUFFIXES`.
        BadData: the file cannot be read, or a row lacks a column.
        NotSupported: the model's workload answers nothing.
        FilesNotWritten: there is no room or no permission.
    """
    truncated: Counter[bool] = Counter()
    repairs = Repairs(tuple(repair), remedy="add --repair {}", meanings=MEANINGS_HERE)
    answered = write_predictions(
        lambda: _answered(trained, source, answers_of_model(trained, sampling, name), repairs, truncated), to
    )
    counts = {"unanswered": repairs.counts[UNANSWERED], "truncated": truncated[True]}
    return answered.model_copy(update={**counts, "repairs": repairs.lines()})


def write_predictions(
    answered: Callable[[], Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]], to: Path
) -> PredictedFile:
    """Write rows with their answers, which `answered` begins to make, into the new file `to`.

    Raises:
        InvalidSettings: `to` is there, or ends in none of `SUFFIXES`.
        FilesNotWritten: there is no room or no permission.
    """
    suffix = to.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidSettings(f"--to: a file ending in {', '.join(SUFFIXES)}; found {to.name!r}. Rename it.")
    if to.exists():
        raise InvalidSettings(f"--to: {to} exists, and predicting would overwrite it. Name another file.")
    rows = answered()
    partial = to.with_name(f"{to.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            result = _write(file, suffix, rows, str(to))
        partial.rename(to)
    except OSError as error:
        raise FilesNotWritten(
            f"--to: predictions could not be written to {to}: {error}. Free space or change permissions, or name "
            f"another file."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return result


def answers_of_model(trained: TrainedModel, sampling: Sampling, name: str) -> Answers:
    """How a trained model answers questions: with labels, vectors, or text.

    Raises:
        NotSupported: it does not, or the rows lack what it reads.
    """
    if trained.facts.workload in KINDS:
        rows = RowModel(trained)
        if rows.kind == "masks":
            return lambda questions: [likeliest(answer) for answer in rows.questions(questions)]
        return rows.questions
    writer = writer_of(trained, name)
    return lambda questions: [{"text": text} for text in writer.write_all(_prompts(writer, questions), sampling)]


def _prompts(writer: Writer, questions: Sequence[Question]) -> list[list[int]]:
    return [
        writer.chat_ids(
            [turn.message for turn in question.messages], json.loads(question.tools) if question.tools else ()
        )
        if question.messages
        else writer.text_ids(question.text)
        for question in questions
    ]


def _answered(
    trained: TrainedModel, source: str, answers: Answers, repairs: Repairs, truncated: Counter[bool]
) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Each row and its answer, of empty values where there is no question."""
    parts = {part: name for part, name in trained.facts.fields.items() if part in ROW_PARTS}
    if is_text_file(Path(source)):
        parts.pop("sentence", None)  # a text is no table of words
    rows = rows_with_columns(read_own_rows(source, repairs=repairs, fields=parts), trained.facts, source)
    numbered = enumerate(rows, start=1)
    keys: list[str] = []
    early: list[Row] = []  # rows before the first answer, by which columns are known
    while chunk := list(itertools.islice(numbered, ROWS_AT_ONCE)):
        if chunk[0][0] == 1:
            require_columns([row for _, row in chunk], trained.facts, source)
        questions = [question_of(row, trained.facts, f"{source}, row {number}", repairs) for number, row in chunk]
        _require_masks(trained, questions, source, chunk[0][0])
        texts = [question for question in questions if question is not None]
        replies = iter(answers(texts) if texts else ())
        for (_, row), question in zip(chunk, questions, strict=True):
            if question is None:
                if keys:
                    yield row, dict.fromkeys(keys)
                else:
                    early.append(row)
                continue
            reply = next(replies)
            truncated[bool(reply.get("truncated"))] += 1
            answer = {key: value for key, value in reply.items() if key not in NOT_COUNTED}
            keys = list(answer)
            yield from ((before, dict.fromkeys(keys)) for before in early)
            early.clear()
            yield row, answer
    if early:
        raise BadData(
            f"{source}: must hold a text to answer; found {len(early):,} rows without one. Check its columns."
        )


def _require_masks(trained: TrainedModel, questions: Sequence[Question | None], source: str, first: int) -> None:
    """Check that every text of a masked language model hides a word.

    Raises:
        BadData: one does not.
    """
    mask = trained.tokenizer.mask_token
    numbered = enumerate(questions, start=first)
    without = (number for number, question in numbered if question is not None and mask not in question.text)
    if trained.facts.workload == "masked-lm" and (number := next(without, None)) is not None:
        raise BadData(
            f"{source}, row {number}: a masked-lm model fills in {mask}; found none in the text. Put {mask} where a "
            f"word is hidden, or leave the row out."
        )


def _write(
    file: TextIO, suffix: str, rows: Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str
) -> PredictedFile:
    count, names, columns = 0, {}, []
    table = None
    for row, answer in rows:
        names = names or {key: f"predicted_{key}" if key in row else key for key in answer}
        renamed = {names[key]: value for key, value in answer.items()}
        columns = columns or list(row)
        _require_same_columns(row, columns, renamed, suffix, count + 1)
        if suffix == ".jsonl":
            file.write(json.dumps({**row, **renamed}, ensure_ascii=False, default=str) + "\n")
        else:
            if table is None:
                table = csv.DictWriter(file, [*row, *renamed], delimiter="," if suffix == ".csv" else "\t")
                table.writeheader()
            table.writerow({key: _cell(value) for key, value in {**row, **renamed}.items()})
        count += 1
    return PredictedFile(rows=count, file=name, columns=list(names.values()))


def _require_same_columns(
    row: Row, columns: Sequence[str], answer: Mapping[str, Any], suffix: str, number: int
) -> None:
    """Check that a row's columns can stand beside those of the first row and the answer's.

    Raises:
        BadData: the answer would be written over a column, or a table would lose one.
    """
    if clash := [name for name in answer if name in row]:
        raise BadData(
            f"row {number}: the same columns as the first row; found {clash[0]!r} too, which is the name of an answer "
            f"there. Give every row that column, or none."
        )
    if suffix != ".jsonl" and (more := [name for name in row if name not in columns]):
        raise BadData(
            f"row {number}: the same columns as the first row, as a table has; found {more[0]!r} too. Name a file "
            f"ending in .jsonl, which keeps it."
        )


def _cell(value: Any) -> Any:
    """A value as a table has it: lists and mappings as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | tuple | dict) else value
