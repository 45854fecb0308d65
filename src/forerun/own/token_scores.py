"""How well are held-out tokens predicted? Nats and hits per sample, beside tables of counts and the untrained model.

One scorer for every language model: the step's workload says which label each logit answers. Losses are nats per
predicted token; perplexity is exp of that, bits per byte do not depend on the tokenizer.

Baselines: `unigram` (token counts, one added) and `bigram` (discounted pairs) of the training targets, and the model
before training. Intervals are 95 %, over samples drawn again.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from forerun.data.token_data import IGNORED, TokenData, TokenSample, id_lengths
from forerun.evaluate.language import bigram_table, unigram_table
from forerun.evaluate.proportions import draws_of_rows
from forerun.own.label_tables import THIRDS, shortened, thirds
from forerun.own.scoring import BATCH_TOKENS, answers
from forerun.own.task import named, strongest
from forerun.own.whole_files import write_whole
from forerun.report.tables import Cell, ResultTable
from forerun.runs.recipe import Judgement
from forerun.step.head_workload import HeadWorkload
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch

TOKEN_SCORES = {"loss": False, "perplexity": False, "accuracy": True}
LOGIT_VALUES, LOGIT_VALUES_ON_HOST, LEAST_TOKENS = 2**27, 2**21, 256
"""Most logits at once: 512 MiB in fp32. A host takes blocks of more than 32 MiB anew from the operating system each
time (glibc, M_MMAP_THRESHOLD), and filling their pages costs more than the arithmetic: 8 MiB, but some tokens."""
DRAWS, EXAMPLES = 1000, 8
UNTRAINED, NATS = "untrained.json", "nats"
COUNTED_TOKENS = 2**24
"""Most training tokens, about, of which tables of counts are made: 0.4 GiB."""
BLOCK_TARGETS = 2**20
"""Held-out targets that are looked up at once."""
SHOWN_TEXTS = 2000
"""First test samples among which the worst predicted are shown."""
Pairs = NDArray[np.int32]
PairsOf = Callable[[TokenSample], Pairs]


@dataclass(frozen=True)
class TokenScores:
    """Sums over the predicted tokens of each sample."""

    nats: np.ndarray
    targets: np.ndarray
    hits: np.ndarray
    """Targets that are the likeliest token."""

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum() / max(1, self.targets.sum()))

    def metrics(self, text_bytes: int | None = None) -> dict[str, float]:
        """Loss, perplexity, accuracy, and bits per byte of whole texts."""
        scores = {
            "loss": self.loss, "perplexity": math.exp(min(self.loss, 700.0)),
            "accuracy": float(self.hits.sum() / max(1, self.targets.sum())),
        }  # fmt: skip
        if text_bytes:
            scores["bits_per_byte"] = float(self.nats.sum()) / (text_bytes * math.log(2))
        return scores

    def interval(self, other: np.ndarray | float = 0.0) -> tuple[float, float]:
        """Ends of the 95 % interval of the loss; of its difference from `other`'s, given nats of the same samples."""
        gaps = self.nats - other
        losses = np.concatenate([
            gaps[draw].sum(axis=1) / np.maximum(1, self.targets[draw].sum(axis=1))
            for draw in draws_of_rows(len(self.nats), DRAWS)
        ])  # fmt: skip
        low, high = np.quantile(losses, [0.025, 0.975])
        return float(low), float(high)


def score_tokens(step: TrainingStep, data: TokenData) -> TokenScores:
    """Nats, targets and hits of every sample of `data`."""
    workload: Any = step.workload
    assert isinstance(workload, HeadWorkload)

    def score(batch: Batch) -> torch.Tensor:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "count")}
        return _sums(step.model(**inputs).logits, workload.targets(batch["labels"])).cpu()

    table = np.zeros((len(data.samples), 3))
    for indices, parts in answers(step, data, score, scored_tokens(step)):
        table[indices] = torch.cat(parts).numpy()
    return TokenScores(*table.T)


def scored_tokens(step: TrainingStep) -> int:
    """Padded tokens that are scored at once: as many as there is room for their logits."""
    vocabulary = int(getattr(getattr(step.model, "config", None), "vocab_size", 0) or 1)
    if next(step.model.parameters()).device.type == "cpu":
        return min(BATCH_TOKENS, max(LEAST_TOKENS, LOGIT_VALUES_ON_HOST // vocabulary))
    return min(BATCH_TOKENS, max(1, LOGIT_VALUES // vocabulary))


def _sums(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Nats, targets and hits of each row (B, 3) of logits (B, T, V) and labels (B, T)."""
    counts = labels != IGNORED
    predictions, targets = logits[counts].float(), labels[counts]
    losses = F.cross_entropy(predictions, targets, reduction="none")
    both = torch.stack([losses.double(), (predictions.argmax(dim=-1) == targets).double()], dim=1)
    rows = torch.zeros(len(labels), 2, dtype=torch.float64, device=both.device)
    rows.index_add_(0, counts.nonzero()[:, 0], both)
    return torch.stack([rows[:, 0], counts.sum(1).double(), rows[:, 1]], dim=1)


class Untrained:
    """Scores of the model before its first step, kept in the run's folder."""

    def __init__(self, data: TokenData):
        self.data = data
        self.scores: dict[str, float] = {}
        self.nats: np.ndarray | None = None
        """Of each sample; runs before 2026-12-01 kept none."""

    def score(self, step: TrainingStep, folder: Path) -> None:
        """Score the model as it is now, unless an earlier process of the run has."""
        path = folder / UNTRAINED
        if path.exists():
            content = json.loads(path.read_text())
            nats = content.pop(NATS, None)
            self.scores, self.nats = content, None if nats is None else np.asarray(nats)
            return
        scores = score_tokens(step, self.data)
        self.scores, self.nats = scores.metrics(), scores.nats
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({**self.scores, NATS: scores.nats.round(6).tolist()}))


def predicted_pairs(sample: TokenSample) -> Pairs:
    """The token before each target, and the target (targets, 2)."""
    ids = np.asarray(sample.ids, dtype=np.int32)
    labels = ids if sample.target is None else np.asarray(sample.target, dtype=np.int32)
    place = np.flatnonzero(labels[1:] != IGNORED)
    return np.stack([ids[place], labels[place + 1]], axis=1)


def count_baselines(
    train: Sequence[TokenSample], test: Sequence[TokenSample], pairs_of: PairsOf = predicted_pairs
) -> tuple[dict[str, dict[str, float]], dict[str, np.ndarray], str]:
    """Loss and perplexity of tables of counts; nats of each sample by them; and a sentence, where the tables do not
    count every training sample.

    Of more than `COUNTED_TOKENS` training tokens every n-th sample is counted, so that memory stays bounded.
    """
    stride = max(1, math.ceil(int(id_lengths(train).sum()) / COUNTED_TOKENS))
    counted = np.concatenate([pairs_of(sample) for sample in train[::stride]])
    size = 1 + max(
        int(block.max(initial=0)) for block in chain([counted], (block for block, _ in _blocks(test, pairs_of)))
    )
    tables = {"unigram": unigram_table(counted, size), "bigram": bigram_table(counted, size)}
    parts: dict[str, list[np.ndarray]] = {name: [] for name in tables}
    targets = 0
    for block, sizes in _blocks(test, pairs_of):
        targets += len(block)
        numbers = np.repeat(np.arange(len(sizes)), sizes)
        for name, nats in tables.items():
            parts[name].append(np.bincount(numbers, weights=nats(block), minlength=len(sizes)))
    by_sample = {name: np.concatenate(own) if own else np.zeros(0) for name, own in parts.items()}
    losses = {name: float(own.sum()) / max(1, targets) for name, own in by_sample.items()}
    scores = {name: {"loss": loss, "perplexity": math.exp(min(loss, 700.0))} for name, loss in losses.items()}
    note = f"Unigram and bigram are counts of {len(counted):,} training targets, those of one sample in {stride}."
    return scores, by_sample, note if stride > 1 else ""


def _blocks(samples: Sequence[TokenSample], pairs_of: PairsOf) -> Iterator[tuple[Pairs, list[int]]]:
    """All pairs of `samples`, of many samples at once, and how many each of them has."""
    block: list[Pairs] = []
    size = 0
    for sample in samples:
        block.append(pairs_of(sample))
        size += len(block[-1])
        if size >= BLOCK_TARGETS:
            yield np.concatenate(block), [len(pairs) for pairs in block]
            block, size = [], 0
    if block:
        yield np.concatenate(block), [len(pairs) for pairs in block]


def judge_tokens(
    scores: TokenScores,
    train: Sequence[TokenSample],
    test: Sequence[TokenSample],
    untrained: Untrained | None,
    *,
    text_bytes: int | None = None,
    texts: Sequence[str] = (),
    note: str = "",
    pairs_of: PairsOf = predicted_pairs,
) -> Judgement:
    """Scores of the test samples beside the baselines, by length, and the worst predicted texts.

    `pairs_of` gives a sample's pairs of (token before, target), which the tables of counts are made of.
    """
    baselines, nats, counted_note = count_baselines(train, test, pairs_of)
    if untrained is not None and untrained.scores:
        baselines["untrained"] = untrained.scores
        nats |= {} if untrained.nats is None else {"untrained": untrained.nats}
    metrics = scores.metrics(text_bytes)
    low, high = scores.interval()
    best = strongest("loss", baselines, is_higher_better=False)
    metrics |= {**named(baselines), "loss.low": low, "loss.high": high}
    against = ""
    if best in nats:
        gap_low, gap_high = scores.interval(nats[best])
        metrics |= {"loss.gap.low": gap_low, "loss.gap.high": gap_high}
        against = f", {gap_low:+.3f} to {gap_high:+.3f} against it"
    columns = ["loss", "perplexity", "accuracy", *(["bits_per_byte"] if text_bytes else [])]
    rows: list[list[Cell]] = [["model", *(metrics[name] for name in columns)]]
    rows += [[name, *(own.get(each) for each in columns)] for name, own in baselines.items()]
    notes = " ".join(filter(None, (counted_note, note)))
    text = (
        f"{int(scores.targets.sum()):,} predicted tokens of {len(test):,} test samples; loss {low:.3f} to {high:.3f} "
        f"nats (95 %, samples drawn again). Strongest baseline: {best}{against}. {notes}"
    ).strip()
    tables = [
        ResultTable(title="Test, beside its baselines", note=text, columns=["", *columns], rows=rows),
        _length_table(scores, test),
    ]
    if texts:
        tables.append(_worst_table(scores, texts))
    return Judgement(metrics, tables, comparison_data={"nats": scores.nats.round(4).tolist()})


def _length_table(scores: TokenScores, test: Sequence[TokenSample]) -> ResultTable:
    rows: list[list[Cell]] = []
    for name, part in zip(THIRDS, thirds(id_lengths(test)), strict=True):
        targets = int(scores.targets[part].sum())
        if targets:
            loss, hits = float(scores.nats[part].sum()) / targets, float(scores.hits[part].sum()) / targets
            rows.append([name, len(part), targets, loss, hits])
    return ResultTable(title="By length", columns=["samples", "count", "targets", "loss", "accuracy"], rows=rows)


def _worst_table(scores: TokenScores, texts: Sequence[str]) -> ResultTable:
    mean = scores.nats[: len(texts)] / np.maximum(1, scores.targets[: len(texts)])
    worst: list[int] = np.argsort(-mean, kind="stable")[:EXAMPLES].tolist()
    rows: list[list[Cell]] = [[shortened(texts[n]), int(scores.targets[n]), float(mean[n])] for n in worst]
    return ResultTable(title="Worst predicted", columns=["text", "targets", "loss"], rows=rows)
