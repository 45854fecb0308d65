"""Folders of checkpoints: made durable, put into their place and taken away in one go, checked against their hashes.

A folder called `step-…` is whole or it is not there, whenever a process is killed: what is being written, and what is
being removed, has a temporary name. Disks may still damage one, which its manifest tells.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.errors import CheckpointDamaged

FORMAT = "forerun.checkpoint/3"
MANIFEST = "manifest.json"
TEMPORARY = ".partial-"


def seal(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Write and flush the manifest over `files` (name → hash): JSON on its second line; the first is its hash."""
    body = json.dumps({**manifest, "files": files})
    (folder / MANIFEST).write_text(f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")
    flush(folder / MANIFEST)
    flush(folder)


def put_in_place(temporary: Path, target: Path) -> None:
    """Move a complete checkpoint to its place."""
    if target.exists():
        remove_folder(target)
    temporary.rename(target)
    flush(target.parent)  # rename(2) is atomic, but durable only once its folder is flushed


def remove_folder(path: Path) -> None:
    """Take a checkpoint away, all of it at once: a kill in between leaves no half of one under its name."""
    aside = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent))
    path.rename(aside / path.name)
    shutil.rmtree(aside)


def prune_checkpoints(folder: Path, keep: int, newest: Path) -> None:
    """Remove all but the newest `keep` checkpoints up to `newest`, just written, and what crashes left behind.

    What claims a later step than the run has reached was passed over as damaged when the run resumed.
    """
    retained = [path for path in checkpoints(folder) if path.name <= newest.name][-keep:]
    for path in checkpoints(folder):
        if path not in retained:
            remove_folder(path)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first; not checked."""
    return sorted(folder.glob("step-*"))


def newest_of(folder: Path) -> str:
    """Path of the newest checkpoint for a message."""
    return str(next(reversed(checkpoints(folder)), "none yet"))


def manifest_of(path: Path) -> dict[str, Any]:
    """The manifest of `path`, after checking it and every file against their hashes.

    Raises:
        CheckpointDamaged: one does not match.
    """
    try:
        own_digest, _, body = (path / MANIFEST).read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != own_digest:
            raise CheckpointDamaged(f"Checkpoint {path} is damaged: {MANIFEST} does not match its hash.")
        manifest = json.loads(body)
        for name, digest in manifest["files"].items():
            if digest_of(path / name) != digest:
                raise CheckpointDamaged(f"Checkpoint {path} is damaged: {name} does not match its hash.")
    except OSError as error:
        raise CheckpointDamaged(f"Checkpoint {path} is damaged: {error}.") from error
    if manifest["format"] != FORMAT:
        raise CheckpointDamaged(
            f"Checkpoint {path} is a {manifest['format']}, not a {FORMAT}: another version wrote it."
        )
    return manifest


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Make a file or the entries of a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
