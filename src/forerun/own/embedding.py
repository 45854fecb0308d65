"""Texts that belong together become neighbours (`embedding`): pairs, or triplets with a text that does not belong.

Judged by retrieval: every anchor of the test rows looks for its positive among all texts of the test rows that are not
anchors. Ties count at their expected place. Baselines: TF-IDF of words, the encoder before training, and chance.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerun.data.own.row_kinds import PairRow, TripletRow, texts_of
from forerun.data.own.splits import hash_of, normalised
from forerun.data.own.stored_rows import StoredRows
from forerun.data.sided_tokens import SidedData
from forerun.data.stored_samples import StoredSamples
from forerun.data.token_data import TokenSample
from forerun.errors import NotSupported
from forerun.evaluate.proportions import draws_of_rows
from forerun.own.facts import TaskFacts
from forerun.own.label_tables import EXAMPLES, THIRDS, shortened, thirds
from forerun.own.parts import OwnParts
from forerun.own.scoring import batches_by_length, scoring
from forerun.own.stores import stored_samples
from forerun.own.task import Task, named, strongest, watched
from forerun.own.tokens import encoded, tokenizer_of
from forerun.own.whole_files import write_whole
from forerun.own.workloads import workload_of_facts
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.settings.schema import Settings
from forerun.step.pairs import KEY, NEGATIVE, OTHER, pooled
from forerun.step.training_step import TrainingStep
from forerun.train.recovery import in_pieces

RETRIEVAL_SCORES = {"mrr": True, "accuracy_at_1": True, "accuracy_at_10": True}
DRAWS = 1000
BASELINE_ROWS = 200_000
"""Most training rows that TF-IDF is fitted to."""
SIMILARITIES = 2**25
"""Similarities in memory at once."""
UNTRAINED, RANKS = "untrained.json", "ranks"
Rows = Sequence[PairRow | TripletRow]


@dataclass(frozen=True)
class RetrievalTask:
    """Texts of one part: who looks for whom among which."""

    anchors: list[str]
    candidates: list[str]
    places: np.ndarray
    """Candidate that each anchor looks for."""
    anchor_samples: StoredSamples
    candidate_samples: StoredSamples
    others: Mapping[int, list[int]] = field(default_factory=dict)
    """Anchor → candidates that belong to it too, where it comes in several rows; they are not ranked."""

    def ranks(self, similarity: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Expected rank from 1 on of each anchor's candidate, from similarities (some anchors, candidates)."""
        ranks = []
        size = max(1, SIMILARITIES // max(1, len(self.candidates)))
        for first in range(0, len(self.anchors), size):
            part = slice(first, first + size)
            block, places = np.array(similarity(part)), self.places[part]
            for anchor in range(first, min(first + size, len(self.anchors))):
                block[anchor - first, self.others.get(anchor, [])] = -np.inf
            own = block[np.arange(len(places)), places][:, None]
            above, equal = (block > own).sum(axis=1), (block == own).sum(axis=1)
            ranks.append(above + (equal + 1) / 2)
        return np.concatenate(ranks)


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
    split = parts.split(settings.evaluation)
    _require_no_scores(settings, split["train"])
    texts = (text for row in parts.learning_rows for text in texts_of(row))
    tokenizer, assumptions = tokenizer_of(settings, texts, rows=parts.learning_rows.identity, lengths_only=lengths_only)
    has_negatives = parts.format == "triplets"
    facts = TaskFacts(
        workload=settings.workload, format=parts.format, fields=dict(parts.fields),
        sequence_length=settings.batch.sequence_length, pad_id=tokenizer.pad_token_id,
    )  # fmt: skip

    train = split["train"]
    sides = {
        prefix: text_samples(train, tokenizer, facts, prefix, lambda n=n: (texts_of(row)[n] for row in train))
        for n, prefix in enumerate(("", OTHER, NEGATIVE)[: 3 if has_negatives else 2])
    }
    tasks = {part: retrieval_task(split[part], tokenizer, facts) for part in ("validation", "test")}
    untrained: dict[str, Any] = {}

    def scores(step: TrainingStep, part: str) -> np.ndarray:
        task = tasks[part]
        anchors, candidates = (vectors(step, own, facts) for own in (task.anchor_samples, task.candidate_samples))
        return task.ranks(lambda part: anchors[part] @ candidates.T)

    def before(step: TrainingStep, folder: Path) -> None:
        path = folder / UNTRAINED
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(_with_ranks(scores(step, "test"))))
        untrained.update(json.loads(path.read_text()))

    return Task(
        facts=facts,
        tokenizer=tokenizer,
        workload=workload_of_facts(facts, tokenizer),
        data=SidedData(settings, sides, facts.pad_id, numbers=text_keys(train, tuple(sides))),
        train_size=len(train),
        watched_size=len(split["validation"]),
        test_size=len(split["test"]),
        final_examples=2 * (len(tasks["test"].anchors) + len(tasks["test"].candidates)),
        evaluate=lambda step: watched(rank_scores(scores(step, "validation"))),
        judge=lambda step: scores(step, "test"),
        baselines=lambda ranks: judge_ranks(ranks, tasks["test"], train, untrained),
        scores=RETRIEVAL_SCORES,
        assumptions=assumptions,
        before=before,
    )


def text_keys(rows: StoredRows, sides: Sequence[str]) -> dict[str, Any]:
    """A number for each text of each side, equal for equal texts, by the name that batches have for it."""
    keys = (int.from_bytes(hash_of(normalised(text)), signed=True) for row in rows for text in texts_of(row))
    table = np.fromiter(keys, np.int64).reshape(-1, len(sides))
    return {f"{side}{KEY}": table[:, n].copy() for n, side in enumerate(sides)}


def text_samples(
    rows: StoredRows, tokenizer: Any, facts: TaskFacts, side: str, texts: Callable[[], Iterable[str]]
) -> StoredSamples:
    """Samples of texts that `rows` decide about, on disk."""

    def samples(_: object) -> Iterator[TokenSample]:
        for row in encoded(tokenizer, ((text, None) for text in texts()), facts.sequence_length):
            yield TokenSample(np.asarray(row["input_ids"], np.int32))  # type: ignore[arg-type]

    return stored_samples(rows, tokenizer, {"task": facts.model_dump(mode="json"), "side": side}, samples)[0][""]


def retrieval_task(rows: StoredRows, tokenizer: Any, facts: TaskFacts) -> RetrievalTask:
    """Who of `rows` looks for whom; the texts themselves are in memory."""
    unique = list(dict.fromkeys(text for row in rows for text in texts_of(row)[1:]))
    numbers = {text: number for number, text in enumerate(unique)}
    places = np.asarray([numbers[row.positive] for row in rows])
    anchors = [row.anchor for row in rows]
    samples = [
        text_samples(rows, tokenizer, facts, side, lambda texts=texts: texts)
        for side, texts in (("anchors", anchors), ("candidates", unique))
    ]
    others = _other_places(anchors, places.tolist())
    return RetrievalTask(anchors, unique, places, samples[0], samples[1], others)


def _other_places(anchors: Sequence[str], places: Sequence[int]) -> dict[int, list[int]]:
    together: dict[str, set[int]] = {}
    for anchor, place in zip(anchors, places, strict=True):
        together.setdefault(anchor, set()).add(place)
    numbered = enumerate(zip(anchors, places, strict=True))
    return {n: sorted(together[anchor] - {place}) for n, (anchor, place) in numbered if len(together[anchor]) > 1}


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


def judge_ranks(ranks: np.ndarray, task: RetrievalTask, train: Rows, untrained: Mapping[str, Any]) -> Judgement:
    """Retrieval scores beside the baselines, by length, and the farthest positives.

    `untrained` holds the scores before training, and the `ranks` that they are of (not of runs before 2026-12-01).
    """
    stride = max(1, math.ceil(len(train) / BASELINE_ROWS))
    words = task.ranks(word_similarity(task, [text for row in train[::stride] for text in texts_of(row)]))
    ranked = np.asarray([len(task.candidates) - len(task.others.get(n, [])) for n in range(len(ranks))])
    chance = (ranked + 1) / 2
    baselines = {"tf-idf": rank_scores(words), "chance": rank_scores(chance)}
    rivals = {"tf-idf": words, "chance": chance}
    if untrained:
        baselines["untrained"] = {name: value for name, value in untrained.items() if name != RANKS}
        rivals |= {"untrained": np.asarray(untrained[RANKS])} if RANKS in untrained else {}
    best = strongest("mrr", baselines, is_higher_better=True)
    low, high = _mean_interval(1 / ranks)
    metrics = {**rank_scores(ranks), **named(baselines), "mrr.low": float(low), "mrr.high": float(high)}
    against = ""
    if best in rivals:
        gap_low, gap_high = _mean_interval(1 / ranks - 1 / rivals[best])
        metrics |= {"mrr.gap.low": gap_low, "mrr.gap.high": gap_high}
        against = f", {gap_low:+.3f} to {gap_high:+.3f} against it"
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in RETRIEVAL_SCORES)]]
    rows += [[name, *(own[each] for each in RETRIEVAL_SCORES)] for name, own in baselines.items()]
    note = (
        f"{len(task.anchors):,} anchors, {len(task.candidates):,} candidates each. mrr {low:.3f} to {high:.3f} (95 %, "
        f"anchors drawn again). Strongest baseline: {best}{against}."
        + (f" tf-idf is fitted to one training row in {stride}." if stride > 1 else "")
    )
    worst: list[int] = np.argsort(-ranks, kind="stable")[:EXAMPLES].tolist()
    far: list[list[Cell]] = [
        [shortened(task.anchors[n]), shortened(task.candidates[task.places[n]]), float(ranks[n])] for n in worst
    ]
    slices: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(task.anchor_samples.id_lengths), strict=True):
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


def _with_ranks(ranks: np.ndarray) -> dict[str, Any]:
    return {**rank_scores(ranks), RANKS: ranks.tolist()}


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of a mean over rows drawn again."""
    means = np.concatenate([values[draw].mean(axis=1) for draw in draws_of_rows(len(values), DRAWS)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def word_similarity(task: RetrievalTask, texts: Sequence[str]) -> Callable[[slice], np.ndarray]:
    """Cosines of TF-IDF vectors of words, fitted to training texts (some anchors, candidates)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words: Any = TfidfVectorizer(sublinear_tf=True).fit(texts)
    anchors, candidates = words.transform(task.anchors), words.transform(task.candidates).T
    return lambda part: (anchors[part] @ candidates).toarray()
