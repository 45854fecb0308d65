"""The embedding that `similar` takes where none is named: the folder's own, or that of the shipped rows, made once.

The shipped rows are near-duplicates and teach the head nothing, so it is the weighted features as they are (README).
"""

from pathlib import Path
from typing import Any

from forerun.current_work import work
from forerun.disk_cache import cache_root, cached
from forerun.forecasting.made_with import package_digest
from forerun.recipes.code_detector.embedding.training import make_embedding, task_files
from forerun.recipes.code_detector.embedding.vectors import FileVectors, read_embedding, write_embedding

OWN_FOLDER = Path("runs/embedding")
"""Where `forerun embed` writes."""
PART = "embedding"
EPOCHS = 0
"""Training on the shipped rows changes nothing (validation 0.397 before, 0.396 after an epoch)."""


def usual_embedding() -> FileVectors:
    """The embedding in `runs/embedding`, or that of the shipped rows from the cache.

    Raises:
        FilesNotWritten: the cache cannot be written.
    """
    if OWN_FOLDER.is_dir():
        return read_embedding(OWN_FOLDER)

    def fill(folder: Path) -> dict[str, Any]:
        with work("making the similarity embedding of the shipped rows, once"):
            vectors = make_embedding(task_files(None), "the shipped rows", epochs=EPOCHS)
        write_embedding(vectors.model, vectors.card, folder / PART)
        return {}

    key = {"part": "similarity embedding", "package": package_digest()}
    entry = cached(key, fill, cache_root() / "similarity", content="the similarity embedding is kept here")
    return read_embedding(entry.folder / PART)
