"""Training of the third tier's embedding: supervised contrast over tasks, the best epoch by validation retrieval.

Rows have `code`, `language` and `task`, and may have `source` and `split` (train, val, test; else tasks are spread by
the hash of their name). Without a file of rows, those shipped with the detector serve: their groups are mostly
near-duplicates, so little is learned from them beyond which features are rare. Epoch 0, the weighted features as they
are, is a candidate like any other epoch.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.json_rows import read_rows
from forerun.errors import BadData
from forerun.evaluate.retrieval import retrieval
from forerun.models.minilm import minilm_vectors
from forerun.recipes.code_detector.data.corpus import SPLIT_SHARES, embedded, split_of
from forerun.recipes.code_detector.embedding.model import FileEmbedding, rarity_of
from forerun.recipes.code_detector.embedding.vectors import EmbeddingCard, FileVectors
from forerun.recipes.code_detector.similarity.compare import Sizes, SourceFile
from forerun.recipes.code_detector.similarity.features import STRUCTURE, VOCABULARY, features_of
from forerun.recipes.code_detector.similarity.streams import GRAMMARS
from forerun.step.contrastive import supervised_contrastive

LEARNING_RATE = 3e-5
TASKS, FILES = 64, 4
"""Tasks of a batch, and files of each at most."""
SHIPPED_EPOCHS = 2
"""Epochs of training on the shipped rows."""
SCORED_FILES = 1500
"""Most files of a validation set that are scored: a whole matrix of cosines is ranked."""
UNRELATED_PAIRS, UNRELATED_STEPS, PIECE_PAIRS = 20_000, 1001, 400
PIECE_RANK = 0.99
"""Share of unrelated pairs whose pieces all stay below `EmbeddingCard.piece_cosine`."""
Floats = NDArray[np.float32]
ProgressCallback = Callable[[int, float, float, float], None]
"""Called with epoch, loss, the loss's floor and the validation score."""


@dataclass(frozen=True)
class TaskFile:
    """One solution of a task."""

    code: str
    language: str
    task: str
    source: str
    split: str


@dataclass(frozen=True)
class TrainedEmbedding:
    """The best epoch's model and what it scored."""

    model: FileEmbedding
    parts: list[int]
    epoch: int
    before: float
    score: float


def task_files(path: Path | None) -> list[TaskFile]:
    """Rows of a file, or those shipped.

    Raises:
        BadData: a row lacks a field, has an unknown language, or a task is in two splits.
    """
    if path is None:
        return [TaskFile(s.code, s.language, s.group, s.source, s.split) for s in embedded().samples]
    files: list[TaskFile] = []
    for number, row in enumerate(read_rows(path), start=1):
        missing = [key for key in ("code", "language", "task") if not isinstance(row.get(key), str) or not row[key]]
        if missing:
            raise BadData(f"{path.name} row {number}: code, language and task must be texts; {missing[0]} is not.")
        if row["language"] not in GRAMMARS:
            raise BadData(
                f"{path.name} row {number}: language must be one of {', '.join(GRAMMARS)}; found {row['language']!r}."
            )
        split = row.get("split") or split_of(row["task"])
        if split not in SPLIT_SHARES:
            raise BadData(f"{path.name} row {number}: split must be train, val or test; found {split!r}.")
        files.append(TaskFile(row["code"], row["language"], row["task"], str(row.get("source") or "given"), split))
    _require_apart(files, path.name)
    return files


def _require_apart(files: Sequence[TaskFile], name: str) -> None:
    split: dict[str, str] = {}
    for file in files:
        if split.setdefault(file.task, file.split) != file.split:
            raise BadData(f"{name}: task {file.task!r} is in {split[file.task]} and {file.split}. Keep tasks whole.")


def inputs(files: Sequence[TaskFile], vectors: Floats | None = None) -> torch.Tensor:
    """Features of files (n, parts), with the vectors of a pretrained encoder where there are any."""
    features = features_of([(file.code, file.language) for file in files])
    if vectors is not None:
        features = np.concatenate([features, vectors], axis=1)
    return torch.from_numpy(features.astype(np.float32))


def train_embedding(
    train: tuple[Sequence[TaskFile], torch.Tensor],
    validation: tuple[Sequence[TaskFile], torch.Tensor],
    epochs: int,
    on_progress: ProgressCallback = lambda epoch, loss, floor, score: None,
) -> TrainedEmbedding:
    """Train on files and their features; `on_progress` is called before the first epoch and after each.

    Raises:
        BadData: no task has two training files, or validation has nothing to retrieve.
    """
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    files, features = train
    parts = [VOCABULARY, STRUCTURE] + ([features.shape[1] - VOCABULARY - STRUCTURE] if _has_encoder(features) else [])
    model = FileEmbedding(parts, _rarity(features))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    names = {name: number for number, name in enumerate(sorted({file.task for file in files}))}
    tasks = torch.tensor([names[file.task] for file in files])
    before = validation_score(model, *validation)
    best, score, best_epoch = copy.deepcopy(model), before, 0
    on_progress(0, float("nan"), float("nan"), before)
    for epoch in range(1, epochs + 1):
        losses: list[float] = []
        floors: list[float] = []
        model.train()
        for batch in batches(files, random):
            optimizer.zero_grad()
            contrast = supervised_contrastive(model(features[batch]), tasks[batch])
            contrast.loss.backward()
            optimizer.step()
            losses.append(contrast.loss.item())
            floors.append(contrast.floor.item())
        now = validation_score(model, *validation)
        on_progress(epoch, float(np.mean(losses)), float(np.mean(floors)), now)
        if now > score:
            best, score, best_epoch = copy.deepcopy(model), now, epoch
    return TrainedEmbedding(best, parts, best_epoch, before, score)


def _has_encoder(features: torch.Tensor) -> bool:
    return features.shape[1] > VOCABULARY + STRUCTURE


def _rarity(features: torch.Tensor) -> torch.Tensor:
    """Weights of the features: the rarity of the hashed ones, 1 for a pretrained encoder's vector."""
    hashed = VOCABULARY + STRUCTURE
    return torch.cat([rarity_of(features[:, :hashed]), torch.ones(features.shape[1] - hashed)])


def batches(files: Sequence[TaskFile], random: np.random.Generator) -> list[NDArray[np.int64]]:
    """One epoch of index batches with several files of each task: half over all languages, half within one.

    Raises:
        BadData: no task has two files.
    """
    whole, single = _several(files, lambda file: file.task), _several(files, lambda file: (file.task, file.language))
    if not whole:
        raise BadData("training an embedding needs tasks with two files at least; found none. Give labelled tasks.")
    number = max(1, sum(map(len, whole)) // (TASKS * FILES))
    index_batches = []
    for group in (whole, single or whole):
        for _ in range(number):
            task_numbers = random.choice(len(group), min(TASKS, len(group)), replace=False)
            index_batches.append(np.concatenate([random.permutation(group[place])[:FILES] for place in task_numbers]))
    return index_batches


def _several(files: Sequence[TaskFile], key: Callable[[TaskFile], object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for number, file in enumerate(files):
        groups.setdefault(key(file), []).append(number)
    return [members for members in groups.values() if len(members) > 1]


def validation_score(model: FileEmbedding, files: Sequence[TaskFile], features: torch.Tensor) -> float:
    """Mean MAP@R over sets of one source and language, and over sources across their languages.

    Only sets in which two tasks have several files count: among files of one task nothing can be wrong.

    Raises:
        BadData: there is no such set.
    """
    vectors = embedded_rows(model, features)
    sets = [[n for n, file in enumerate(files) if (file.source, file.language) == key] for key in _keys(files)]
    scores = [_map_at_r(vectors, [files[n] for n in places], places) for places in sets]
    for source, group in groupby(_keys(files), key=lambda key: key[0]):
        if len(list(group)) > 1:
            places = [n for n, file in enumerate(files) if file.source == source]
            source_files = [files[n] for n in places]
            scores.append(_map_at_r(vectors, source_files, places, kinds=[file.language for file in source_files]))
    valid_scores = [score for score in scores if score is not None]
    if not valid_scores:
        raise BadData("validation of an embedding needs two tasks with two files each; found none in split val.")
    return float(np.mean(valid_scores))


def _keys(files: Sequence[TaskFile]) -> list[tuple[str, str]]:
    return sorted({(file.source, file.language) for file in files})


def _map_at_r(
    vectors: Floats, files: Sequence[TaskFile], places: Sequence[int], kinds: Sequence[str] | None = None
) -> float | None:
    files, places = files[:SCORED_FILES], list(places)[:SCORED_FILES]
    kinds = None if kinds is None else list(kinds)[:SCORED_FILES]
    several = _several(files, lambda file: file.task)
    if kinds is not None:
        several = [members for members in several if len({kinds[n] for n in members}) > 1]
    if len(several) < 2:
        return None
    cosines = (vectors[places] @ vectors[places].T).astype(float)
    return retrieval(cosines, [file.task for file in files], kinds=kinds, orders=1).map_at_r


def embedded_rows(model: FileEmbedding, features: torch.Tensor) -> Floats:
    """Unit vectors (n, width) of the rows, by the model in evaluation mode."""
    model.eval()
    with torch.inference_mode():
        return model(features).numpy()


def make_embedding(
    files: Sequence[TaskFile],
    data: str,
    *,
    epochs: int,
    minilm: bool = False,
    on_progress: ProgressCallback = lambda *figures: None,
) -> FileVectors:
    """Train, and measure on validation what unrelated files look like.

    Raises:
        BadData: too few tasks.
        MissingExtra: MiniLM is asked for without its wheel.
    """
    parts = {split: [file for file in files if file.split == split] for split in ("train", "val")}
    for split, part in parts.items():
        if len(part) < 2:
            raise BadData(f"{data}: training an embedding needs files in split {split}; found {len(part)}.")
    rows = {
        split: (part, inputs(part, minilm_vectors([file.code for file in part]) if minilm else None))
        for split, part in parts.items()
    }
    trained = train_embedding(rows["train"], rows["val"], epochs, on_progress)
    card = EmbeddingCard(
        data=data, files=len(parts["train"]), tasks=len({file.task for file in parts["train"]}), parts=trained.parts,
        encoder="minilm" if minilm else "none", width=trained.model.projection.out_features, epochs=trained.epoch,
        map_at_r_before=trained.before, map_at_r=trained.score,
        unrelated=unrelated_cosines(embedded_rows(trained.model, rows["val"][1]), parts["val"]), piece_cosine=1.0,
    )  # fmt: skip
    return _with_pieces(FileVectors(trained.model, card), parts["val"])


def unrelated_cosines(vectors: Floats, files: Sequence[TaskFile]) -> list[float]:
    """Quantiles of the cosine of two files of different tasks."""
    first, second = _unrelated(files, UNRELATED_PAIRS)
    cosines = (vectors[first] * vectors[second]).sum(axis=1)
    return np.quantile(cosines, np.linspace(0, 1, UNRELATED_STEPS)).tolist()


def _unrelated(files: Sequence[TaskFile], number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    random = np.random.default_rng(0)
    first, second = random.integers(len(files), size=(2, number))
    tasks = np.asarray([file.task for file in files])
    apart = tasks[first] != tasks[second]
    if not apart.any():
        raise BadData("an embedding's validation needs files of several tasks; found one task.")
    return first[apart], second[apart]


def _with_pieces(vectors: FileVectors, files: Sequence[TaskFile]) -> FileVectors:
    """The embedding with `piece_cosine` in its card: what pieces of unrelated files of one language hardly reach."""
    first, second = _unrelated(files, 10 * PIECE_PAIRS)
    pairs = [(i, j) for i, j in zip(first, second, strict=True) if files[i].language == files[j].language]
    sample_pairs = pairs[:PIECE_PAIRS] or list(zip(first, second, strict=True))[:PIECE_PAIRS]
    places = sorted({int(n) for pair in sample_pairs for n in pair})
    sources = [SourceFile("", files[n].code, files[n].language) for n in places]
    pieces = [vectors.piece_vectors(each) for each in vectors.embed_sources(sources, Sizes())]
    pieces_by_place = dict(zip(places, pieces, strict=True))
    closest = [float((pieces_by_place[int(i)] @ pieces_by_place[int(j)].T).max()) for i, j in sample_pairs]
    card = vectors.card.model_copy(update={"piece_cosine": float(np.quantile(closest, PIECE_RANK))})
    return FileVectors(vectors.model, card)
