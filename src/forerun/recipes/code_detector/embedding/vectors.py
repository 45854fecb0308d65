"""The third tier in use: an embedding that `forerun embed` trained, read back from its folder alone.

A cosine says little by itself, so beside it stands how many pairs of unrelated validation files are as alike. Evidence
are pieces (`similarity.pieces`) that are each other's nearest and closer than those of unrelated files almost ever are.

The folder holds `embedding.json` and `embedding.safetensors`. With `encoder` "minilm" the vectors of the pretrained
MiniLM are a part of the input, whose wheel must then be installed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from forerun.errors import BadData
from forerun.models.minilm import minilm_vectors
from forerun.recipes.code_detector.embedding.model import FileEmbedding
from forerun.recipes.code_detector.similarity.compare import (
    BaseCode,
    Evidence,
    FileComparison,
    PreparedFile,
    Sizes,
    SourceFile,
    prepare,
)
from forerun.recipes.code_detector.similarity.features import part_features
from forerun.recipes.code_detector.similarity.pieces import Piece, pieces_of
from forerun.records import Record

DESCRIPTION, WEIGHTS = "embedding.json", "embedding.safetensors"
Floats = NDArray[np.float32]


class EmbeddingCard(Record):
    """Description of a trained embedding, stored beside its weights."""

    format: str = "forerun.embedding/1"
    data: str
    """Name of the rows it was trained on."""
    files: int
    tasks: int
    parts: list[int]
    """Widths of the input's parts."""
    encoder: str
    """`none`, or the pretrained encoder whose vectors are the last part."""
    width: int
    epochs: int
    """Epochs after which it was best on validation; 0: training did not help, the weighted features are used."""
    map_at_r_before: float
    map_at_r: float
    """Mean MAP@R over the validation sets, before training and of this model."""
    unrelated: list[float]
    """Cosines of pairs of unrelated validation files, rising, at equal steps of their rank."""
    piece_cosine: float
    """Cosine that no pair of pieces reaches in 99 % of pairs of unrelated files."""


@dataclass(frozen=True)
class EmbeddedFile:
    """A file with its vector."""

    code: str
    file: PreparedFile
    vector: Floats


class FileVectors:
    """A trained embedding; answers do not depend on what else is asked."""

    def __init__(self, model: FileEmbedding, card: EmbeddingCard):
        self.model, self.card = model.eval(), card

    def embed(self, files: Sequence[tuple[str, PreparedFile]]) -> list[EmbeddedFile]:
        """Vectors of files, each with its code."""
        vectors = self._vectors([(code, file, None) for code, file in files])
        return [EmbeddedFile(code, file, vector) for (code, file), vector in zip(files, vectors, strict=True)]

    def embed_sources(
        self, files: Sequence[SourceFile], sizes: Sizes, base: BaseCode | None = None
    ) -> list[EmbeddedFile]:
        """Vectors of files that are not prepared yet; `base` is code that was handed out."""
        return self.embed([(file.code, prepare(file, sizes, base)) for file in files])

    def unrelated_share(self, cosine: float) -> float:
        """Share of pairs of unrelated validation files that are at least as alike."""
        ranked = np.asarray(self.card.unrelated)
        return float(np.mean(ranked >= cosine))

    def evidence(self, a: EmbeddedFile, b: EmbeddedFile) -> list[Evidence]:
        """Pieces that are each other's nearest and closer than those of unrelated files, the closest first."""
        first, second = (pieces_of(each.code, each.file) for each in (a, b))
        cosines = self._of_pieces(a, first) @ self._of_pieces(b, second).T
        stretches: list[Evidence] = []
        for i, j in enumerate(cosines.argmax(axis=1).tolist()):
            if cosines[:, j].argmax() == i and cosines[i, j] > self.card.piece_cosine:
                one, two = first[i], second[j]
                stretches.append(
                    Evidence(
                        tier="embedding", a_first_line=one.first_line, a_last_line=one.last_line,
                        b_first_line=two.first_line, b_last_line=two.last_line, tokens=min(one.marks, two.marks),
                        cosine=min(1.0, float(cosines[i, j])),
                    )
                )  # fmt: skip
        return sorted(stretches, key=lambda each: -(each.cosine or 0.0))

    def piece_vectors(self, embedded: EmbeddedFile) -> Floats:
        """Unit vectors (pieces, width) of a file's pieces."""
        return self._of_pieces(embedded, pieces_of(embedded.code, embedded.file))

    def with_evidence(self, comparison: FileComparison, a: EmbeddedFile, b: EmbeddedFile) -> FileComparison:
        """A comparison with this tier's evidence at its end; none of files that are too small."""
        more = [] if comparison.too_small else self.evidence(a, b)
        return comparison.model_copy(update={"evidence": [*comparison.evidence, *more]})

    def _of_pieces(self, embedded: EmbeddedFile, pieces: Sequence[Piece]) -> Floats:
        return self._vectors([(embedded.code, embedded.file, piece) for piece in pieces])

    def _vectors(self, parts: Sequence[tuple[str, PreparedFile, Piece | None]]) -> Floats:
        """Unit vectors (n, width) of files or of their pieces."""
        if not parts:
            return np.zeros((0, self.card.width), np.float32)
        features = np.stack([_features(code, file, piece) for code, file, piece in parts])
        if self.card.encoder == "minilm":
            features = np.concatenate([features, minilm_vectors([_text(code, piece) for code, _, piece in parts])], 1)
        with torch.inference_mode():
            return self.model(torch.from_numpy(features.astype(np.float32))).numpy()


def _features(code: str, file: PreparedFile, piece: Piece | None) -> Floats:
    lines = code.split("\n")
    first, last = (1, len(lines)) if piece is None else (piece.first_line, piece.last_line)
    return part_features(file.streams, lines, file.used_syntax, first, last)


def _text(code: str, piece: Piece | None) -> str:
    return code if piece is None else "\n".join(code.split("\n")[piece.first_line - 1 : piece.last_line])


def cosine_of(a: EmbeddedFile, b: EmbeddedFile) -> float:
    """Cosine of two files' vectors, from -1 to 1."""
    return float(np.clip(a.vector @ b.vector, -1, 1))


def write_embedding(model: FileEmbedding, card: EmbeddingCard, folder: Path) -> None:
    """Write both files into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    # safetensors/torch.py (0.8): save_file refuses tensors that are not contiguous.
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)
    (folder / DESCRIPTION).write_text(card.model_dump_json(indent=2), encoding="utf-8")


def read_embedding(folder: Path) -> FileVectors:
    """The embedding in `folder`.

    Raises:
        BadData: there is none, or it is damaged.
    """
    try:
        card = EmbeddingCard.model_validate(json.loads((folder / DESCRIPTION).read_text(encoding="utf-8")))
        stored = load_file(folder / WEIGHTS)
        model = FileEmbedding(card.parts, width=card.width)
        model.load_state_dict(stored)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise BadData(f"{folder}: no embedding of files: {error}. Make one with forerun embed.") from error
    return FileVectors(model, card)
