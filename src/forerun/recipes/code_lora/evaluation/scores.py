"""How `code-lora` is judged: losses and answers with and without the adapter, beside answers that need no model.

The base is asked in the way it knows: a model that was tuned on chats by its template, others to continue a text.
Baselines without a model: the answer to the most similar training request (cosine of word TF-IDF), and the commonest
answer. Everything that needs the model is in `answer_all`; what follows needs only its answers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from forerun.data.instructions import Instruction
from forerun.data.token_data import IGNORED, TokenSample
from forerun.evaluate.generate import Decoding, expected_longest, generate
from forerun.forecasting.request import Generated
from forerun.recipes.code_lora.data.python_code import code_of, parses
from forerun.recipes.code_lora.data.rows import CodeLoraData, CodeLoraOptions, question_of
from forerun.recipes.code_lora.data.tasks import CodeTask
from forerun.recipes.code_lora.evaluation.answers import Form, TextScores, form_of, text_scores
from forerun.recipes.code_lora.evaluation.code_bleu import CodeBleu, code_bleu
from forerun.recipes.code_lora.evaluation.pass_at_k import TaskOutcomes, first_block, program_of, run_tests
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.verify.compare import Criterion

MODEL, BASE, RETRIEVAL, COMMONEST = "adapted", "base", "retrieval", "commonest"
Way = Literal["chat", "continue"]
CRITERIA = (
    Criterion(
        name="solves more than its base", quantity="pass_at_1", comparison="above", bound="base.pass_at_1", margin=0.1
    ),
    Criterion(
        name="solves more than the strongest baseline", quantity="pass_at_1", comparison="above", bound="*.pass_at_1",
        margin=0.1,
    ),
    Criterion(name="answers parse", quantity="parses", comparison="above", bound=0.9),
    Criterion(name="held-out loss is below the base's", quantity="loss", comparison="below", bound="base.loss"),
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.30),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.15),
)  # fmt: skip
"""Success criteria of `forerun run code-lora` where tasks have tests."""
WITHOUT_TESTS = tuple(criterion for criterion in CRITERIA if criterion.quantity not in ("pass_at_1", "parses")) + (
    Criterion(name="answers parse as often as the base's", quantity="parses", comparison="above", bound="base.parses"),
    Criterion(name="answers are nearest to the references", quantity="chrf", comparison="above", bound="*.chrf"),
)
"""Success criteria where answers to held-out rows are scored, which have no tests."""


@dataclass(frozen=True)
class AnswerScores:
    """Answers of one answerer to every task; of several samples the first counts for all but pass@k."""

    texts: tuple[tuple[str, ...], ...]
    """Samples of each task."""
    complete: tuple[bool, ...]
    """Whether the first sample ended by itself."""
    way: Way = "chat"


@dataclass(frozen=True)
class Scores:
    """Results that need the model: answers and held-out losses, with and without the adapter."""

    answers: dict[str, AnswerScores]
    losses: dict[str, float]


def answer_all(step: TrainingStep, data: CodeLoraData, options: CodeLoraOptions) -> Scores:
    """Ask the model and its base."""
    model: Any = step.model
    answers = {MODEL: ask(step, data, options, data.tasks, "chat")}
    losses = {MODEL: held_out_loss(step, data, data.held_out)}
    if hasattr(model, "disable_adapter"):
        with model.disable_adapter():  # peft/peft_model.py (0.21): the same weights with the adapters off
            answers[BASE] = ask(step, data, options, data.tasks, "chat" if data.tokens.is_tuned else "continue")
            losses[BASE] = held_out_loss(step, data, data.held_out)
    return Scores(answers, losses)


def ask(
    step: TrainingStep, data: CodeLoraData, options: CodeLoraOptions, tasks: Sequence[CodeTask], way: Way
) -> AnswerScores:
    """Answers of the model with its present weights and adapter state."""
    settings, tokens = step.settings, data.tokens
    prompts = [
        tokens.prompt(task.instruction) if way == "chat" else tokens.continuation_prompt(task.prompt)
        for task in tasks for _ in range(options.samples)
    ]  # fmt: skip
    decoding = Decoding(
        new_tokens=settings.evaluation.new_tokens, end_ids=tokens.end_ids, pad_id=tokens.pad_id,
        temperature=options.temperature,
    )  # fmt: skip
    generated = generate(
        step.model, prompts, decoding, batch_size=settings.batch.micro_batch_size, precision=settings.precision
    )
    texts = [tokens.text(ids) for ids in generated]
    each = options.samples
    return AnswerScores(
        tuple(tuple(texts[first : first + each]) for first in range(0, len(texts), each)),
        tuple(len(generated[first]) < decoding.new_tokens for first in range(0, len(generated), each)),
        way,
    )


def answer_texts(step: TrainingStep, data: CodeLoraData, texts: Sequence[str], most: int) -> list[dict[str, str]]:
    """The adapted model's greedy answer to each instruction, of at most `most` tokens."""
    settings, tokens = step.settings, data.tokens
    decoding = Decoding(new_tokens=most, end_ids=tokens.end_ids, pad_id=tokens.pad_id)
    size = settings.batch.micro_batch_size
    prompts = [tokens.prompt(text) for text in texts]
    ids = generate(step.model, prompts, decoding, batch_size=size, precision=settings.precision)
    return [{"text": tokens.text(each)} for each in ids]


def generated_lengths(settings: Settings, data: CodeLoraData, options: CodeLoraOptions) -> Generated:
    """Lengths for a forecast: the trained model answers as long as the training rows do, its base until it is cut."""
    size, most = settings.batch.micro_batch_size, settings.evaluation.new_tokens
    answers = [sum(label != IGNORED for label in _labels(sample)) for sample in data.training.samples]
    tokens = expected_longest(answers, size, most)
    tasks = [*data.tasks, *(question_of(row, number) for number, row in enumerate(data.watched))]
    prompts = [len(data.tokens.prompt(task.instruction)) for task in tasks]
    if not data.tokens.is_tuned:
        prompts += [len(data.tokens.continuation_prompt(task.prompt)) for task in data.tasks]
    number = len(data.tasks) * options.samples
    final = ((number, tokens), (number, None)) if settings.adapter.kind != "none" else ((number, tokens),)
    return Generated(final, tokens, max(prompts))


def _labels(sample: TokenSample) -> Sequence[int]:
    return sample.token_labels


def held_out_loss(step: TrainingStep, data: CodeLoraData, rows: Sequence[Instruction]) -> float:
    """Mean loss per token of the rows' answers."""
    device = next(step.model.parameters()).device
    scored, total, count = data.scoring(rows), 0.0, 0.0
    was_training = step.model.training
    step.model.eval()
    with torch.no_grad(), step.policy.autocast(device.type):
        for micro_batches in scored.epoch_steps(0):
            for indices in micro_batches:
                batch = {name: value.to(device) for name, value in scored.collate(indices).items()}
                total += float(step.workload.loss(step.model, batch).sum)
                count += step.workload.count(batch)
    step.model.train(was_training)
    return total / count


def watch(step: TrainingStep, data: CodeLoraData, options: CodeLoraOptions) -> dict[str, float]:
    """Between epochs: loss of some held-out rows, and how many answers to them parse and are right to the letter."""
    single = options.model_copy(update={"samples": 1, "temperature": 0.0})
    tasks = [question_of(row, number) for number, row in enumerate(data.watched)]
    codes = [code_of(text[0]) for text in ask(step, data, single, tasks, "chat").texts]
    exact = [code.strip() == task.reference.strip() for code, task in zip(codes, tasks, strict=True)]
    return {
        "watched_loss": held_out_loss(step, data, data.watched),
        "watched_parses": sum(map(parses, codes)) / len(codes),
        "watched_exact": sum(exact) / len(exact),
    }


def model_free_answers(data: CodeLoraData) -> dict[str, AnswerScores]:
    """Answers taken from the training rows, without a model."""
    outputs = [row.output for row in data.train]
    vectoriser = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", lowercase=True)
    training_vectors = vectoriser.fit_transform([row.request for row in data.train])
    task_vectors = vectoriser.transform([task.instruction for task in data.tasks])
    nearest = (task_vectors @ training_vectors.T).toarray().argmax(axis=1)
    commonest = Counter(outputs).most_common(1)[0][0]
    sure = tuple(True for _ in data.tasks)
    return {
        RETRIEVAL: AnswerScores(tuple((outputs[index],) for index in nearest), sure),
        COMMONEST: AnswerScores(tuple((commonest,) for _ in data.tasks), sure),
    }


@dataclass(frozen=True)
class Report:
    """Every figure of one answerer."""

    forms: tuple[Form, ...]
    text: TextScores
    code: CodeBleu
    functional: TaskOutcomes | None
    loss: float | None

    def share(self, form: Form) -> float:
        """Share of the answers that have a form."""
        return self.forms.count(form) / len(self.forms)

    def metrics(self, prefix: str, samples: int) -> dict[str, float]:
        """Flat figures for the ledger."""
        figures = {
            "parses": self.share("parses"), "truncated": self.share("truncated"), "empty": self.share("empty"),
            "not_code": self.share("not code"), "bleu": self.text.bleu, "chrf": self.text.chrf,
            "code_bleu": self.code.score,
        }  # fmt: skip
        if self.loss is not None:
            figures["loss"] = self.loss
        if self.functional is not None:
            figures["pass_at_1"] = self.functional.pass_at(1)
            if 1 < samples <= self.functional.samples:
                figures[f"pass_at_{samples}"] = self.functional.pass_at(samples)
        return {prefix + name: value for name, value in figures.items()}


def score_answers(
    answers: AnswerScores, data: CodeLoraData, loss: float | None, *, allow_unsafe: bool = False
) -> Report:
    """Score answers; programs are run where tasks have tests."""
    continues = answers.way == "continue"
    firsts = [samples[0] for samples in answers.texts]
    codes = [_code(text, task, continues) for text, task in zip(firsts, data.tasks, strict=True)]
    references = [task.reference for task in data.tasks]
    programs = [
        [program_of(text, task, continues=continues) for text in samples]
        for samples, task in zip(answers.texts, data.tasks, strict=True)
    ]
    forms: list[Form] = [
        form_of(code, is_complete=complete, text=text)
        for code, text, complete in zip(codes, firsts, answers.complete, strict=True)
    ]
    return Report(
        tuple(forms), text_scores(codes, references), code_bleu(codes, references),
        run_tests(data.tasks, programs, allow_unsafe=allow_unsafe) if data.has_tests else None, loss,
    )  # fmt: skip


def _code(text: str, task: CodeTask, continues: bool) -> str:
    return task.prompt + first_block(text) if continues else code_of(text)
