"""The data of the recipe `text-classifier`: parts and folds, tokens, augmented batches; all deterministic.

An epoch of P positions (samples, rare ones perhaps repeated) has the indices epoch · P to epoch · P + P - 1, so that a
batch knows its epoch from its indices alone, whoever collates it. The shapes of an epoch are those of its augmented
texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from forerun.data.labelled_text import (
    PARTS,
    Fields,
    LabelledText,
    Part,
    TextCorpus,
    read_corpus,
    shipped_corpus,
    uniform,
    with_folds,
)
from forerun.data.plan import BatchPlan
from forerun.data.sampler import COMPILED_MULTIPLE, LENGTH_MULTIPLE, LengthBucketSampler
from forerun.data.text_tokens import Encoded, TextTokens
from forerun.errors import InvalidSettings
from forerun.recipes.text_classifier.augmentation.policies import (
    IN_STEP,
    STEP_STREAM,
    AugmentationOptions,
    Augmenter,
    oversampled_positions,
)
from forerun.recipes.text_classifier.frozen_states import FrozenStates, padded_states
from forerun.recipes.text_classifier.model import Pooling
from forerun.settings.schema import Count, Section, Settings
from forerun.step.label_losses import LossName
from forerun.step.workload import Batch

MetricName = Literal["macro_f1", "micro_f1", "mcc", "balanced_accuracy", "average_precision"]
EVALUATION_BATCH_TOKENS = 8192
"""Padded tokens of an evaluation batch."""
EMBEDDING_METHODS = ("cutoff", "fgm", "pgd")
"""Methods of the training step that change the embeddings."""
CACHED_EPOCHS = 2
"""Epochs of encoded texts held in memory: the one that is trained and the one that is prepared."""


class TextClassifierOptions(Section):
    """`--set recipe.…=`"""

    dataset: Literal["sentence_polarity", "movie_reviews"] = "sentence_polarity"
    """Rows that ship with the package, where `data.source` names no others."""
    task: Literal["single-label", "multi-label"] = "single-label"
    """Whether a row has exactly one label."""
    text_field: str = "text"
    """Column of the text."""
    pair_field: str | None = None
    """Column of a second text, for tasks on pairs."""
    label_field: str = "label"
    """Column of the label or labels."""
    split_field: str = "split"
    """Column of the split: train, val or test; drawn by a hash of the text where it is missing."""
    label_separator: str = "|"
    """Text between the labels of one row, where a row has its labels in one string."""
    folds: Count = 1
    """Cut training and selection rows into so many fixed folds; 1 keeps the selection rows."""
    fold: Annotated[int, Field(ge=0)] = 0
    """Fold that provides the selection rows, counted from 0."""
    judged_on: Literal["test", "selection"] = "test"
    """Rows that are scored at the end: `selection` leaves the test rows alone, as every trial of a search does."""
    metric: MetricName = "macro_f1"
    """Metric by which a search compares its trials."""
    vocabulary_size: Count = 8000
    """Entries of the byte-pair vocabulary that `text-encoder` learns."""
    pooling: Pooling = "mean"
    """How hidden states become one vector."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout probability on the pooled vector."""
    loss: LossName = "cross-entropy"
    """Training loss; with several labels a row each label is a binary question of its own."""
    gamma: Annotated[float, Field(ge=0)] = 2.0
    """Focusing exponent of the focal and the asymmetric loss."""
    balance: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """beta of the class-balanced loss."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Probability below which a negative adds nothing to the asymmetric loss."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread over the labels."""
    head_rate: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate of the head over that of the encoder's last layer."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Learning rate of a layer over that of the layer above it."""
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    """Layers from the input on, embeddings included, that are never trained."""
    keep_frozen: bool = False
    """Compute the output of the frozen layers once for each text and keep it in `runs/frozen`: 4 bytes × tokens ×
    width a text. Training is the same. With cutoff, fgm and pgd, which change those layers' input, nothing is kept."""
    augmentation: AugmentationOptions = AugmentationOptions()
    """Augmentation of training samples."""


@dataclass
class TextData:
    """Rows, tokens and order of one run; `TrainingData` of its training part."""

    settings: Settings
    corpus: TextCorpus
    rows: dict[Part, tuple[LabelledText, ...]]
    tokens_of: TextTokens
    augmenter: Augmenter
    positions: list[int]
    """Index of the training row at each position of an epoch."""
    frozen: FrozenStates | None = None
    """States below the trained layers, where they are kept."""
    _encoded: dict[Part, list[Encoded]] = field(default_factory=dict)
    _epochs: dict[int, list[Encoded]] = field(default_factory=dict)
    _samplers: dict[int, LengthBucketSampler] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of labels."""
        return len(self.corpus.label_names)

    @property
    def label_counts(self) -> list[int]:
        """Training rows of each label."""
        return [sum(label in row.labels for row in self.rows["train"]) for label in range(self.classes)]

    def targets(self, part: Part) -> np.ndarray:
        """Label indicators of a part: zeros and ones (rows, labels)."""
        matrix = np.zeros((len(self.rows[part]), self.classes), dtype=np.int64)
        for number, row in enumerate(self.rows[part]):
            matrix[number, list(row.labels)] = 1
        return matrix

    def plan(self, epoch: int = 0) -> BatchPlan:
        """Shapes of an epoch, from the batches that training gets."""
        return self.sampler(epoch).plan(epoch)

    def sampler(self, epoch: int) -> LengthBucketSampler:
        """Order of one epoch, over its positions."""
        if epoch not in self._samplers:
            self._forget(self._samplers)
            batch = self.settings.batch
            if batch.padding == "packed":
                raise InvalidSettings(
                    "batch.padding: text-classifier pools each row as one text, so it cannot pack them; found "
                    "'packed'. Use bucketed, longest or fixed."
                )
            self._samplers[epoch] = LengthBucketSampler(
                lengths=[len(sample.ids) for sample in self.epoch_samples(epoch)],
                groups=[str(position) for position in range(len(self.positions))],
                micro_batch_size=batch.micro_batch_size,
                gradient_accumulation_steps=self.settings.micro_batches_per_step,
                sequence_length=batch.sequence_length,
                padding=batch.padding,
                length_multiple=LENGTH_MULTIPLE if self.settings.compile == "none" else COMPILED_MULTIPLE,
                seed=self.settings.seed,
            )
        return self._samplers[epoch]

    def epoch_samples(self, epoch: int) -> list[Encoded]:
        """Token ids of an epoch's texts, by position; augmented where a policy was drawn."""
        if epoch not in self._epochs:
            self._forget(self._epochs)
            train, plain = self.rows["train"], self.encoded("train")
            samples = [plain[index] for index in self.positions]
            texts = {}
            for position, index in enumerate(self.positions if self.augmenter.options.policies else ()):
                changed = self.augmenter.text(train[index].text, epoch, position)
                if changed != train[index].text:
                    texts[position] = (changed, train[index].pair)
            new_samples = (
                self.tokens_of.encode(list(texts.values()), self.settings.batch.sequence_length) if texts else []
            )
            for position, sample in zip(texts, new_samples, strict=True):
                samples[position] = sample
            self._epochs[epoch] = samples
        return self._epochs[epoch]

    def encoded(self, part: Part) -> list[Encoded]:
        """Token ids of a part as it is."""
        if part not in self._encoded:
            texts = [(row.text, row.pair) for row in self.rows[part]]
            self._encoded[part] = self.tokens_of.encode(texts, self.settings.batch.sequence_length) if texts else []
        return self._encoded[part]

    def epoch_steps(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        """Optimizer steps of an epoch, each its micro-batches, each indices."""
        first = epoch * len(self.positions)
        return [[(batch + first).tolist() for batch in step] for step in self.sampler(epoch).epoch(epoch)]

    def tokens(self, indices: Sequence[int]) -> tuple[int, int]:
        """Tokens of one micro-batch without and with padding."""
        epoch, places = self._places(indices)
        sampler = self.sampler(epoch)
        shape = sampler.shape(places)
        return sum(sampler.lengths[place] for place in places), shape.size * shape.length

    def collate(self, indices: Sequence[int]) -> Batch:
        """CPU tensors of one micro-batch."""
        epoch, places = self._places(indices)
        samples, length = self.epoch_samples(epoch), self.sampler(epoch).shape(places).length
        rows = [self.rows["train"][self.positions[place]] for place in places]
        batch = self._tensors([samples[place] for place in places], rows, length)
        methods = {policy.method for policy in self.augmenter.options.policies if policy.method in IN_STEP}
        return {**batch, **self._step_entries(methods, epoch, places, length)} if methods else batch

    def evaluation_batches(self, part: Part) -> Iterator[tuple[np.ndarray, Batch]]:
        """Rows and batches of a part, alike in length, each row once."""
        samples = self.encoded(part)
        if self.frozen is not None:
            self.frozen.fill(samples)
        order = np.argsort([len(sample.ids) for sample in samples], kind="stable")
        last, sampler = len(order), self.sampler(0)
        while last:
            length = sampler.padded(len(samples[order[last - 1]].ids))
            first = max(0, last - max(1, EVALUATION_BATCH_TOKENS // length))
            indices = order[first:last]
            yield indices, self._tensors([samples[n] for n in indices], [self.rows[part][n] for n in indices], length)
            last = first

    def _tensors(self, samples: Sequence[Encoded], rows: Sequence[LabelledText], length: int) -> Batch:
        ids = np.full((len(samples), length), self.tokens_of.pad_id, dtype=np.int64)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for number, sample in enumerate(samples):
            size = len(sample.ids)
            ids[number, :size], mask[number, :size], types[number, :size] = sample.ids, 1, sample.types
        labels = torch.zeros(len(rows), self.classes) if self.corpus.is_multi_label else None
        if labels is None:
            labels = torch.tensor([row.labels[0] for row in rows])
        else:
            for number, row in enumerate(rows):
                labels[number, list(row.labels)] = 1.0
        batch = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask), "labels": labels}
        if self.frozen is not None:
            batch["states"] = padded_states([self.frozen.of(s) for s in samples], length, self.frozen.width)
        return {**batch, "token_type_ids": torch.from_numpy(types)} if self.corpus.is_paired else batch

    def _step_entries(self, methods: set[str], epoch: int, places: Sequence[int], length: int) -> dict[str, Tensor]:
        """Tensors that tell the training step what to do with each sample; neutral for samples without a policy."""
        entries = step_entries(methods, len(places), length)
        for row, place in enumerate(places):
            policy = self.augmenter.policy(epoch, place)
            if policy is None or policy.method not in IN_STEP:
                continue
            random = self.augmenter.generator(epoch, place, STEP_STREAM)
            match policy.method:
                case "mixup":
                    entries["partner"][row] = int(random.integers(len(places)))
                    entries["share"][row] = float(random.beta(policy.strength, policy.strength))
                case "cutoff":
                    size = len(self.epoch_samples(epoch)[place].ids)
                    dropped = max(1, int(policy.strength * size))
                    entries["kept"][row, random.choice(size, size=min(dropped, size), replace=False)] = 0.0
                case "r-drop":
                    entries["consistency"][row] = policy.strength
                case _:
                    entries["attack"][row] = policy.strength
        return entries

    def _places(self, indices: Sequence[int]) -> tuple[int, list[int]]:
        epoch = int(indices[0]) // len(self.positions)
        return epoch, [int(index) - epoch * len(self.positions) for index in indices]

    @staticmethod
    def _forget(cache: dict[int, Any]) -> None:
        while len(cache) >= CACHED_EPOCHS:
            del cache[next(iter(cache))]

    def save_tokens(self, folder: Path) -> None:
        """Write the tokeniser and the names of the labels into `folder`."""
        self.tokens_of.save(folder)
        (folder / "labels.txt").write_text("\n".join(self.corpus.label_names) + "\n", encoding="utf-8")


def step_entries(methods: set[str], size: int, length: int) -> dict[str, Tensor]:
    """Batch entries for methods of the training step, with values that change nothing."""
    entries: dict[str, Tensor] = {}
    if "mixup" in methods:
        entries |= {"partner": torch.arange(size), "share": torch.ones(size)}
    if "cutoff" in methods:
        entries["kept"] = torch.ones(size, length)
    if "r-drop" in methods:
        entries["consistency"] = torch.zeros(size)
    if {"fgm", "pgd"} & methods:
        entries["attack"] = torch.zeros(size)
    return entries


def keeps_frozen(options: TextClassifierOptions) -> bool:
    """Whether batches hold what the frozen layers make of their texts."""
    touched = any(policy.method in EMBEDDING_METHODS for policy in options.augmentation.policies)
    return options.keep_frozen and options.frozen_layers > 0 and not touched


def open_corpus(settings: Settings, options: TextClassifierOptions) -> TextCorpus:
    """The corpus that the settings name, with the fold in place.

    Raises:
        BadData, MissingExtra: it cannot be read.
        InvalidSettings: there is no such fold.
    """
    if options.fold >= options.folds:
        raise InvalidSettings(
            f"recipe.fold: counts from 0 to recipe.folds - 1; found {options.fold} of {options.folds}. Lower it."
        )
    is_multi = options.task == "multi-label"
    if settings.data.source is None:
        if is_multi or options.pair_field is not None:
            raise InvalidSettings(
                f"recipe.task: the rows of {options.dataset} have one text and one label; found task={options.task!r} "
                f"and pair_field={options.pair_field!r}. Name your rows with data.source."
            )
        corpus = shipped_corpus(options.dataset)
    else:
        fields = Fields(
            text=options.text_field, pair=options.pair_field, label=options.label_field, split=options.split_field,
            separator=options.label_separator,
        )  # fmt: skip
        corpus = read_corpus(settings.data.source, fields, is_multi_label=is_multi)
    return with_folds(corpus, options.folds, options.fold)


def select_rows(corpus: TextCorpus, examples: int | None) -> dict[Part, tuple[LabelledText, ...]]:
    """Rows by part; of the training rows `examples`, in an order that a hash of their texts gives: files are sorted."""
    rows: dict[Part, tuple[LabelledText, ...]] = {part: corpus.part(part) for part in PARTS}
    rows["train"] = tuple(sorted(rows["train"], key=lambda row: uniform("order", row.key)))[:examples]
    return rows


def positions_of(rows: Sequence[LabelledText], share: float) -> list[int]:
    """Index of the training row at each position of an epoch."""
    return oversampled_positions([row.labels for row in rows], share)
