"""Rows and tokens of a run, on disk from its first start on: read and tokenised once, opened by every later process.

The key of rows is the content of the files and what of `data` decides about rows and parts; that of tokens is the key
of their rows, the tokenizer with its template, and what the workload makes of them. Both hold a digest of the code that
makes them, so that another version of Forerun never opens what this one wrote.
"""

import functools
import hashlib
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import forerun
from forerun.data.hub_rows import load_from_hub
from forerun.data.own.rows import is_hub_id
from forerun.data.own.splits import HeldOutSplit, own_sources
from forerun.data.own.stored_rows import StoredRows
from forerun.data.stored_samples import StoredSamples, write_samples
from forerun.data.token_data import TokenSample
from forerun.disk_cache import CacheEntry, cached, file_digest
from forerun.settings.schema import Settings

CODES, BYTE_PAIRS = "codes.npy", "byte_pairs.json"
NOT_OF_ROWS = {"source", "validation", "test", "examples", "mean_tokens", "too_long", "workers", "contamination"}
"""Fields of `data` that do not decide about rows; the files count by their content."""
Facts = dict[str, Any]


def row_entry(settings: Settings, fill: Callable[[Path], tuple[HeldOutSplit, Facts]]) -> CacheEntry:
    """The entry of the rows of `settings.data`; `fill` writes them, and says their parts and facts to keep of them.

    Raises:
        FilesNotWritten: as `cached`.
        BadData: as `fill`.
    """
    data = settings.data
    shares = [value for value in (data.validation, data.test) if not isinstance(value, str)]
    key = {
        "what": "rows", "code": code_digest(), "workload": settings.workload, "shares": shares,
        "sources": [[part, source_digest(source or "")] for source, part in own_sources(data)],
        "data": data.model_dump(mode="json", exclude=NOT_OF_ROWS),
    }  # fmt: skip

    def filled(folder: Path) -> Facts:
        split, facts = fill(folder)
        np.save(folder / CODES, split.codes)
        left = {"left_training": split.left_training, "left_validation": split.left_validation}
        return {**facts, "source": data.source, **left}

    return cached(key, filled)


def stored_samples(
    rows: StoredRows,
    tokenizer: Any,
    meaning: Mapping[str, Any],
    make: Callable[[Facts], Mapping[str, Iterator[TokenSample]] | Iterator[TokenSample]],
) -> tuple[dict[str, StoredSamples], Facts]:
    """Samples of `rows` by side (`""` where there is one), and facts that `make` wrote down on the way.

    `make` yields the samples in order, those of several sides in turn; `meaning` is all that decides about them besides
    rows and tokenizer.
    """
    key = {
        "what": "tokens", "code": code_digest(), "rows": rows.identity, "tokenizer": tokenizer_digest(tokenizer),
        "meaning": json.loads(json.dumps(meaning, sort_keys=True)),
    }  # fmt: skip

    def filled(folder: Path) -> Facts:
        facts: Facts = {}
        samples = make(facts)
        sides = samples if isinstance(samples, Mapping) else {"": samples}
        for number, own in enumerate(sides.values()):
            write_samples(folder / f"side-{number}", own)
        return {**facts, "sides": list(sides)}

    entry = cached(key, filled)
    sides = {
        name: StoredSamples(entry.folder / f"side-{number}", entry) for number, name in enumerate(entry.facts["sides"])
    }
    return sides, dict(entry.facts)


def stored_byte_pairs(rows: Sequence[str], meaning: Mapping[str, Any], learn: Callable[[], Tokenizer]) -> Tokenizer:
    """Byte pairs learned from the rows of that identity; `meaning` is all else that decides about them.

    Raises:
        FilesNotWritten: as `cached`.
    """

    def filled(folder: Path) -> Facts:
        learn().save(str(folder / BYTE_PAIRS))
        return {}

    entry = cached({"what": "byte pairs", "code": code_digest(), "rows": list(rows), "meaning": dict(meaning)}, filled)
    return Tokenizer.from_file(str(entry.folder / BYTE_PAIRS))


def source_digest(source: str) -> list[Any]:
    """Names and digests of all that a source of rows is; something new each time where that cannot be told."""
    path = Path(source)
    if path.is_file():
        return [path.name, file_digest(path)]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return [[str(file.relative_to(path)), file_digest(file)] for file in files]
    if not is_hub_id(source):
        return []  # no such file: reading it says so
    loaded = load_from_hub(*source.split(":"))
    # datasets names its files by the hash of the revision that they are of
    files = {split: [file["filename"] for file in part.cache_files] for split, part in loaded.items()}
    return [source, files] if all(files.values()) else [source, uuid.uuid4().hex]


def tokenizer_digest(tokenizer: Any) -> str:
    """Hash of the files of a tokenizer, its template among them, but not of how it cut or padded last."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        digest = hashlib.sha256(type(tokenizer).__name__.encode())
        for path in sorted(Path(folder).rglob("*")):
            if path.name == "tokenizer.json":
                content = json.loads(path.read_text(encoding="utf-8"))
                text = json.dumps({**content, "truncation": None, "padding": None}, sort_keys=True).encode()
            else:
                text = path.read_bytes() if path.is_file() else b""
            digest.update(f"\n{path.name}\n".encode() + text)
    return digest.hexdigest()


@functools.cache
def code_digest() -> str:
    """Hash of the code that reads rows and makes samples of them, and of the tokenizers' versions."""
    digest = hashlib.sha256(f"{version('tokenizers')} {version('transformers')}".encode())
    root = Path(forerun.__file__).parent
    for folder in ("data", "own"):
        for path in sorted((root / folder).rglob("*.py")):
            if not path.name.startswith("test_"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
