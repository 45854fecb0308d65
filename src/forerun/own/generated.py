"""Answers that a model writes, beside those of the data: exact match, chrF, and what copying the question scores.

chrF (Popović 2015) is sacrebleu's, here as a share of 1. The copy baseline answers with the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from forerun.evaluate.generate import Decoding, generate
from forerun.evaluate.proportions import wilson
from forerun.own.label_tables import EXAMPLES, shortened
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.step.training_step import TrainingStep

BATCH = 8


@dataclass(frozen=True)
class Answers:
    """Questions with the model's answers and those of the data."""

    questions: list[str]
    answers: list[str]
    references: list[str]


def generate_answers(
    step: TrainingStep,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    questions: Sequence[str],
    references: Sequence[str],
    *,
    end_ids: tuple[int, ...],
    pad_id: int,
    new_tokens: int,
) -> Answers:
    """Greedy answers to `prompts`, at most `new_tokens` tokens each."""
    decoding = Decoding(new_tokens=new_tokens, end_ids=end_ids, pad_id=pad_id)
    ids = generate(step.model, prompts, decoding, batch_size=BATCH, precision=step.settings.precision)
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    return Answers(list(questions), texts, list(references))


def answer_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Share of exact matches but for white space around, and chrF from 0 to 1."""
    from sacrebleu.metrics.chrf import CHRF

    hits = sum(one.strip() == other.strip() for one, other in zip(answers, references, strict=True))
    return {
        "exact_match": hits / len(references),
        "chrf": CHRF().corpus_score(list(answers), [list(references)]).score / 100,
    }


def generated_judgement(judgement: Judgement, answers: Answers) -> Judgement:
    """The judgement with scores of generated answers, the copy baseline's, and examples."""
    if not answers.references:
        return judgement
    scores = {
        "model": answer_scores(answers.answers, answers.references),
        "copy": answer_scores(answers.questions, answers.references),
    }
    share = wilson(round(scores["model"]["exact_match"] * len(answers.answers)), len(answers.answers))
    rows: list[list[Cell]] = [[name, own["exact_match"], own["chrf"]] for name, own in scores.items()]
    note = f"{len(answers.answers)} test rows, greedy. Exact match {share} (95 %)."
    examples: list[list[Cell]] = [
        [shortened(question), shortened(answer), shortened(reference)]
        for question, answer, reference in zip(
            answers.questions[:EXAMPLES], answers.answers, answers.references, strict=False
        )
    ]
    tables = [
        ResultTable(title="Written answers", note=note, columns=["", "exact match", "chrF"], rows=rows),
        ResultTable(title="Examples", columns=["question", "answer", "of the data"], rows=examples),
    ]
    metrics = {**judgement.metrics, **scores["model"], **{f"copy.{k}": v for k, v in scores["copy"].items()}}
    return replace(judgement, metrics=metrics, tables=[*judgement.tables, *tables])
