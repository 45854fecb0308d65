"""A text to make of another (`seq2seq-lm`): translations, summaries, questions and answers.

The loss is that of the target's tokens and its end. Scores of written targets (greedy, the first `GENERATED_ROWS` test
rows) stand beside the copy baseline, which answers with the source. `evaluation.new_tokens` is the most that is
written; 0 takes the longest target of the test rows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from forerun.data.own.row_kinds import ChatRow, TranslationRow
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import TokenData, TokenSample, target_lengths
from forerun.errors import BadData
from forerun.forecasting.request import Generated
from forerun.models.build import config_of
from forerun.own.facts import TaskFacts
from forerun.own.generated import Answers, generate_answers, generated_judgement
from forerun.own.parts import OwnParts
from forerun.own.scoring import held_out_data
from forerun.own.stores import stored_samples
from forerun.own.task import Task, watched
from forerun.own.token_scores import (
    SHOWN_TEXTS,
    TOKEN_SCORES,
    Pairs,
    TokenScores,
    Untrained,
    judge_tokens,
    score_tokens,
)
from forerun.own.tokens import encoded, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, count_entropy

GENERATED_ROWS = 64
"""Test rows whose targets are written."""


def open_rewriting(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of texts and their targets.

    Raises:
        BadData: a chat has more than one question and answer.
    """
    split = parts.split(settings.evaluation)
    texts = (text for row in parts.learning_rows for text in source_and_target(row))
    tokenizer, assumptions = tokenizer_of(settings, texts, rows=parts.learning_rows.identity, lengths_only=lengths_only)
    start = getattr(config_of(settings), "decoder_start_token_id", None)
    start = tokenizer.pad_token_id if start is None else start
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id,
        end_ids=(tokenizer.eos_token_id,), start_id=start,
    )  # fmt: skip
    samples = {part: rewriting_samples(rows, tokenizer, facts) for part, rows in split.items()}
    held_out = {part: held_out_data(settings, own, facts.pad_id, start) for part, own in samples.items()}
    data, untrained = TokenData(settings, samples["train"], facts.pad_id, start), Untrained(held_out["test"])
    asked_rows = [source_and_target(row) for row in split["test"][:GENERATED_ROWS]]
    new_tokens = settings.evaluation.new_tokens or int(target_lengths(samples["test"]).max())

    def judge(step: TrainingStep) -> tuple[TokenScores, Answers]:
        prompts = [list(map(int, sample.ids)) for sample in samples["test"][:GENERATED_ROWS]]
        sources, targets = zip(*asked_rows, strict=True)
        own_answers = generate_answers(
            step, tokenizer, prompts, sources, targets, end_ids=facts.end_ids,
            pad_id=facts.pad_id, new_tokens=new_tokens,
        )  # fmt: skip
        return score_tokens(step, held_out["test"]), own_answers

    def baselines(answers: tuple[TokenScores, Answers]) -> Judgement:
        targets = [source_and_target(row)[1] for row in split["test"][:SHOWN_TEXTS]]
        judgement = judge_tokens(
            answers[0], samples["train"], samples["test"], untrained, texts=targets,
            pairs_of=lambda sample: target_pairs(sample, start),
        )  # fmt: skip
        return generated_judgement(judgement, answers[1])

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(score_tokens(step, held_out["validation"]).metrics())

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=data,
        train_size=len(samples["train"]),
        watched_size=len(samples["validation"]),
        test_size=len(samples["test"]),
        final_examples=2 * len(samples["test"]),
        evaluate=evaluate,
        judge=judge,
        baselines=baselines,
        scores=TOKEN_SCORES,
        assumptions=assumptions,
        trivial=TrivialLoss(count_entropy(samples["train"].counts), "always answering with the shares of the tokens"),
        generated=Generated(((len(asked_rows), float(new_tokens)),)),
        before=untrained.score,
    )


def source_and_target(row: TranslationRow | ChatRow) -> tuple[str, str]:
    """The two texts of a row; of a chat the question, with its system message, and the answer.

    Raises:
        BadData: it is a chat of several answers.
    """
    if isinstance(row, TranslationRow):
        return row.source, row.target
    roles = [turn.role for turn in row.messages]
    if roles.count("assistant") != 1 or roles[-1] != "assistant":
        raise BadData(
            f"data.format: seq2seq-lm learns one answer a row; found a chat with the roles {', '.join(roles)}. Set "
            f"workload to causal-lm, which learns all answers."
        )
    if any(turn.calls for turn in row.messages):
        raise BadData(
            "chat: seq2seq-lm learns texts; found a call of a tool. Allow data.repair: [tool-calls], which writes calls"
            " into answers, or set workload to causal-lm."
        )
    if any(turn.reasoning for turn in row.messages):
        raise BadData(
            "chat: seq2seq-lm learns the content of answers; found reasoning in a field of its own. Write it into the "
            "content, or set workload to causal-lm."
        )
    return "\n\n".join(turn.content for turn in row.messages[:-1]), row.messages[-1].content


def rewriting_samples(rows: StoredRows, tokenizer: Any, facts: TaskFacts) -> StoredSamples:
    """Ids of each source and of its target, cut to the sequence length, with the tokenizer's end."""
    length, end = facts.sequence_length, tokenizer.eos_token_id

    def side(number: int) -> Iterator[Mapping[str, Any]]:
        return encoded(tokenizer, ((source_and_target(row)[number], None) for row in rows), length)

    def samples(_: object) -> Iterator[TokenSample]:
        for source, target in zip(side(0), side(1), strict=True):
            ids = target["input_ids"]
            ids = ids if not ids or ids[-1] == end else [*ids[: length - 1], end]
            yield TokenSample(np.asarray(source["input_ids"], np.int32), np.asarray(ids, np.int32))  # type: ignore[arg-type]

    return stored_samples(rows, tokenizer, {"task": facts.model_dump(mode="json")}, samples)[0][""]


def target_pairs(sample: TokenSample, start: int) -> Pairs:
    """The token before each target, which the start is before the first, and the target (targets, 2)."""
    target = np.asarray(sample.target, dtype=np.int32)
    return np.stack([np.concatenate([np.asarray([start], np.int32), target[:-1]]), target], axis=1)
