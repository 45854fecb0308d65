"""Train the third tier's embedding on the clone sets and write its vectors for `benchmarks/similarity.py`.

    python benchmarks/similarity_embedding.py --data FOLDER --to FILE.npz [--epochs 6]
    … --minilm TRAIN.npz VAL.npz TEST.npz      MiniLM's frozen vectors (`similarity.py --minilm`) as a third part
    … --shipped                                 trained on the rows that ship with the package, as `forerun embed` alone
    … --made FOLDER                             vectors of an embedding that `forerun embed` made; nothing is trained

What trains is `recipes/code_detector/embedding/training.py`; test rows are embedded once, at the end. Method version 3:
version 2's batches of 64 tasks x 4 files, AdamW 3e-5, half of them in one language; tasks without a second file do not
count for the number of batches.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forerun.data.json_rows import read_rows
from forerun.recipes.code_detector.embedding.training import (
    Floats,
    TaskFile,
    embedded_rows,
    inputs,
    task_files,
    train_embedding,
)
from forerun.recipes.code_detector.embedding.vectors import read_embedding

LANGUAGES = {"Python": "python", "Java": "java", "C++": "cpp"}
Rows = list[dict[str, Any]]


def encoded(rows: Rows, vectors: dict[str, Floats]) -> torch.Tensor:
    """Features of rows, with the vectors of a pretrained encoder where there are any."""
    files = [TaskFile(row["code"], row["language"], "", "", "") for row in rows]
    return inputs(files, np.stack([vectors[row["id"]] for row in rows]) if vectors else None)


def on_progress(epoch: int, loss: float, floor: float, score: float) -> None:
    """One line an epoch."""
    print(f"epoch {epoch}: loss {loss:.3f} (floor {floor:.3f}), validation MAP@R {score:.3f}", file=sys.stderr)


def main() -> None:
    """Train, embed, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, nargs="*", default=[])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--made", type=Path)
    arguments = parser.parse_args()
    path = arguments.data / "snippets.jsonl.gz"
    if not path.exists():
        sys.exit(f"skipped: {arguments.data} has no snippets.jsonl.gz; the clone sets are not shipped.")
    vectors: dict[str, Floats] = {}
    for each in arguments.minilm:
        with np.load(each) as file:
            vectors |= dict(zip(file["ids"].tolist(), file["vectors"], strict=True))
    start = time.perf_counter()
    rows = read_rows(path)
    figures: dict[str, Any] = {}
    if arguments.made:
        embedding = read_embedding(arguments.made)
        model, figures = embedding.model, embedding.card.model_dump(exclude={"unrelated"})
    else:
        files = task_files(None if arguments.shipped else path)
        parts = {split: [file for file in files if file.split == split] for split in ("train", "val")}
        if vectors:  # rows and files of one path are in one order
            of_split = {split: [row for row in rows if row["split"] == split] for split in parts}
            data = {split: (parts[split], encoded(of_split[split], vectors)) for split in parts}
        else:
            data = {split: (files_of_split, inputs(files_of_split)) for split, files_of_split in parts.items()}
        trained = train_embedding(data["train"], data["val"], arguments.epochs, on_progress)
        model = trained.model
        figures = {"epoch": trained.epoch, "validation_map_at_r": trained.score, "before_training": trained.before}
    scored = read_rows(arguments.data / "codeaid_scored_pairs.jsonl.gz")
    people: Rows = [
        {"id": f"codeaid{n}{side}", "code": row[f"{side}_code"], "language": LANGUAGES[row["language"]]}
        for n, row in enumerate(scored)
        if row["language"] in LANGUAGES
        for side in ("human", "ai")
    ]
    evaluated = [*(row for row in rows if row["split"] == "test"), *people]
    embeddings = embedded_rows(model, encoded(evaluated, vectors))
    np.savez(arguments.to, ids=np.asarray([row["id"] for row in evaluated]), vectors=embeddings)
    seconds = round(time.perf_counter() - start, 1)
    print(json.dumps({"benchmark": "similarity_embedding", "version": 3, **figures, "seconds": seconds}))


if __name__ == "__main__":
    main()
