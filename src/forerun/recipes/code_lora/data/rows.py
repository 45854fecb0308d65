"""The data of the recipe `code-lora`: rows, hygiene, splits, token ids, and the tasks that answers are judged on.

Rows come from `data.source` (Alpaca's format) or, without one, from templates (`data/templates.py`). What is
judged comes from `recipe.tasks` (HumanEval's or MBPP's format), else from templates, else from held-out rows, which
have a reference but no tests. Rows are cleaned against the tasks (`data/hygiene.py`) and split by a hash of each
request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from forerun.data.chat_tokens import ChatTokens
from forerun.data.instructions import Instruction, instruction_of, read_instructions
from forerun.data.token_data import TokenData
from forerun.errors import BadData
from forerun.recipes.code_lora.data.hygiene import Cleaned, clean, split_hash, split_rows
from forerun.recipes.code_lora.data.python_code import code_of
from forerun.recipes.code_lora.data.tasks import CodeTask, read_tasks
from forerun.recipes.code_lora.data.templates import draw_rows, draw_tasks
from forerun.settings.schema import Count, Section, Settings


class CodeLoraOptions(Section):
    """`--set recipe.…=`"""

    rows: Count = 6000
    """Template rows drawn where `data.source` is not given."""
    tasks: str | None = None
    """A file of tasks with unit tests, in the format of HumanEval or MBPP."""
    questions: Count = 128
    """Most tasks whose answers are scored."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.08
    """Share of the rows that is not trained on."""
    samples: Count = 1
    """Answers drawn for each task; pass@k is given for k up to this."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of the answers; 0 takes the likeliest token, so that one sample is enough."""
    unsafe: bool = False
    """Run the answers' programs even where the kernel does not shut them in (`--unsafe`)."""
    documents: Count = 19200
    """Documents on which a decoder without published weights is pretrained once."""
    pretraining_rate: Annotated[float, Field(gt=0)] = 4e-3
    """Peak learning rate of that pretraining."""


@dataclass(frozen=True)
class CodeLoraData:
    """Everything that is trained on and judged; build it with `open_data`."""

    tokens: ChatTokens
    cleaned: Cleaned
    too_long: int
    """Training rows left out because they exceed `batch.sequence_length`: a cut answer would teach not to end."""
    train: tuple[Instruction, ...]
    training: TokenData
    watched: tuple[Instruction, ...]
    """Held-out rows scored between epochs."""
    held_out: tuple[Instruction, ...]
    """The other held-out rows, scored at the end."""
    tasks: tuple[CodeTask, ...]
    """Tasks whose answers are scored at the end."""
    split: str
    """Hash of the split."""

    @property
    def left_out(self) -> int:
        """Rows that could be trained on, and are more than `data.examples`."""
        used = len(self.train) + len(self.watched) + len(self.held_out)
        return len(self.cleaned.rows) - self.too_long - used

    @property
    def has_tests(self) -> bool:
        """Whether programs can be run."""
        return all(task.tests for task in self.tasks)

    def scoring(self, rows: Sequence[Instruction]) -> TokenData:
        """Batches of rows whose loss is computed, in no particular order."""
        samples = [self.tokens.sample(row.request, row.output) for row in rows]
        return TokenData(self.training.settings, samples, padding_id=self.tokens.pad_id)


def open_data(settings: Settings, options: CodeLoraOptions, tokens: ChatTokens) -> CodeLoraData:
    """Read or draw, clean, split and tokenise.

    `data.examples` keeps that many training rows.

    Raises:
        BadData: the source or the tasks cannot be used, or no row is left.
        MissingExtra: the source is on the hub, and `datasets` is not installed.
    """
    tasks = read_tasks(Path(options.tasks)) if options.tasks else []
    if settings.data.source is None:
        rows = [instruction_of(row, "template") for row in draw_rows(options.rows, settings.seed)]
        tasks = tasks or draw_tasks(options.questions, settings.seed)
    else:
        rows = read_instructions(settings.data.source)
    cleaned = clean(rows, tasks)
    train, held_out = split_rows(cleaned.rows, options.held_out)
    tokenised = [(row, tokens.sample(row.request, row.output)) for row in train]
    fitting = [(row, sample) for row, sample in tokenised if len(sample.ids) <= settings.batch.sequence_length]
    too_long, retained = len(tokenised) - len(fitting), fitting[: settings.data.examples]
    watched, rest = held_out[: settings.evaluation.examples], held_out[settings.evaluation.examples :]
    if not retained or not rest:
        raise BadData(
            f"data.source: needs rows to train on and to hold out; of {cleaned.input_rows} rows {cleaned.duplicates} "
            f"are duplicates, {cleaned.contaminated} are in the evaluation, {cleaned.unparsable} hold no Python that "
            f"parses, and {too_long} are longer than batch.sequence_length={settings.batch.sequence_length}; "
            f"{len(retained)} are left to train on and {len(rest)} to judge. Give more rows, or change "
            f"recipe.held_out, evaluation.examples or batch.sequence_length."
        )
    as_text = settings.model_copy(update={"workload": "causal-lm"})
    questions = tasks or [question_of(row, number) for number, row in enumerate(rest)]
    return CodeLoraData(
        tokens=tokens,
        cleaned=cleaned,
        too_long=too_long,
        train=tuple(row for row, _ in retained),
        training=TokenData(as_text, [sample for _, sample in retained], padding_id=tokens.pad_id),
        watched=tuple(watched),
        held_out=tuple(rest),
        tasks=tuple(questions[: options.questions]),
        split=split_hash(train, held_out),
    )


def question_of(row: Instruction, number: int) -> CodeTask:
    """A held-out row as a task without tests."""
    return CodeTask(
        task_id=f"held-out/{number}",
        instruction=row.request,
        prompt=f'"""\n{row.request}\n"""\n',
        preamble="",
        entry_point="",
        reference=code_of(row.output),
        tests="",
    )
