"""Train the third tier's embedding on the clone sets and write its vectors for `benchmarks/similarity.py`.

    python benchmarks/similarity_embedding.py --data FOLDER --to FILE.npz [--minilm TRAIN.npz VAL.npz TEST.npz]

Supervised contrast over the tasks of the training split; the epoch with the best mean MAP@R over the validation sets
is kept; test rows are embedded once, at the end. With --minilm the frozen vectors of MiniLM (`similarity.py --minilm`)
are a third part of the input. Method version 2: batches of 64 tasks x 4 files, AdamW 3e-5, half of the batches in one
language, features weighted by rarity in the training split.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.data.json_rows import read_rows
from forerun.evaluate.retrieval import retrieval
from forerun.models.file_embedding import FileEmbedding, rarity_of
from forerun.similarity.features import STRUCTURE, VOCABULARY, features_of
from forerun.step.contrastive import supervised_contrastive

LEARNING_RATE = 3e-5
TASKS, FILES, LANGUAGES = 64, 4, {"Python": "python", "Java": "java", "C++": "cpp"}
Rows = list[dict[str, Any]]
Floats = NDArray[np.float32]


def inputs(rows: Rows, vectors: dict[str, Floats]) -> torch.Tensor:
    """Features of rows, with the vectors of a pretrained encoder where there are any."""
    found = features_of([(row["code"], row["language"]) for row in rows])
    if vectors:
        found = np.concatenate([found, np.stack([vectors[row["id"]] for row in rows])], axis=1)
    return torch.from_numpy(found.astype(np.float32))


def batches(rows: Rows, random: np.random.Generator) -> list[NDArray[np.int64]]:
    """One epoch of index batches with several files of each task."""
    by_task: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_task.setdefault(row["task"], []).append(number)
        by_task.setdefault(f"{row['task']} {row['language']}", []).append(number)
    names = [name for name, members in by_task.items() if len(members) > 1]
    whole = [name for name in names if name.rpartition(" ")[2] not in LANGUAGES.values()]
    single = [name for name in names if name.rpartition(" ")[2] in LANGUAGES.values()]
    made = []
    for group in (whole, single):
        for _ in range(max(1, len(rows) // (TASKS * FILES))):
            chosen = random.choice(group, min(TASKS, len(group)), replace=False)
            made.append(np.concatenate([random.permutation(by_task[name])[:FILES] for name in chosen]))
    return made


def validation_score(vectors: Floats, rows: Rows) -> float:
    """Mean MAP@R over sources and languages, and across languages."""
    scores = []
    sets = sorted({(row["source"], row["language"]) for row in rows if row["source"] != "irplag_java"})
    for key in sets:
        places = [n for n, row in enumerate(rows) if (row["source"], row["language"]) == key]
        found = vectors[places] @ vectors[places].T
        scores.append(retrieval(found.astype(float), [rows[n]["task"] for n in places], orders=1).map_at_r)
    places = [n for n, row in enumerate(rows) if row["source"] == "rosettacode_2016"]
    found = (vectors[places] @ vectors[places].T).astype(float)
    kinds = [rows[n]["language"] for n in places]
    scores.append(retrieval(found, [rows[n]["task"] for n in places], kinds=kinds, orders=1).map_at_r)
    return float(np.mean(scores))


def embedded(model: FileEmbedding, features: torch.Tensor) -> Floats:
    """Unit vectors."""
    model.eval()
    with torch.inference_mode():
        return model(features).numpy()


def _rarity(features: torch.Tensor, parts: Sequence[int]) -> torch.Tensor:
    """Of the hashed parts; a pretrained encoder's vector is taken as it is."""
    hashed = VOCABULARY + STRUCTURE
    return torch.cat([rarity_of(features[:, :hashed]), torch.ones(sum(parts) - hashed)])


def trained(
    parts: Sequence[int], data: dict[str, tuple[Rows, torch.Tensor]], epochs: int
) -> tuple[FileEmbedding, float]:
    """The best epoch's model and its validation score."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    rows, features = data["train"]
    model = FileEmbedding(parts, _rarity(features, parts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    names = {name: number for number, name in enumerate(sorted({row["task"] for row in rows}))}
    tasks = torch.tensor([names[row["task"]] for row in rows])
    best, score = copy.deepcopy(model), validation_score(embedded(model, data["val"][1]), data["val"][0])
    print(f"before training: validation MAP@R {score:.3f}", file=sys.stderr)
    for epoch in range(epochs):
        model.train()
        losses, floors = [], []
        for chosen in batches(rows, random):
            optimizer.zero_grad()
            found = supervised_contrastive(model(features[chosen]), tasks[chosen])
            found.loss.backward()
            optimizer.step()
            losses.append(found.loss.item())
            floors.append(found.floor.item())
        now = validation_score(embedded(model, data["val"][1]), data["val"][0])
        print(
            f"epoch {epoch}: loss {np.mean(losses):.3f} (floor {np.mean(floors):.3f}), MAP@R {now:.3f}", file=sys.stderr
        )
        if now > score:
            best, score = copy.deepcopy(model), now
    return best, score


def main() -> None:
    """Train, embed, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    if not (arguments.data / "snippets.jsonl.gz").exists():
        sys.exit(f"skipped: {arguments.data} has no snippets.jsonl.gz; the clone sets are not shipped.")
    vectors: dict[str, Floats] = {}
    for path in arguments.minilm:
        with np.load(path) as found:
            vectors |= dict(zip(found["ids"].tolist(), found["vectors"], strict=True))
    every = read_rows(arguments.data / "snippets.jsonl.gz")
    start = time.perf_counter()
    data = {}
    for split in ("train", "val", "test"):
        rows = [row for row in every if row["split"] == split]
        data[split] = (rows, inputs(rows, vectors))
    parts = [VOCABULARY, STRUCTURE, *([384] if vectors else [])]
    model, score = trained(parts, data, arguments.epochs)
    scored = read_rows(arguments.data / "codeaid_scored_pairs.jsonl.gz")
    people: Rows = [
        {"id": f"codeaid{n}{side}", "code": row[f"{side}_code"], "language": LANGUAGES[row["language"]]}
        for n, row in enumerate(scored)
        if row["language"] in LANGUAGES
        for side in ("human", "ai")
    ]
    kept = [*data["val"][0], *data["test"][0], *people]
    features = torch.cat([data["val"][1], data["test"][1], inputs(people, vectors)])
    np.savez(arguments.to, ids=np.asarray([row["id"] for row in kept]), vectors=embedded(model, features))
    seconds = round(time.perf_counter() - start, 1)
    print(
        json.dumps(
            {"benchmark": "similarity_embedding", "version": 2, "validation_map_at_r": score, "seconds": seconds}
        )
    )


if __name__ == "__main__":
    main()
