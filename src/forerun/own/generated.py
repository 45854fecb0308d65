"""Answers that a model writes, beside those of the data: exact match, chrF, ROUGE-L, and what a copy would score.

chrF (Popović 2015) is sacrebleu's, here as a share of 1. ROUGE-L is the mean over the rows. The copy baseline answers
with the question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forerun.evaluate.generate import Decoding, generate
from forerun.evaluate.proportions import draws_of_rows, wilson
from forerun.evaluate.rouge import rouge_l
from forerun.own.label_tables import EXAMPLES, shortened
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.step.training_step import TrainingStep

BATCH, DRAWS = 8, 2000


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
    """Share of exact matches but for white space around, chrF and mean ROUGE-L from 0 to 1."""
    from sacrebleu.metrics.chrf import CHRF

    hits = sum(one.strip() == other.strip() for one, other in zip(answers, references, strict=True))
    return {
        "exact_match": hits / len(references),
        "chrf": CHRF().corpus_score(list(answers), [list(references)]).score / 100,
        "rouge_l": float(np.mean(rouge_scores(answers, references))),
    }


def rouge_scores(answers: Sequence[str], references: Sequence[str]) -> list[float]:
    """ROUGE-L of each answer."""
    return [rouge_l(one, other) for one, other in zip(answers, references, strict=True)]


def generated_judgement(judgement: Judgement, answers: Answers) -> Judgement:
    """The judgement with scores of generated answers, the copy baseline's, and examples."""
    if not answers.references:
        return judgement
    scores = {
        "model": answer_scores(answers.answers, answers.references),
        "copy": answer_scores(answers.questions, answers.references),
    }
    share = wilson(round(scores["model"]["exact_match"] * len(answers.answers)), len(answers.answers))
    own_rouge = np.asarray(rouge_scores(answers.answers, answers.references))
    means = np.concatenate([own_rouge[draw].mean(axis=1) for draw in draws_of_rows(len(own_rouge), DRAWS)])
    low, high = np.quantile(means, [0.025, 0.975])
    rows: list[list[Cell]] = [[name, own["exact_match"], own["chrf"], own["rouge_l"]] for name, own in scores.items()]
    note = f"{len(answers.answers)} test rows, greedy. Exact match {share}, ROUGE-L {low:.3f} to {high:.3f} (95 %)."
    examples: list[list[Cell]] = [
        [shortened(question), shortened(answer), shortened(reference)]
        for question, answer, reference in zip(
            answers.questions[:EXAMPLES], answers.answers, answers.references, strict=False
        )
    ]
    tables = [
        ResultTable(title="Written answers", note=note, columns=["", "exact match", "chrF", "ROUGE-L"], rows=rows),
        ResultTable(title="Examples", columns=["question", "answer", "of the data"], rows=examples),
    ]
    metrics = {**judgement.metrics, **scores["model"], **{f"copy.{k}": v for k, v in scores["copy"].items()}}
    metrics |= {"rouge_l.low": float(low), "rouge_l.high": float(high)}
    return replace(judgement, metrics=metrics, tables=[*judgement.tables, *tables])
