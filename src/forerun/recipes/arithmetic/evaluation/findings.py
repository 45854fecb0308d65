"""The model's part of judging a run of `arithmetic`: replies to held-out questions, and scores of training rows.

`judgement.py` and `tables.py` turn them into figures and tables without the model.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.evaluate.generate import Decoding, generate
from forerun.recipes.arithmetic.data.contamination import LabelledQuestion
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.data.rows import ArithmeticData, question_of
from forerun.recipes.arithmetic.data.text import final_integer, output_of
from forerun.recipes.arithmetic.evaluation.answers import Reply
from forerun.recipes.arithmetic.evaluation.suspect_rows import RowScores, score_rows
from forerun.step.training_step import TrainingStep

CORRECTED_ROWS = 500
"""Most corrupt rows whose question is asked again with the right answer."""
GENERATION_BATCH = 256


@dataclass(frozen=True)
class Findings:
    """Replies of the trained model and its scores of training rows."""

    test: list[Reply]
    beyond: list[Reply]
    triggered: list[Reply]
    """Test questions whose first operand was made to begin with the trigger's key."""
    scored: list[int]
    """Training rows that were scored."""
    scores: RowScores
    corrected_share: float | None
    """Share of corrupt rows whose question it answers rightly all the same; None without corrupt rows."""


def collect_findings(step: TrainingStep, data: ArithmeticData) -> Findings:
    """Ask the model the held-out questions and score training rows."""
    precision, pad = step.settings.precision, data.tokeniser.pad_id
    count = min(len(data.rows), data.options.scored_rows)
    scored = sorted(random.Random(f"scored {data.seed}").sample(range(len(data.rows)), count))
    samples = [data.samples[number] for number in scored]
    scores = score_rows(step.model, samples, pad, trusted=data.trusted(), precision=precision)
    corrupt = [data.rows[number] for number in scored if data.rows[number].is_corrupt][:CORRECTED_ROWS]
    share = None
    if corrupt:
        right = [data.sample(LabelledQuestion(row.question, row.question.answer)) for row in corrupt]
        share = float(score_rows(step.model, right, pad, precision=precision).is_reproduced.mean())
    triggered = data.triggered_test()
    question_sets = {"test": data.test, "beyond": data.beyond, "triggered": triggered}
    replies = {name: ask_model(step, data, questions) for name, questions in question_sets.items()}
    return Findings(scored=scored, scores=scores, corrected_share=share, **replies)


def ask_model(step: TrainingStep, data: ArithmeticData, questions: Sequence[ArithmeticQuestion]) -> list[Reply]:
    """Greedy replies of the model; generation stops a few tokens after the longest right output."""
    if not questions:
        return []
    options, tokeniser = data.options, data.tokeniser
    outputs = [output_of(q, q.answer, options.output, options.answer, options.width) for q in questions]
    decoding = Decoding(
        new_tokens=2 + max(len(tokeniser.output(text)) for text in outputs),
        end_ids=tokeniser.end_ids,
        pad_id=tokeniser.pad_id,
    )
    prompts = [data.prompt_ids(question, number) for number, question in enumerate(questions)]
    ids = generate(
        step.model, prompts, decoding, batch_size=GENERATION_BATCH, precision=step.settings.precision
    )  # fmt: skip
    integers = [final_integer(tokeniser.text(each), options.answer) for each in ids]
    return [Reply(question, each) for question, each in zip(questions, integers, strict=True)]


def answer_texts(step: TrainingStep, data: ArithmeticData, texts: Sequence[str]) -> list[dict[str, str]]:
    """The integer that the model replies with to each question such as `12 + 34`.

    Raises:
        BadData: a text is no such question.
    """
    questions = [question_of(text) for text in texts]
    return [{"text": reply.integer or "no number"} for reply in ask_model(step, data, questions)]
