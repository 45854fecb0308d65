"""The data of the recipe `code-detector`: splits, token ids, batches; all deterministic in the settings.

The vocabulary of `code-encoder` is learned from the training split; other encoders bring their own. Only the code
itself becomes input: language, source, generator and task never leave the samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.plan import BatchPlan
from forerun.data.sampler import COMPILED_MULTIPLE, LENGTH_MULTIPLE, Indices, LengthBucketSampler
from forerun.errors import BadData, InvalidSettings, MissingExtra, NotSupported, UnknownModel
from forerun.models.code_encoder import CodeEncoderConfig
from forerun.models.minilm import minilm_directory
from forerun.models.pretrained_tokenizer import load_tokenizer
from forerun.recipes.code_detector.data.corpus import CodeCorpus, CodeSample, Split, embedded
from forerun.recipes.code_detector.data.normalise import normalise_code
from forerun.recipes.code_detector.data.tokens import PAD_ID, CodeTokeniser
from forerun.recipes.code_detector.options import options_of, require_start
from forerun.settings.schema import Settings
from forerun.step.workload import Batch

FROM_SCRATCH = "code-encoder"
HUB_NAMES = {
    "codebert": "microsoft/codebert-base",
    "graphcodebert": "microsoft/graphcodebert-base",
    "unixcoder": "microsoft/unixcoder-base",
}
"""Hugging Face ids behind short names, for weights and tokenisers."""
EVALUATION_BATCH_TOKENS = 16_384
"""Padded tokens of an evaluation batch: those of a full training batch, so that scoring needs no more memory."""

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class CodeDetectorData:
    """Samples and their token ids by split; build it with `open_data`."""

    samples: dict[Split, tuple[CodeSample, ...]]
    ids: dict[Split, list[Ids]]
    sampler: LengthBucketSampler
    """Order of the training split."""
    group_numbers: dict[str, int]
    tokeniser: Any
    """`CodeTokeniser`, or the Hugging Face tokeniser of a pretrained encoder."""
    pad_id: int
    windows: dict[Split, list[list[Ids]]] = field(default_factory=dict)
    """Of the held-out splits: parts of each long file that have a say in its verdict; empty for tokenisers without."""

    def save_tokeniser(self, folder: Path) -> None:
        """Write the tokeniser into `folder`."""
        if isinstance(self.tokeniser, CodeTokeniser):
            self.tokeniser.save(folder / "tokenizer.json")
        else:
            self.tokeniser.save_pretrained(folder)

    def plan(self, epoch: int = 0) -> BatchPlan:
        """The shapes of one epoch, from the batches that training gets."""
        return self.sampler.plan(epoch)

    def collate(self, indices: Sequence[int] | Indices, split: Split = "train") -> Batch:
        """CPU tensors of one micro-batch: input_ids and attention_mask (B, T), labels and groups (B,), all int64."""
        if split == "train":
            length = self.sampler.shape(indices).length
        else:
            length = self.sampler.padded(max(len(self.ids[split][i]) for i in indices))
        ids = np.full((len(indices), length), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(indices), length), dtype=np.int64)
        for row, index in enumerate(indices):
            tokens = self.ids[split][index]
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        batch_samples = [self.samples[split][index] for index in indices]
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.tensor([int(sample.is_ai) for sample in batch_samples]),
            "groups": torch.tensor([self.group_numbers[sample.group] for sample in batch_samples]),
        }

    def evaluation_batches(self, split: Split, limit: int | None = None) -> Iterator[tuple[Indices, Batch]]:
        """Indices and batches of a split (of its first `limit` samples), alike in length, each sample once."""
        lengths = np.asarray([len(tokens) for tokens in self.ids[split][:limit]])
        order = np.argsort(lengths, kind="stable")
        last = len(order)
        while last:  # longest first: the longest sample of a batch fixes its padded length
            length = self.sampler.padded(int(lengths[order[last - 1]]))
            first = max(0, last - max(1, EVALUATION_BATCH_TOKENS // length))
            indices = order[first:last].astype(np.int64)
            yield indices, self.collate(indices, split)
            last = first


def open_data(settings: Settings, corpus: CodeCorpus | None = None, *, lengths_only: bool = False) -> CodeDetectorData:
    """Load, split and tokenise `corpus` (the shipped rows unless given).

    `data.examples` below the size of the training split keeps that many of its first samples. With `lengths_only`,
    enough for a forecast, an encoder whose tokeniser is not on this machine is measured with the recipe's own, and more
    examples than there are here are taken to be like these.

    Raises:
        InvalidSettings: packed padding, which a file-level label does not allow.
        MissingExtra, UnknownModel: the encoder's tokeniser is not there.
    """
    if settings.batch.padding == "packed":
        raise InvalidSettings(
            "batch.padding: code-detector labels whole files, so it cannot pack them; found 'packed'. "
            "Use bucketed, longest or fixed."
        )
    corpus = embedded() if corpus is None else corpus
    samples: dict[Split, tuple[CodeSample, ...]] = {
        "train": _as_many(corpus.split("train"), settings.data.examples, repeat=lengths_only),
        "val": corpus.split("val"),
        "test": corpus.split("test"),
    }
    if settings.batch.padding == "packed":
        raise NotSupported(
            "batch.padding: the detector's files are compared by vectors of whole rows, so they are not packed; found "
            "'packed'. Set batch.padding to bucketed."
        )
    tokeniser, pad_id, ids = _tokenise(settings, samples, lengths_only)
    groups = {group: number for number, group in enumerate(dict.fromkeys(s.group for s in corpus.samples))}
    sampler = LengthBucketSampler(
        lengths=[len(tokens) for tokens in ids["train"]],
        groups=[sample.group for sample in samples["train"]],
        micro_batch_size=settings.batch.micro_batch_size,
        gradient_accumulation_steps=settings.micro_batches_per_step,
        sequence_length=settings.batch.sequence_length,
        padding=settings.batch.padding,
        length_multiple=LENGTH_MULTIPLE if settings.compile == "none" else COMPILED_MULTIPLE,
        seed=settings.seed,
    )
    return CodeDetectorData(
        samples, ids, sampler, groups, tokeniser, pad_id, _windows(settings, samples, ids, tokeniser)
    )


def _windows(
    settings: Settings, samples: dict[Split, tuple[CodeSample, ...]], ids: dict[Split, list[Ids]], tokeniser: Any
) -> dict[Split, list[list[Ids]]]:
    """Decisive windows of the files that are judged; those of a normalised text are not those of the file."""
    is_own = isinstance(tokeniser, CodeTokeniser) and settings.model.name == FROM_SCRATCH
    if not is_own or options_of(settings).form != "raw":
        return {}
    length = settings.batch.sequence_length
    splits: tuple[Split, ...] = ("val", "test")
    return {
        split: [
            tokeniser.decisive_windows(sample.code, length) if len(tokens) == length else []
            for sample, tokens in zip(samples[split], ids[split], strict=True)
        ]
        for split in splits
    }


def _as_many(samples: tuple[CodeSample, ...], count: int | None, *, repeat: bool) -> tuple[CodeSample, ...]:
    """The first `count` samples; for a forecast of more data than there is here, these over and over."""
    if repeat and count is not None and count > len(samples):
        return tuple(samples[place % len(samples)] for place in range(count))
    return samples[:count]


def _tokenise(
    settings: Settings, samples: dict[Split, tuple[CodeSample, ...]], lengths_only: bool
) -> tuple[Any, int, dict[Split, list[Ids]]]:
    length = settings.batch.sequence_length
    form = options_of(settings).form
    codes: dict[Split, list[str]] = {
        split: [text_of(sample.code, sample.language, form) for sample in rows] for split, rows in samples.items()
    }
    start = require_start(settings)
    if start is not None:
        return _encode_splits(load_exported_tokeniser(start, settings), codes, length)
    if settings.model.name == FROM_SCRATCH:
        return _own(codes, CodeEncoderConfig.from_overrides(settings.model.config).vocabulary_size, length)
    try:
        borrowed = _pretrained_tokeniser(settings.model.name, local_only=lengths_only)
    except (UnknownModel, MissingExtra):
        if not lengths_only:
            raise
        return _own(codes, CodeEncoderConfig().vocabulary_size, length)
    return _encode_splits(borrowed, codes, length)


def text_of(code: str, language: str, form: str) -> str:
    """The input text of a detector trained on that form of code."""
    return normalise_code(code, language) if form == "normalised" else code


def _own(codes: dict[Split, list[str]], vocabulary_size: int, length: int) -> tuple[Any, int, dict[Split, list[Ids]]]:
    return _encode_splits(CodeTokeniser.train(codes["train"], vocabulary_size), codes, length)


def _encode_splits(
    tokeniser: Any, codes: dict[Split, list[str]], length: int
) -> tuple[Any, int, dict[Split, list[Ids]]]:
    """The tokeniser, its padding id, and the token ids of every split."""
    if isinstance(tokeniser, CodeTokeniser):
        return tokeniser, PAD_ID, {split: tokeniser.encode(rows, length) for split, rows in codes.items()}
    return tokeniser, tokeniser.pad_token_id, {split: _encode(tokeniser, rows, length) for split, rows in codes.items()}


def load_exported_tokeniser(folder: Path, settings: Settings) -> Any:
    """The tokeniser beside an exported model: a `CodeTokeniser`, or a Hugging Face one.

    Raises:
        BadData: it is not there, or cannot be read.
    """
    if settings.model.name == FROM_SCRATCH:
        return CodeTokeniser.load(folder / "tokenizer.json")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise BadData(f"{folder}: the tokeniser cannot be read: {error}. Export the run again.") from error


def _pretrained_tokeniser(name: str, *, local_only: bool) -> Any:
    return load_tokenizer(
        minilm_directory() if name == "minilm" else HUB_NAMES.get(name, name), local_only=local_only,
        purpose=f"{name} is needed to train on code",
        instead="Give a local directory, or use code-encoder or minilm.",
    )  # fmt: skip


def _encode(tokeniser: Any, codes: Sequence[str], sequence_length: int) -> list[Ids]:
    encoded = tokeniser(list(codes), truncation=True, max_length=sequence_length, verbose=False)["input_ids"]
    return [np.asarray(ids, dtype=np.int32) for ids in encoded]
