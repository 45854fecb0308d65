"""Two answers to one prompt, of which one is preferred (`preference`): DPO, with the untrained model as reference.

The reference's log-probabilities are computed once, before the first step, and kept in the run's folder: a resumed run
reads them. The score is the share of test pairs in which training has raised the chosen answer more than the rejected
one. Baselines: the answer that the untrained model finds likelier (in all, and per token), and the longer or the
shorter one, whichever is preferred more often in the training rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerun.data.own.row_kinds import ChatRow
from forerun.data.own.stored_rows import StoredRows
from forerun.data.sided_tokens import SidedData
from forerun.errors import InvalidSettings
from forerun.evaluate.proportions import paired_difference, wilson
from forerun.own.label_tables import EXAMPLES, THIRDS, shortened, thirds
from forerun.own.parts import OwnParts
from forerun.own.reference import answer_sizes, log_probabilities, reference_log_probabilities
from forerun.own.task import Task, named, strongest, watched
from forerun.own.two_sided import AnswerEncoding, Sides, encode_answers, two_sided_samples
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.preference import PreferenceSettings
from forerun.settings.schema import Settings
from forerun.step.heads import REJECTED
from forerun.step.preference_loss import preference_loss
from forerun.step.training_step import TrainingStep

PREFERENCE_SCORES = {"accuracy": True, "loss": False, "margin": True}
PARTS = ("train", "validation", "test")


@dataclass
class PreferenceSplit:
    """Pairs of the three parts, with the reference's log-probabilities (2, pairs) of each once they are there."""

    data: dict[str, SidedData]
    reference: dict[str, np.ndarray]
    objective: PreferenceSettings

    def prepare(self, step: TrainingStep, folder: Path) -> None:
        """Ask the untrained model of `step`, unless an earlier process of the run has."""
        self.reference |= reference_log_probabilities(step, self.data, folder)
        for part in PARTS:
            likely, unlikely = self.reference[part].astype(np.float32)
            self.data[part].numbers.update(reference_chosen=likely, reference_rejected=unlikely)

    def scores(self, answers: np.ndarray, part: str) -> dict[str, float]:
        """Share of pairs in which the chosen answer gained more, the mean loss, and the mean margin of rewards."""
        better, worse = torch.from_numpy(answers - self.reference[part])
        sizes = torch.from_numpy(answer_sizes(self.data[part])) if self.objective.loss == "ipo" else None
        tokens = None if sizes is None else (sizes[0], sizes[1])
        loss = preference_loss((better, worse), self.objective, tokens)
        margin = self.objective.beta * (better - worse)
        return {
            "accuracy": float((margin > 0).double().mean()), "loss": float(loss.mean()), "margin": float(margin.mean()),
        }  # fmt: skip


def open_preference(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of preferred answers.

    Raises:
        BadData: no pair has both answers within the sequence length.
        InvalidSettings: the loss is one of single answers.
    """
    if settings.preference.is_unpaired:
        raise InvalidSettings(
            f"preference.loss: {settings.preference.loss} learns from single answers (unpaired-preference); found rows "
            f"of {parts.format} in {settings.data.source}. Set preference.loss to sigmoid."
        )
    split = parts.split(settings.evaluation)
    encoding = encode_answers(settings, parts, lengths_only=lengths_only)
    sided = {part: preference_samples(rows, encoding, settings) for part, rows in split.items()}
    rows_left = {part: rows for part, (_, rows) in sided.items()}
    pad_id = encoding.tokenizer.pad_token_id
    data = {part: SidedData(settings, sides, pad_id, with_masks=False) for part, (sides, _) in sided.items()}
    pairs = PreferenceSplit(data, {}, settings.preference)
    for own in data.values():  # a forecast needs no values, and training gets them in `before`
        zeros = np.zeros(len(own.lengths), np.float32)
        own.numbers.update(reference_chosen=zeros, reference_rejected=zeros)

    def evaluate(step: TrainingStep) -> dict[str, float]:
        answers = log_probabilities(step, data["validation"])
        return watched(pairs.scores(answers, "validation"))

    return Task(
        facts=encoding.facts,
        tokenizer=encoding.tokenizer,
        workload=workload_of_facts(encoding.facts, encoding.tokenizer, settings.preference),
        data=data["train"],
        train_size=len(rows_left["train"]),
        watched_size=len(rows_left["validation"]),
        test_size=len(rows_left["test"]),
        final_examples=2 * len(rows_left["test"]),
        evaluate=evaluate,
        judge=lambda step: log_probabilities(step, data["test"]),
        baselines=lambda answers: judge_pairs(
            answers, pairs, rows_left, lost=len(split["test"]) - len(rows_left["test"])
        ),
        scores=PREFERENCE_SCORES,
        assumptions=encoding.assumptions,
        before=pairs.prepare,
    )


def preference_samples(rows: StoredRows, encoding: AnswerEncoding, settings: Settings) -> tuple[Sides, StoredRows]:
    """Samples of both answers, the loss being that of the answers alone, and the rows that have room for both.

    Raises:
        BadData: none has.
    """

    def chats() -> Iterator[tuple[ChatRow, int]]:
        for row in rows:
            for answer in (row.better, row.worse):
                yield ChatRow((*row.prompt, *answer), row.is_plain, row.tools), len(row.prompt)

    return two_sided_samples(rows, chats(), REJECTED, encoding, settings)


def judge_pairs(answers: np.ndarray, pairs: PreferenceSplit, rows: dict[str, StoredRows], lost: int) -> Judgement:
    """Accuracy beside the baselines with its interval, by length, and the surest mistakes."""
    reference, data = pairs.reference["test"], pairs.data
    sizes = {part: answer_sizes(data[part]) for part in ("train", "test")}
    prefers_longer = bool(np.mean(sizes["train"][0] > sizes["train"][1]) >= 0.5)
    longer = sizes["test"][0] > sizes["test"][1]
    is_equal = sizes["test"][0] == sizes["test"][1]
    hits = {
        "untrained, whole answer": (reference[0] > reference[1]).astype(float),
        "untrained, per token": (reference[0] / sizes["test"][0] > reference[1] / sizes["test"][1]).astype(float),
        "length": np.where(is_equal, 0.5, (longer == prefers_longer).astype(float)),
    }
    baselines = {name: {"accuracy": float(own.mean())} for name, own in hits.items()} | {"chance": {"accuracy": 0.5}}
    best = strongest("accuracy", baselines, is_higher_better=True)
    metrics = {**pairs.scores(answers, "test"), **named(baselines)}
    margin = (answers[0] - reference[0]) - (answers[1] - reference[1])
    right = (margin > 0).astype(float)
    share = wilson(float(right.sum()), len(right))
    metrics |= {"accuracy.low": share.low, "accuracy.high": share.high}
    against = paired_difference(right.tolist(), hits[best].tolist()) if best in hits else share
    below = 0.0 if best in hits else baselines[best]["accuracy"]
    metrics |= {"accuracy.gap.low": against.low - below, "accuracy.gap.high": against.high - below}
    note = (
        f"{len(right):,} test pairs; {lost} without room for both answers are left out. Accuracy {share}, against "
        f"{best}, the strongest baseline: {against}. The chosen answer is the likelier one in "
        f"{(answers[0] > answers[1]).mean():.3f} of the pairs, "
        f"before training in {(reference[0] > reference[1]).mean():.3f}."
    )
    table: list[list[Cell]] = [["model", metrics["accuracy"], metrics["loss"], metrics["margin"]]]
    table += [[name, own["accuracy"], None, None] for name, own in baselines.items()]
    slices: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(data["test"].lengths), strict=True):
        if len(part):
            slices.append([name, len(part), float(right[part].mean())])
    worst: list[int] = np.argsort(margin, kind="stable")[:EXAMPLES].tolist()
    examples: list[list[Cell]] = [
        [shortened(_text(rows["test"][n].better)), shortened(_text(rows["test"][n].worse)), float(margin[n])]
        for n in worst
        if margin[n] <= 0
    ]
    return Judgement(
        metrics,
        [
            ResultTable(title="Test, beside its baselines", note=note, columns=["", *PREFERENCE_SCORES], rows=table),
            ResultTable(title="By length", columns=["pairs", "count", "accuracy"], rows=slices),
            ResultTable(title="Surest mistakes", columns=["chosen", "rejected", "margin, nats"], rows=examples),
        ],
        comparison_data={"margins": margin.round(4).tolist()},
    )


def _text(answer: Sequence[Any]) -> str:
    return " ".join(turn.text for turn in answer)
