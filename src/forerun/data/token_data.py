"""Training data from lists of token ids, for every generic workload: order, padding or packing, and collation.

A `TokenSample` is one sample after tokenising. Its `target` depends on the workload: nothing or labels per token for
`causal-lm` (`IGNORED` where the loss is not wanted), labels per token for `masked-lm` and `token-classification`, a
class, a number or one number a label for `sequence-classification`, token ids for `seq2seq-lm` and `pairs`. Longer
samples are cut.

Every batch carries `count` where valid labels are fewer than labels, so that the step can divide without asking the
device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.data.packing import PackedSampler, rows_of
from forerun.data.plan import BatchPlan
from forerun.data.sampler import COMPILED_MULTIPLE, LENGTH_MULTIPLE, LengthBucketSampler
from forerun.settings.schema import Settings

IGNORED = -100
"""Label of positions that do not count: `ignore_index` of torch/nn/functional.py (2.13), `cross_entropy`."""
Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class TokenSample:
    """One tokenised sample."""

    ids: Sequence[int]
    target: Sequence[int] | Sequence[float] | float | None = None
    types: Sequence[int] | None = None
    """Which of two texts each token belongs to; None where there is one text."""

    @property
    def token_labels(self) -> Sequence[int]:
        """The target as labels or ids of tokens; nothing where it is of the whole sample, or there is none."""
        return cast(Sequence[int], self.target) if isinstance(self.target, Sequence | np.ndarray) else ()


@runtime_checkable
class MeasuredSamples(Protocol):
    """Samples that know their lengths without being read."""

    id_lengths: NDArray[np.int64]
    """Ids of each sample."""
    target_lengths: NDArray[np.int64] | None
    """Target ids or labels of each sample; None where there are none of tokens."""


def id_lengths(samples: Sequence[TokenSample]) -> NDArray[np.int64]:
    """Ids of each sample."""
    if isinstance(samples, MeasuredSamples):
        return samples.id_lengths
    return np.fromiter((len(sample.ids) for sample in samples), dtype=np.int64, count=len(samples))


def target_lengths(samples: Sequence[TokenSample]) -> NDArray[np.int64]:
    """Target ids or labels of each sample; 0 where there are none of tokens."""
    if isinstance(samples, MeasuredSamples):
        own = samples.target_lengths
        return np.zeros(len(samples), dtype=np.int64) if own is None else own
    return np.fromiter((len(sample.token_labels) for sample in samples), dtype=np.int64, count=len(samples))


@dataclass(frozen=True)
class SampleOrder:
    """Which samples share a micro-batch, in which order: a pure function of settings, lengths and epoch."""

    settings: Settings

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample after cutting; of the longest where it has several texts."""
        raise NotImplementedError

    @cached_property
    def sampler(self) -> PackedSampler | LengthBucketSampler:
        """Order of the samples, and which of them share a micro-batch."""
        return sampler_of(self.settings, self.lengths)

    @cached_property
    def _orders(self) -> dict[int, Any]:
        return {}

    def plan(self) -> BatchPlan:
        """Shapes of the first epoch, as far as the run goes."""
        return self.sampler.plan(most_steps=self.settings.schedule.max_steps)

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch, each its micro-batches, each the indices of its samples."""
        if epoch not in self._orders:
            self._orders.clear()
            self._orders[epoch] = self.sampler.epoch(epoch)
        return self._orders[epoch]

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch without and with padding."""
        shape = self.sampler.shape(indices)
        return int(self.lengths[np.asarray(indices)].sum()), shape.size * shape.length


@dataclass(frozen=True)
class TokenData(SampleOrder):
    """`TrainingData` over samples, in memory or not; the order is a pure function of settings and epoch."""

    samples: Sequence[TokenSample]
    padding_id: int = 0
    start_id: int = 0
    """Id of the token that a decoder begins with (`seq2seq-lm`)."""

    def valid_labels(self) -> Iterator[int]:
        """Labels per token that count in the loss, of workloads that have them; ids where a sample has no others."""
        for sample in self.samples:
            labels = sample.ids if sample.target is None else sample.target
            assert not isinstance(labels, int | float), "a class of the whole sample is no label per token"
            yield from (int(label) for label in labels if label != IGNORED)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sample after cutting; of the longer side where there are two."""
        lengths = id_lengths(self.samples)
        if self.settings.workload in ("seq2seq-lm", "pairs"):
            lengths = np.maximum(lengths, target_lengths(self.samples))
        return np.minimum(lengths, self.settings.batch.sequence_length)

    def collate(self, indices: Sequence[int]) -> Batch:
        """Tensors of one micro-batch, on the host."""
        limit = self.settings.batch.sequence_length
        if self.settings.batch.padding == "packed":
            return self._packed(rows_of(indices, self.lengths, limit))
        samples, length = [self.samples[index] for index in indices], self.sampler.shape(indices).length
        ids = padded([s.ids for s in samples], length, self.padding_id)
        mask = padded([[1] * min(len(s.ids), length) for s in samples], length, 0)
        match self.settings.workload:
            case "causal-lm":
                # transformers/loss/loss_utils.py (5.23), ForCausalLMLoss shifts: a row's first label never counts
                labels = padded([_labels(s) for s in samples], length, IGNORED)
                return _counted({"input_ids": ids, "labels": labels}, labels[:, 1:])
            case "sequence-classification":
                labels = torch.tensor([s.target for s in samples])
                batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
                types = [s.types for s in samples if s.types is not None]
                return {**batch, "token_type_ids": padded(types, length, 0)} if types else batch
            case "pairs":
                others = [_ids(s.target) for s in samples]
                return {
                    "input_ids": ids, "attention_mask": mask,
                    "other_input_ids": padded(others, length, self.padding_id),
                    "other_attention_mask": padded([[1] * min(len(o), length) for o in others], length, 0),
                }  # fmt: skip
            case "seq2seq-lm":
                targets = [_ids(s.target)[:length] for s in samples]
                labels = padded(targets, length, IGNORED)
                decoder = padded([[self.start_id, *t[:-1]] for t in targets], length, self.padding_id)
                batch = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder, "labels": labels}
                return _counted(batch, labels)
            case _:
                labels = padded([_ids(s.target) for s in samples], length, IGNORED)
                return _counted({"input_ids": ids, "attention_mask": mask, "labels": labels}, labels)

    def _packed(self, rows: Sequence[Sequence[int]]) -> Batch:
        length = self.settings.batch.sequence_length
        is_classification = self.settings.workload == "sequence-classification"
        is_causal = self.settings.workload == "causal-lm"
        ids, documents, positions, labels = [], [], [], []
        firsts: list[int] = []
        edges = [0]
        for number, row in enumerate(rows):
            row_ids: list[int] = []
            row_documents: list[int] = []
            row_positions: list[int] = []
            own_labels: list[int] = []
            for document, index in enumerate(row, start=1):
                sample, size = self.samples[index], int(self.lengths[index])
                firsts.append(number * length + len(row_ids))
                row_ids.extend(sample.ids[:size])
                edges.append(firsts[-1] + size)
                row_documents.extend([document] * size)
                row_positions.extend(range(size))
                if not is_classification:
                    own = list(_labels(sample)[:size] if is_causal else _ids(sample.target)[:size])
                    own_labels.extend([IGNORED, *own[1:]] if is_causal else own)  # nobody predicts a first token
            if len(row_ids) < length:
                edges.append((number + 1) * length)
            ids.append(row_ids)
            documents.append(row_documents)
            positions.append(row_positions)
            labels.append(own_labels)
        batch = {
            "input_ids": padded(ids, length, self.padding_id), "documents": padded(documents, length, 0),
            "position_ids": padded(positions, length, 0),
            "boundaries": torch.tensor(edges, dtype=torch.int32),
            "longest": torch.tensor(max(after - before for before, after in pairwise(edges))),
        }  # fmt: skip
        if is_classification:
            classes = [self.samples[index].target for row in rows for index in row]
            return {**batch, "labels": torch.tensor(classes), "firsts": torch.tensor(firsts)}
        row_labels = padded(labels, length, IGNORED)
        return _counted({**batch, "labels": row_labels}, row_labels)


def sampler_of(settings: Settings, lengths: Sequence[int] | NDArray[np.int64]) -> PackedSampler | LengthBucketSampler:
    """Order of samples of so many tokens each, none longer than the settings' sequence length."""
    batch = settings.batch
    shape: dict[str, Any] = {
        "lengths": lengths, "micro_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": settings.micro_batches_per_step,
        "sequence_length": batch.sequence_length, "seed": settings.seed,
    }  # fmt: skip
    if batch.padding == "packed":
        return PackedSampler(**shape)
    multiple = LENGTH_MULTIPLE if settings.compile == "none" else COMPILED_MULTIPLE
    return LengthBucketSampler(**shape, padding=batch.padding, length_multiple=multiple)


def _ids(target: Sequence[int] | Sequence[float] | float | None) -> Sequence[int]:
    if target is None or isinstance(target, int | float):
        raise ValueError(f"a sample of this workload has a list of ids or labels as its target; found {target!r}")
    return target  # type: ignore[return-value]


def _labels(sample: TokenSample) -> Sequence[int]:
    return sample.ids if sample.target is None else _ids(sample.target)


def padded(rows: Sequence[Sequence[int]], length: int, filler: int) -> Tensor:
    """Rows of ids as one tensor (rows, `length`), cut or filled on the right."""
    result = torch.full((len(rows), length), filler, dtype=torch.long)
    for number, row in enumerate(rows):
        cut = row[:length]
        result[number, : len(cut)] = torch.as_tensor(cut, dtype=torch.long)
    return result


def _counted(batch: Batch, counted: Tensor) -> Batch:
    return {**batch, "count": (counted != IGNORED).sum()}
