"""Texts that belong together become neighbours (`embedding`): pairs, or triplets with a text that does not belong.

Judged by retrieval: every anchor of the test rows looks for its positive among all texts of the test rows that are not
anchors. Ties count at their expected place. Baselines: TF-IDF of words, the encoder before training, and chance.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerun.data.own.row_kinds import PairRow, TripletRow, texts_of
from forerun.data.sided_tokens import SidedData
from forerun.data.token_data import TokenSample
from forerun.errors import NotSupported
from forerun.own.facts import TaskFacts
from forerun.own.label_tables import EXAMPLES, THIRDS, shortened, thirds
from forerun.own.parts import OwnParts
from forerun.own.scoring import batches_by_length, scoring
from forerun.own.task import Task, named, strongest, watched
from forerun.own.tokens import encoded, tokenizer_of
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.pairs import NEGATIVE, OTHER, pooled
from forerun.step.training_step import TrainingStep
from forerun.train.recovery import in_pieces

RETRIEVAL_SCORES = {"mrr": True, "accuracy_at_1": True, "accuracy_at_10": True}
DRAWS = 1000
UNTRAINED = "untrained.json"
Rows = Sequence[PairRow | TripletRow]


@dataclass(frozen=True)
class RetrievalTask:
    """Texts of one part: who looks for whom among which."""

    anchors: list[str]
    candidates: list[str]
    places: np.ndarray
    """Candidate that each anchor looks for."""
    anchor_samples: list[TokenSample]
    candidate_samples: list[TokenSample]

    def ranks(self, similarity: np.ndarray) -> np.ndarray:
        """Expected rank from 1 on of each anchor's candidate, from similarities (anchors, candidates)."""
        own = similarity[np.arange(len(self.places)), self.places][:, None]
        above, equal = (similarity > own).sum(axis=1), (similarity == own).sum(axis=1)
        return above + (equal + 1) / 2


def rank_scores(ranks: np.ndarray) -> dict[str, float]:
    """Mean reciprocal rank, and shares of ranks of 1 and of at most 10."""
    return {
        "mrr": float((1 / ranks).mean()), "accuracy_at_1": float((ranks <= 1).mean()),
        "accuracy_at_10": float((ranks <= 10).mean()),
    }  # fmt: skip


def open_embedding(settings: Settings, parts: OwnParts, *, lengths_only: bool) -> Task:
    """The task of pairs or triplets.

    Raises:
        NotSupported: pairs have scores.
    """
    split = parts.split(settings.evaluation.examples)
    _require_no_scores(settings, split["train"])
    texts = (text for row in split["train"] for text in texts_of(row))
    tokenizer, assumptions = tokenizer_of(settings, texts, lengths_only=lengths_only)
    has_negatives = parts.format == "triplets"
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id,
    )  # fmt: skip

    def samples(own_texts: Sequence[str]) -> list[TokenSample]:
        rows = encoded(tokenizer, own_texts, None, facts.sequence_length)
        return [TokenSample(np.asarray(row["input_ids"], np.int32)) for row in rows]  # type: ignore[arg-type]

    def retrieval_task(rows: Rows) -> RetrievalTask:
        unique = list(dict.fromkeys(text for row in rows for text in texts_of(row)[1:]))
        numbers = {text: number for number, text in enumerate(unique)}
        places = np.asarray([numbers[row.positive] for row in rows])
        anchors = [row.anchor for row in rows]
        return RetrievalTask(anchors, unique, places, samples(anchors), samples(unique))

    sides = {prefix: samples([texts_of(row)[n] for row in split["train"]])
             for n, prefix in enumerate(("", OTHER, NEGATIVE)[: 3 if has_negatives else 2])}  # fmt: skip
    tasks = {part: retrieval_task(split[part]) for part in ("validation", "test")}
    untrained: dict[str, float] = {}

    def scores(step: TrainingStep, part: str) -> np.ndarray:
        task = tasks[part]
        return task.ranks(vectors(step, task.anchor_samples, facts) @ vectors(step, task.candidate_samples, facts).T)

    def before(step: TrainingStep, folder: Path) -> None:
        path = folder / UNTRAINED
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(rank_scores(scores(step, "test"))))
        untrained.update(json.loads(path.read_text()))

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=SidedData(settings, sides, facts.pad_id),
        train_size=len(split["train"]),
        watched_size=len(split["validation"]),
        final_examples=2 * (len(tasks["test"].anchors) + len(tasks["test"].candidates)),
        evaluate=lambda step: watched(rank_scores(scores(step, "validation"))),
        judge=lambda step: scores(step, "test"),
        baselines=lambda ranks: judge_ranks(ranks, tasks["test"], split["train"], untrained),
        scores=RETRIEVAL_SCORES,
        assumptions=assumptions,
        before=before,
    )


def _require_no_scores(settings: Settings, rows: Rows) -> None:
    if any(isinstance(row, PairRow) and row.score is not None for row in rows):
        raise NotSupported(
            f"data.fields: embedding learns from pairs that belong together; {settings.data.source} has a score for "
            f"each. Keep the pairs with high scores and leave the column out, or set workload to "
            f"sequence-classification with data.labels: number."
        )


def vectors(step: TrainingStep, samples: Sequence[TokenSample], facts: TaskFacts) -> np.ndarray:
    """Unit vectors (samples, D) in fp32."""
    settings = step.settings.model_copy(update={"batch": step.settings.batch.model_copy(update={"padding": "longest"})})
    data, device = SidedData(settings, {"": samples}, facts.pad_id), next(step.model.parameters()).device
    rows: dict[int, np.ndarray] = {}
    with scoring(step):
        for indices, batch in batches_by_length(data.lengths, data.collate):
            parts = in_pieces(
                lambda b: pooled(step.model, b["input_ids"].to(device), b["attention_mask"].to(device)), batch
            )
            rows.update(zip(indices, torch.cat(parts).float().cpu().numpy(), strict=True))
    return np.stack([rows[number] for number in range(len(samples))])


def judge_ranks(ranks: np.ndarray, task: RetrievalTask, train: Rows, untrained: dict[str, float]) -> Judgement:
    """Retrieval scores beside the baselines, by length, and the farthest positives."""
    words = task.ranks(word_similarity(task, [text for row in train for text in texts_of(row)]))
    chance = task.ranks(np.zeros((len(task.anchors), len(task.candidates))))
    baselines = {"tf-idf": rank_scores(words), "chance": rank_scores(chance)}
    baselines |= {"untrained": untrained} if untrained else {}
    best, of_best = strongest("mrr", baselines, is_higher_better=True)
    draws = np.random.default_rng(0).integers(0, len(ranks), (DRAWS, len(ranks)))
    low, high = np.quantile((1 / ranks)[draws].mean(axis=1), [0.025, 0.975])
    gap_low, gap_high = np.quantile((1 / ranks - 1 / words)[draws].mean(axis=1), [0.025, 0.975])
    metrics = {**rank_scores(ranks), **named(baselines), **of_best, "mrr.low": float(low), "mrr.high": float(high)}
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in RETRIEVAL_SCORES)]]
    rows += [[name, *(own[each] for each in RETRIEVAL_SCORES)] for name, own in baselines.items()]
    note = (
        f"{len(task.anchors):,} anchors, {len(task.candidates):,} candidates each. mrr {low:.3f} to {high:.3f} (95 %, "
        f"anchors drawn again), {gap_low:+.3f} to {gap_high:+.3f} against tf-idf. Strongest baseline: {best}."
    )
    worst: list[int] = np.argsort(-ranks, kind="stable")[:EXAMPLES].tolist()
    far: list[list[Cell]] = [
        [shortened(task.anchors[n]), shortened(task.candidates[task.places[n]]), float(ranks[n])] for n in worst
    ]
    slices: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds([len(sample.ids) for sample in task.anchor_samples]), strict=True):
        if len(part):
            own = rank_scores(ranks[part])
            slices.append([name, len(part), own["mrr"], own["accuracy_at_1"]])
    return Judgement(
        metrics,
        [
            ResultTable(title="Test, beside its baselines", note=note, columns=["", *RETRIEVAL_SCORES], rows=rows),
            ResultTable(title="By length", columns=["anchors", "count", "mrr", "accuracy at 1"], rows=slices),
            ResultTable(title="Farthest positives", columns=["anchor", "positive", "rank"], rows=far),
        ],
        comparison_data={"ranks": ranks.tolist()},
    )


def word_similarity(task: RetrievalTask, texts: Sequence[str]) -> np.ndarray:
    """Cosines of TF-IDF vectors of words, fitted to training texts (anchors, candidates)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words: Any = TfidfVectorizer(sublinear_tf=True).fit(texts)
    return (words.transform(task.anchors) @ words.transform(task.candidates).T).toarray()
