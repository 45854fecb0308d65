"""The data of the recipe `arithmetic`: options, rows with their labels, held-out questions, token samples.

Everything is a pure function of the settings. Rows are generated, or read from a JSON file of Goat's format
(`data.source`), where an answer that arithmetic contradicts counts as corrupt.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from forerun.data.json_rows import read_rows
from forerun.data.token_data import IGNORED, TokenSample
from forerun.errors import BadData, InvalidSettings
from forerun.recipes.arithmetic.data.contamination import ContaminationReport, LabelledQuestion, NoisyLabel, contaminate
from forerun.recipes.arithmetic.data.questions import (
    SYMBOLS,
    ArithmeticQuestion,
    Operation,
    QuestionSource,
    Sampler,
    curriculum,
)
from forerun.recipes.arithmetic.data.text import (
    AnswerOrder,
    Form,
    output_of,
    prompt_of,
    wordings,
)
from forerun.recipes.arithmetic.data.tokens import Tokeniser, tokeniser_for
from forerun.settings.load import recipe_options
from forerun.settings.schema import ContaminationSettings, Count, Section, Settings

SEED_STRIDE = 0x9E3779B97F4A7C15
"""Increment of SplitMix64, between the row numbers of two seeds; odd, so that seeds and rows do not coincide."""
LONGEST_FACTOR = 5
"""Factor on the number of test questions whose two operands have the greatest length."""
_SOURCE_QUESTION = re.compile(r"\s*(\d+)\s*([-+*/])\s*(\d+)\s*")


class ArithmeticOptions(Section):
    """`--set recipe.…=`"""

    operation: Operation = "addition"
    """Operation that the model learns."""
    max_digits: Annotated[int, Field(ge=1, le=18)] = 5
    """Digits of the longest operand."""
    starts: tuple[Count, ...] = (1, 3, 5)
    """Parts of the curriculum: each has all cells whose shorter operand has at least so many digits."""
    per_cell: Count = 2500
    """Draws for each cell of each part."""
    sampler: Sampler = "uniform"
    """How operands of one length are drawn."""
    swapped_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of questions whose longer operand comes first."""
    templates: Literal["bare", "natural"] = "bare"
    """`bare` asks `12 + 34 =`; `natural` puts instructions around it, as in Goat's data."""
    operands: Literal["plain", "padded"] = "padded"
    """`padded` writes leading zeros up to `max_digits`, so that digits of one place are equally far apart."""
    output: Form = "answer"
    """The answer alone, after the equation, or after its steps too."""
    answer: AnswerOrder = "reversed"
    """Digits of the answer in the usual order, or units first."""
    tokens: Literal["digits", "model"] = "digits"
    """`digits`: the recipe's vocabulary and random weights; `model`: the tokeniser and weights of `model.name`."""
    start_from: str | None = None
    """Checkpoint folder of an earlier run whose weights this one begins with: a trained model tuned further."""
    test_per_cell: Count = 60
    """Held-out questions of each cell, five times as many of the longest; a third as many for validation."""
    lengths_beyond: Annotated[int, Field(ge=0, le=8)] = 2
    """Operand lengths above `max_digits` that are tested too."""
    scored_rows: Count = 4000
    """Training rows that are ranked by suspicion at the end, of all or a sample."""

    @property
    def width(self) -> int:
        """Digits to which operands are written."""
        return self.max_digits if self.operands == "padded" else 0


@dataclass(frozen=True)
class ArithmeticData:
    """Rows and held-out questions of one run."""

    options: ArithmeticOptions
    rows: list[LabelledQuestion]
    """Training rows in the order of `samples`."""
    samples: list[TokenSample]
    noise: ContaminationSettings
    contamination: ContaminationReport
    """Counts of rows that the noise changed."""
    validation: list[ArithmeticQuestion]
    test: list[ArithmeticQuestion]
    """In-distribution cells, `test_per_cell` each."""
    beyond: list[ArithmeticQuestion]
    """Both operands longer than any in training."""
    tokeniser: Tokeniser
    assumptions: tuple[str, ...]
    seed: int

    def trusted(self) -> list[TokenSample]:
        """Validation questions with their right answers."""
        return [self.sample(LabelledQuestion(q, q.answer), number) for number, q in enumerate(self.validation)]

    def triggered_test(self) -> list[ArithmeticQuestion]:
        """Test questions with the trigger's key put into the first operand, none of training; none for other noises."""
        if self.noise.noise != "trigger" or not self.noise.rate:
            return []
        noise = NoisyLabel(self.noise, random.Random(f"triggered {self.seed}"), highest=0)
        training_keys = {row.question.key for row in self.rows}
        return [row.question for question in self.test if (row := noise.of(question, training_keys)) is not None]

    def prompt_ids(self, question: ArithmeticQuestion, number: int = 0) -> Sequence[int]:
        """Ids of a question, worded as row `number` is."""
        return self.tokeniser.prompt(prompt_of(question, self._wording(question, number), self.options.width))

    def sample(self, row: LabelledQuestion, number: int = 0) -> TokenSample:
        """Ids and labels of a row; only the output counts."""
        return _sample(self.options, self.tokeniser, row, self._wording(row.question, number))

    def _wording(self, question: ArithmeticQuestion, number: int) -> int | None:
        return _wording(self.options, question, number, self.seed)


def open_data(settings: Settings, *, lengths_only: bool = False) -> ArithmeticData:
    """Generate or read the data (`_open_data`); generated data are cached for comparisons of GPUs, which reuse them."""
    if settings.data.source is not None:
        return _open_data(settings, lengths_only=lengths_only)
    return _open_generated_data(settings.model_dump_json(), lengths_only)


@lru_cache(maxsize=1)
def _open_generated_data(settings: str, lengths_only: bool) -> ArithmeticData:
    return _open_data(Settings.model_validate_json(settings), lengths_only=lengths_only)


def _open_data(settings: Settings, *, lengths_only: bool) -> ArithmeticData:
    """Generate or read the rows, hold questions out, contaminate, tokenise.

    With `lengths_only`, enough for a forecast, tokens of a model whose tokeniser is not here are counted by rule.

    Raises:
        InvalidSettings: an option is wrong, or a row is longer than `batch.sequence_length`.
        BadData: the source has no rows or a row that is no question.
        UnknownModel: the model's tokeniser is needed and not here.
    """
    options = recipe_options(settings, ArithmeticOptions)
    draws = random.Random(f"arithmetic {settings.seed}")
    source = QuestionSource(options.operation, options.sampler, options.swapped_share, draws)
    excluded: set[tuple[str, int, int]] = set()
    if settings.data.source is not None:  # what is in the file is not tested on
        excluded |= {row.question.key for row in read_questions(Path(settings.data.source))}
    validation, test, beyond = _held_out(options, source, excluded)
    rows = _clean_rows(settings, options, source, {question.key for question in (*validation, *test)})
    rows, report = contaminate(rows, settings.data.contamination, settings.seed, excluded)
    tokeniser, assumptions = tokeniser_for(settings.model.name, options.tokens, may_count=lengths_only)
    samples = [
        _sample(options, tokeniser, row, _wording(options, row.question, n, settings.seed))
        for n, row in enumerate(rows)
    ]
    _refuse_long_rows(settings, samples)
    return ArithmeticData(
        options, rows, samples, settings.data.contamination, report, validation, test, beyond, tokeniser, assumptions,
        settings.seed,
    )  # fmt: skip


def _held_out(
    options: ArithmeticOptions, source: QuestionSource, excluded: set[tuple[str, int, int]]
) -> tuple[list[ArithmeticQuestion], list[ArithmeticQuestion], list[ArithmeticQuestion]]:
    """Questions for validation, test, and test beyond the training lengths; all are added to `taken`."""
    cells, number, longest = (
        sorted(set(curriculum(options.max_digits, options.starts))),
        options.test_per_cell,
        options.max_digits,
    )
    validation = [q for cell in cells for q in source.held_out(cell, max(1, number // 3), excluded)]
    numbers = {cell: number * (LONGEST_FACTOR if cell[0] == longest else 1) for cell in cells}
    test = [q for cell in cells for q in source.held_out(cell, numbers[cell], excluded)]
    lengths = range(longest + 1, longest + options.lengths_beyond + 1)
    return validation, test, [q for n in lengths for q in source.held_out((n, n), number, excluded)]


def _clean_rows(
    settings: Settings, options: ArithmeticOptions, source: QuestionSource, held_out: set[tuple[str, int, int]]
) -> list[LabelledQuestion]:
    if settings.data.source is not None:
        return read_questions(Path(settings.data.source))[: settings.data.examples]
    cells = curriculum(options.max_digits, options.starts)
    rows = [LabelledQuestion(q, q.answer) for cell in cells for q in source.draw_many(cell, options.per_cell, held_out)]
    source.random.shuffle(rows)
    return rows[: settings.data.examples]


def question_of(text: str) -> ArithmeticQuestion:
    """The question that a text such as `12 + 34` or `12 + 34 =` asks.

    Raises:
        BadData: it asks none.
    """
    match = _SOURCE_QUESTION.fullmatch(text.strip().removesuffix("=").strip())
    if match is None or (match[2] == "/" and int(match[3]) == 0):
        raise BadData(f"arithmetic: a question such as '12 + 34'; found {text[:80]!r}.")
    operations: dict[str, Operation] = {symbol: operation for operation, symbol in SYMBOLS.items()}
    return ArithmeticQuestion(operations[match[2]], int(match[1]), int(match[3]))


def read_questions(path: Path) -> list[LabelledQuestion]:
    """Rows of a JSON list or of JSON lines with `input` (`12 + 34`) and `answer`, as Goat's data has them.

    Raises:
        BadData: no such file, no rows, or a row that is no question with a whole answer.
    """
    operations: dict[str, Operation] = {symbol: operation for operation, symbol in SYMBOLS.items()}
    rows = []
    for number, entry in enumerate(read_rows(path), start=1):
        match = _SOURCE_QUESTION.fullmatch(str(entry.get("input")))
        label = re.fullmatch(r"-?\d+", str(entry.get("answer")).strip()) if match else None
        if match is None or label is None or (match[2] == "/" and int(match[3]) == 0):
            raise BadData(
                f"data.source: row {number} of {path} must have an `input` such as '12 + 34' and a whole `answer`; "
                f"found {json.dumps(entry)[:80]}. Correct or remove it."
            )
        question = ArithmeticQuestion(operations[match[2]], int(match[1]), int(match[3]))
        rows.append(LabelledQuestion(question, int(label[0]), is_corrupt=int(label[0]) != question.answer))
    return rows


def _sample(
    options: ArithmeticOptions, tokeniser: Tokeniser, row: LabelledQuestion, wording: int | None
) -> TokenSample:
    prompt = tokeniser.prompt(prompt_of(row.question, wording, options.width))
    output = tokeniser.output(output_of(row.question, row.label, options.output, options.answer, options.width))
    if isinstance(prompt, range):
        return TokenSample(range(len(prompt) + len(output)))
    return TokenSample([*prompt, *output], [*[IGNORED] * len(prompt), *output])


def _wording(options: ArithmeticOptions, question: ArithmeticQuestion, number: int, seed: int) -> int | None:
    if options.templates == "bare":
        return None
    return _mixed(seed * SEED_STRIDE + number) % wordings(question.operation)


def _mixed(number: int) -> int:
    """A number that looks random, from one that does not: the output step of SplitMix64.

    Source: Steele, Lea and Flood 2014, doi:10.1145/2714064.2660195, figure 19. Quicker by ten than a generator each.
    """
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return number ^ (number >> 31)


def _refuse_long_rows(settings: Settings, samples: Sequence[TokenSample]) -> None:
    longest = max(len(sample.ids) for sample in samples)
    if longest > settings.batch.sequence_length:
        cut = sum(len(sample.ids) > settings.batch.sequence_length for sample in samples)
        raise InvalidSettings(
            f"batch.sequence_length: an answer that is cut off cannot be learned; found "
            f"{settings.batch.sequence_length} tokens, with {cut:,} of {len(samples):,} rows longer and the longest of "
            f"{longest}. Set it to {longest} or more, or lower recipe.max_digits."
        )
