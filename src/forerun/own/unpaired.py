"""Single answers, each desirable or not (`preference` with `loss: kto`), with the untrained model as reference.

Beside each row stands its prompt with the answer to another prompt, the same one in every epoch: over such mismatched
pairs KTO estimates how far the model has moved. The reference's log-probabilities of both are computed once, before the
first step. The score is the probability that training has raised a desirable answer more than an undesirable one (area
under the ROC curve), as that of `preference` is over pairs; `accuracy` is the share of answers on their side of the
divergence. Baselines: how likely the untrained model finds an answer (in all, and per token), and its length.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.own.row_kinds import ChatRow, UnpairedRow, question_texts
from forerun.data.own.stored_rows import StoredRows
from forerun.data.sided_tokens import SidedData
from forerun.errors import BadData, InvalidSettings
from forerun.evaluate.classification import Scored, auc_difference, bootstrap_auc, roc_auc
from forerun.evaluate.proportions import Interval
from forerun.own.label_tables import EXAMPLES, THIRDS, shortened, thirds
from forerun.own.parts import OwnParts
from forerun.own.reference import answer_sizes, log_probabilities, reference_log_probabilities
from forerun.own.task import Task, named, strongest, watched
from forerun.own.two_sided import AnswerEncoding, Sides, encode_answers, two_sided_samples
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.preference import UNPAIRED, PreferenceSettings
from forerun.settings.schema import Settings
from forerun.step.preference_loss import unpaired_loss
from forerun.step.training_step import TrainingStep
from forerun.step.unpaired import MISMATCHED

UNPAIRED_SCORES = {"auc": True, "accuracy": True, "loss": False, "margin": True}
DRAWS = 500
"""Bootstrap draws of an interval."""


@dataclass
class UnpairedSplit:
    """Answers of the three parts, with the reference's log-probabilities (2, rows) of each once they are there."""

    data: dict[str, SidedData]
    verdicts: dict[str, NDArray[np.float32]]
    """1 for each desirable answer, 0 for the others, by part."""
    reference: dict[str, np.ndarray]
    objective: PreferenceSettings

    def prepare(self, step: TrainingStep, folder: Path) -> None:
        """Ask the untrained model of `step`, unless an earlier process of the run has."""
        self.reference |= reference_log_probabilities(step, self.data, folder)
        for part, data in self.data.items():
            own, mismatched = self.reference[part].astype(np.float32)
            data.numbers.update(reference=own, reference_mismatched=mismatched)

    def gains(self, answers: np.ndarray, part: str) -> tuple[np.ndarray, float]:
        """How much likelier training has made each answer (rows,), and the divergence from the reference; nats."""
        own, mismatched = answers - self.reference[part]
        return own, max(0.0, float(mismatched.mean()))

    def scores(self, answers: np.ndarray, part: str) -> dict[str, float]:
        """Area under the ROC curve, share of answers on their side of the divergence, mean loss, margin of rewards."""
        gains, divergence = self.gains(answers, part)
        verdicts = self.verdicts[part]
        loss = unpaired_loss(
            torch.from_numpy(gains), torch.from_numpy(verdicts), torch.tensor(divergence), self.objective
        )
        rewards = self.objective.beta * gains
        return {
            "auc": roc_auc(verdicts, gains),
            "accuracy": float(((gains > divergence) == (verdicts > 0)).mean()),
            "loss": float(loss.mean()),
            "margin": float(rewards[verdicts > 0].mean() - rewards[verdicts == 0].mean()),
        }


def open_unpaired(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of answers that are desirable or not.

    Raises:
        BadData: no answer begins within the sequence length, or a part lacks answers of one kind.
        InvalidSettings: the loss is one of pairs.
    """
    objective = settings.preference
    if not objective.is_unpaired:
        raise InvalidSettings(
            f"preference.loss: rows of unpaired-preference, single answers that are desirable or not, are learned by "
            f"{UNPAIRED}; found {objective.loss}, which compares two answers to one prompt. Set it to {UNPAIRED}."
        )
    split = parts.split(settings.evaluation)
    encoding = encode_answers(settings, parts, lengths_only=lengths_only)
    sided = {part: unpaired_samples(rows, encoding, settings) for part, rows in split.items()}
    rows_left = {part: rows for part, (_, rows) in sided.items()}
    pad_id = encoding.tokenizer.pad_token_id
    data = {part: SidedData(settings, sides, pad_id, with_masks=False) for part, (sides, _) in sided.items()}
    verdicts = {part: _verdicts(rows, part, settings) for part, rows in rows_left.items()}
    answers = UnpairedSplit(data, verdicts, {}, objective)
    for part, own in data.items():  # a forecast needs no values of the reference, and training gets them in `before`
        zeros = np.zeros(len(own.lengths), np.float32)
        own.numbers.update(reference=zeros, reference_mismatched=zeros, is_desirable=verdicts[part])

    def evaluate(step: TrainingStep) -> dict[str, float]:
        return watched(answers.scores(log_probabilities(step, data["validation"]), "validation"))

    lost = {part: len(split[part]) - len(rows_left[part]) for part in split}
    return Task(
        facts=encoding.facts,
        tokenizer=encoding.tokenizer,
        workload=workload_of_facts(encoding.facts, encoding.tokenizer, objective),
        data=data["train"],
        train_size=len(rows_left["train"]),
        watched_size=len(rows_left["validation"]),
        test_size=len(rows_left["test"]),
        final_examples=2 * len(rows_left["test"]),
        evaluate=evaluate,
        judge=lambda step: log_probabilities(step, data["test"]),
        baselines=lambda likely: judge_answers(likely, answers, rows_left["test"], lost),
        scores=UNPAIRED_SCORES,
        assumptions=encoding.assumptions,
        before=answers.prepare,
    )


def _verdicts(rows: StoredRows, part: str, settings: Settings) -> NDArray[np.float32]:
    verdicts = np.asarray([row.is_desirable for row in rows], np.float32)
    if not 0 < verdicts.sum() < len(verdicts):
        good = int(verdicts.sum())
        raise BadData(
            f"{settings.data.source}: {UNPAIRED} needs desirable and undesirable answers in each part; found {good:,} "
            f"and {len(verdicts) - good:,} in {part}. Give more rows, or larger data.validation and data.test; answers "
            f"of one kind alone are learned as prompt-completion with workload causal-lm."
        )
    return verdicts


def unpaired_samples(rows: StoredRows, encoding: AnswerEncoding, settings: Settings) -> tuple[Sides, StoredRows]:
    """Samples of each answer and of the mismatched one, and the rows that have room for both.

    Raises:
        BadData: none has.
    """
    partners = mismatched_places(rows)

    def chats() -> Iterator[tuple[ChatRow, int]]:
        for row, partner in zip(rows, partners, strict=True):
            for answer in (row.answer, rows[int(partner)].answer):
                yield ChatRow((*row.prompt, *answer), row.is_plain, row.tools), len(row.prompt)

    return two_sided_samples(rows, chats(), MISMATCHED, encoding, settings)


def mismatched_places(rows: Sequence[UnpairedRow]) -> NDArray[np.int64]:
    """For each row (rows,) the number of another one, whose answer stands behind its prompt: a permutation.

    Rows are ordered by a hash of their prompts and moved on by the size of the largest group of one prompt, so that no
    answer meets its own prompt unless that group is more than half of the rows. TRL moves on by one in the order of the
    file, where answers to one prompt are often neighbours.
    """
    prompts = [_prompt_hash(row) for row in rows]
    order = np.asarray(sorted(range(len(prompts)), key=lambda place: (prompts[place], place)), np.int64)
    _, counts = np.unique(np.asarray(prompts), return_counts=True)
    partners = np.empty(len(order), np.int64)
    partners[order] = np.roll(order, -int(counts.max()))
    return partners


def _prompt_hash(row: UnpairedRow) -> str:
    return hashlib.sha256("\n".join(question_texts(row)).encode(errors="surrogatepass")).hexdigest()[:16]


def judge_answers(
    answers: np.ndarray, split: UnpairedSplit, rows: Sequence[UnpairedRow], lost: dict[str, int]
) -> Judgement:
    """Area under the ROC curve beside the baselines with its interval, by length, and the surest mistakes."""
    gains, divergence = split.gains(answers, "test")
    labels = split.verdicts["test"].astype(np.int64)
    groups = tuple(_prompt_hash(row) for row in rows)
    rivals = _rivals(split)
    baselines = {name: {"auc": roc_auc(labels, own)} for name, own in rivals.items()} | {"chance": {"auc": 0.5}}
    best = strongest("auc", baselines, is_higher_better=True)
    usual = split.verdicts["train"].mean() >= 0.5
    majority = float((labels == usual).mean())
    scored = Scored(labels, gains, groups)
    metrics = {**split.scores(answers, "test"), **named(baselines), "majority.accuracy": majority}
    low, high = bootstrap_auc(scored, DRAWS)
    metrics |= {"auc.low": low, "auc.high": high}
    own = Interval(metrics["auc"], low, high)
    against = ""
    if best in rivals:
        gap = auc_difference(scored, rivals[best], DRAWS)
        metrics |= {"auc.gap.low": gap.low, "auc.gap.high": gap.high}
        against = f": {Interval(gap.value, gap.low, gap.high)}"
    note = (
        f"{len(labels):,} test answers, {int(labels.sum()):,} of them desirable. Left out, as their answers begin "
        f"behind batch.sequence_length: {', '.join(f'{count} of {part}' for part, count in lost.items())}. Area under "
        f"the ROC curve {own}, against {best}, the strongest baseline{against}. Over answers to other prompts the "
        f"model is {divergence:.2f} nats from its reference."
    )
    table: list[list[Cell]] = [["model", *(metrics[name] for name in UNPAIRED_SCORES)]]
    table += [[name, own["auc"], None, None, None] for name, own in baselines.items()]
    table.append(["majority", None, majority, None, None])
    return Judgement(
        metrics,
        [
            ResultTable(title="Test, beside its baselines", note=note, columns=["", *UNPAIRED_SCORES], rows=table),
            _by_length(gains, labels, split.data["test"].lengths),
            _mistakes(gains - divergence, labels, rows),
        ],
        comparison_data={"gains": gains.round(4).tolist()},
    )


def _rivals(split: UnpairedSplit) -> dict[str, np.ndarray]:
    """Scores of the test answers that nothing was trained for, higher where an answer seems desirable."""
    reference = split.reference["test"][0]
    sizes = {part: answer_sizes(split.data[part])[0] for part in ("train", "test")}
    is_longer_better = roc_auc(split.verdicts["train"], sizes["train"]) >= 0.5
    return {
        "untrained, whole answer": reference,
        "untrained, per token": reference / sizes["test"],
        "length": sizes["test"].astype(float) * (1 if is_longer_better else -1),
    }


def _by_length(gains: np.ndarray, labels: NDArray[np.int64], lengths: np.ndarray) -> ResultTable:
    rows: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(lengths), strict=True):
        has_both = len(part) and 0 < labels[part].sum() < len(part)
        rows.append([name, len(part), roc_auc(labels[part], gains[part]) if has_both else None])
    return ResultTable(title="By length", columns=["answers", "count", "auc"], rows=rows)


def _mistakes(ahead: np.ndarray, labels: NDArray[np.int64], rows: Sequence[UnpairedRow]) -> ResultTable:
    """Answers that are farthest on the wrong side of the divergence."""
    signed = np.where(labels == 1, ahead, -ahead)
    worst: list[int] = np.argsort(signed, kind="stable")[:EXAMPLES].tolist()
    table: list[list[Cell]] = [
        [shortened(" ".join(turn.text for turn in rows[n].answer)), "yes" if labels[n] else "no", float(ahead[n])]
        for n in worst
        if signed[n] <= 0
    ]
    return ResultTable(title="Surest mistakes", columns=["answer", "desirable", "gain, nats"], rows=table)
