"""What is made of a file once, kept on disk for the next process: folders named by a hash of all that decides them.

An entry is a folder of files and of `entry.json`, which holds the key in words, facts of whoever filled it, and size
and SHA-256 of every file. It is filled beside its place and renamed, so that half an entry is never read; opening
checks the sums, and fills a damaged entry anew. A second process waits for the first, and what any process reads is not
removed. Unread entries leave once they are `UNREAD_SECONDS` old, and the longest unread ones while all of them take
more than `MOST_BYTES`.

Place: `$FORERUN_CACHE`, else `$XDG_CACHE_HOME/forerun`, else `~/.cache/forerun`. Opening costs one read of the entry:
2 cores of an Intel Xeon check about 1 GB a second.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forerun.errors import FilesNotWritten, ForerunError
from forerun.units import GIB, HOUR, format_bytes

MOST_BYTES = 64 * GIB
UNREAD_SECONDS = 30 * 24 * HOUR
MANIFEST, LOCK_LETTERS = "entry.json", 2
OWN_DATA = "rows and tokens of own data are kept here, about the size of the data and four bytes a token"
Fill = Callable[[Path], Mapping[str, Any]]
"""Writes an entry's files into a folder; what it returns are the entry's facts."""


class CacheEntry:
    """An entry whose sums are right, protected from removal for as long as this object lives."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder, self.facts = folder, facts
        file = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, file)
        fcntl.flock(file, fcntl.LOCK_SH)

    @property
    def name(self) -> str:
        """Hash of the key: two entries of one name hold the same."""
        return self.folder.name


def cache_root() -> Path:
    """Folder of the cache."""
    own = os.environ.get("FORERUN_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerun"


def kept_entry(key: Mapping[str, Any], root: Path) -> CacheEntry | None:
    """The entry of `key`, or None where it is not there or damaged; nothing is filled, nothing waited for."""
    folder = _folder(key, root)
    manifest = _checked(folder)
    if manifest is None:
        return None
    try:
        entry = CacheEntry(folder, manifest["facts"])
        os.utime(folder / MANIFEST)
    except OSError:  # removed by another process meanwhile, or on a disk that may not be written
        return None
    return entry


def cached(
    key: Mapping[str, Any], fill: Fill, root: Path | None = None, *,
    content: str = OWN_DATA, most_bytes: float | None = None,
) -> CacheEntry:  # fmt: skip
    """The entry of `key`, filled by `fill` where it is not there.

    `content` says for an error what is kept below `root`, which may take `most_bytes` (default: `MOST_BYTES`).

    Raises:
        FilesNotWritten: the folder is full, or may not be written.
    """
    root = root or cache_root()
    text, folder = json.dumps(key, sort_keys=True), _folder(key, root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder, wait=True):
            manifest = _checked(folder)
            if manifest is None:
                shutil.rmtree(folder, ignore_errors=True)
                manifest = _filled(folder, text, fill)
            os.utime(folder / MANIFEST)
            entry = CacheEntry(folder, manifest["facts"])
        _prune(root, MOST_BYTES if most_bytes is None else most_bytes)
    except ForerunError:
        raise
    except OSError as error:
        free = format_bytes(shutil.disk_usage(root).free) if root.is_dir() else "nothing"
        raise FilesNotWritten(
            f"{root}: {content}; "
            f"{error.strerror or error} ({free} free). Make room, or set FORERUN_CACHE to a folder with room."
        ) from error
    return entry


def entries_of(root: Path) -> tuple[int, int]:
    """Number of entries below `root`, and the bytes of all."""
    sizes = [size for _, size, _ in _entries(root)]
    return len(sizes), sum(sizes)


def _folder(key: Mapping[str, Any], root: Path) -> Path:
    return root / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Whether nobody else fills or removes the entry meanwhile; always so with `wait`.

    Entries share the locks of their first letters, so that lock files stay few.
    """
    file = os.open(folder.with_name(f"{folder.name[:LOCK_LETTERS]}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(file)


def _is_read(folder: Path) -> bool:
    """Whether some process holds the entry."""
    file = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _checked(folder: Path) -> Mapping[str, Any] | None:
    """The manifest of an entry; None where there is none, or a file is not as it says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        is_whole = all(_sums(folder / name) == sums for name, sums in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return manifest if is_whole else None


def _filled(folder: Path, key: str, fill: Fill) -> Mapping[str, Any]:
    """Fill an entry beside its place and put it there; its manifest."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: we have the lock
    partial.mkdir()
    try:
        facts = fill(partial)
        files = {str(path.relative_to(partial)): _sums(path) for path in sorted(partial.rglob("*")) if path.is_file()}
        manifest = {"key": json.loads(key), "facts": facts, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # there only where something failed
    return json.loads(json.dumps(manifest))


def _sums(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prune(root: Path, most_bytes: float) -> None:
    """Remove entries that nobody reads: those too old, and the longest unread while all are too large."""
    entries = sorted(_entries(root), key=lambda entry: -entry[0])
    whole, now = 0, time.time()
    for unread_since, size, folder in entries:
        whole += size
        if whole <= most_bytes and now - unread_since <= UNREAD_SECONDS:
            continue
        with contextlib.suppress(FileNotFoundError), _locked(folder, wait=False) as is_ours:
            if is_ours and not _is_read(folder):
                shutil.rmtree(folder, ignore_errors=True)
                whole -= size


def _entries(root: Path) -> Iterator[tuple[float, int, Path]]:
    """When each entry was read last, its bytes and its folder."""
    for manifest in root.glob(f"*/{MANIFEST}"):
        try:
            sizes = [path.stat().st_size for path in manifest.parent.rglob("*")]
            yield manifest.stat().st_mtime, sum(sizes), manifest.parent
        except OSError:  # another process has just removed it
            continue
