"""Text to model: what ships with the package, a local file, or WikiText from the Hugging Face hub.

    data.source: null                                    64 State of the Union addresses, public domain (`embedded/`)
    data.source: notes.txt  /  speeches.jsonl.gz         a file, perhaps gzipped; a row of JSON lines needs `text`
    data.source: Salesforce/wikitext:wikitext-2-raw-v1   a hub id and its configuration (extra `hub`)
    data.validation, data.test: wiki.valid.txt           files of their own to watch and to judge by, read whole

A file without a `split` in its rows is cut by documents in order: 90 % to train on, 5 % to watch, 5 % to judge by;
where validation or test is a file of its own, its part stays with training. Documents of plain text end at blank lines,
those of WikiText before the heading of the next article.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from forerun.data.hub_rows import load_from_hub
from forerun.data.json_rows import read_rows
from forerun.errors import BadData, InvalidSettings

Split = Literal["train", "val", "test"]
EMBEDDED = "state-of-the-union"
_EMBEDDED = Path(__file__).parent / "embedded" / "state_of_the_union.jsonl.gz"
HUB_SPLITS: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}
HELD_OUT: dict[Split, str] = {"val": "data.validation", "test": "data.test"}
"""Settings that can name a file of their own."""
TRAINED_ON, WATCHED = 0.9, 0.95
"""Shares of the documents at which a file without splits is cut."""
KNOWN_TOKENS = {"wikitext-2-raw-v1": 2_400_000, "wikitext-103-raw-v1": 118_000_000}
"""GPT-2 tokens to train on, rounded: what a forecast takes when the text is not here. WikiText-2: the log of
codenlighten/ortho-ai's loader; WikiText-103: 1.14 tokens a word of its 103 million."""


@dataclass(frozen=True)
class LanguageText:
    """Documents by split."""

    name: str
    documents: dict[Split, list[str]]

    def words(self, split: Split) -> int:
        """Words between white space."""
        return sum(len(document.split()) for document in self.documents[split])

    def bytes(self, split: Split) -> int:
        """Bytes of UTF-8."""
        return sum(len(document.encode()) for document in self.documents[split])


def open_text(source: str | None, validation: str | None = None, test: str | None = None) -> LanguageText:
    """The text of `data.source`; `validation` and `test` are files whose whole text is watched and judged by instead.

    Raises:
        InvalidSettings: neither a file nor a hub id with a configuration.
        BadData: the file has no text, or too few documents to split.
        MissingExtra: a hub id without the extra `hub`.
    """
    own: dict[Split, str] = {
        split: file for split, file in zip(HELD_OUT, (validation, test), strict=True) if file is not None
    }
    text = _text_of(source, own)
    if not own:
        return text
    documents: dict[Split, list[str]] = {
        **text.documents, **{split: _whole(file, HELD_OUT[split]) for split, file in own.items()}
    }  # fmt: skip
    name = ", ".join([text.name, *(f"{HUB_SPLITS[split]} {Path(file).name}" for split, file in own.items())])
    return LanguageText(name, documents)


def _text_of(source: str | None, own: Mapping[Split, str]) -> LanguageText:
    """The text of `data.source`; parts that have a file of their `own` are not cut from it."""
    if source is None:
        return _from_rows(EMBEDDED, _rows(_EMBEDDED))
    path = Path(source)
    if path.is_file():
        return _from_file(path, own)
    if is_hub_source(source):
        return _from_hub(*source.split(":"))
    raise InvalidSettings(
        f"data.source: a file of text or JSON lines, or a hub id with its configuration; found {source!r}. "
        f"Example: Salesforce/wikitext:wikitext-2-raw-v1."
    )


def is_hub_source(source: str) -> bool:
    """Whether it has the form OWNER/NAME:CONFIGURATION."""
    return source.count(":") == 1 and source.count("/") == 1 and not Path(source).exists()


def _from_file(path: Path, own: Mapping[Split, str]) -> LanguageText:
    if ".jsonl" in path.suffixes:
        return _from_rows(path.name, _rows(path), own)
    whole = _read(path, "data.source")
    documents = _documents(whole)
    if len(documents) < 20:  # one paragraph: lines are documents
        documents = [line.strip() for line in whole.splitlines() if line.strip()]
    return _cut(path.name, documents, own)


def _whole(file: str, setting: str) -> list[str]:
    """All documents of a held-out file.

    Raises:
        InvalidSettings: it is not there.
        BadData: it is not text, or empty.
    """
    path = Path(file)
    if not path.is_file():
        raise InvalidSettings(
            f"{setting}: a share, or a file of text or JSON lines; found {file!r}, which is not there."
        )
    documents = [row["text"] for row in _rows(path, setting)] if ".jsonl" in path.suffixes else None
    documents = _documents(_read(path, setting)) if documents is None else documents
    if not documents:
        raise BadData(f"{setting}: {path} has no text.")
    return documents


def _read(path: Path, setting: str) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{setting}: {path} is not text in UTF-8: {error}") from error


def _documents(whole: str) -> list[str]:
    """Documents of a plain text: articles of WikiText, else what stands between blank lines."""
    lines = whole.splitlines(keepends=True)
    if any(map(_is_heading, lines)):
        return _articles(lines)
    return [part.strip() for part in whole.split("\n\n") if part.strip()]


def _rows(path: Path, setting: str = "data.source") -> list[dict[str, Any]]:
    rows = read_rows(path)
    if not all(isinstance(row.get("text"), str) for row in rows):
        raise BadData(f"{setting}: every row of {path} needs `text`, a string.")
    return rows


def _from_rows(name: str, rows: list[dict[str, Any]], own: Mapping[Split, str] = MappingProxyType({})) -> LanguageText:
    if not all(row.get("split") in HUB_SPLITS for row in rows) or len({row["split"] for row in rows}) < 3:
        return _cut(name, [row["text"] for row in rows], own)
    return LanguageText(name, {split: [row["text"] for row in rows if row["split"] == split] for split in HUB_SPLITS})


def _cut(name: str, documents: list[str], own: Mapping[Split, str]) -> LanguageText:
    second = len(documents) if "test" in own else int(WATCHED * len(documents))
    first = second if "val" in own else int(TRAINED_ON * len(documents))
    parts: dict[Split, list[str]] = {
        "train": documents[:first], "val": documents[first:second], "test": documents[second:]
    }  # fmt: skip
    if not all(part for split, part in parts.items() if split not in own):
        raise BadData(f"data.source: {name} has {len(documents)} documents; at least 20 are needed for three splits.")
    return LanguageText(name, parts)


def _from_hub(name: str, configuration: str) -> LanguageText:
    loaded = load_from_hub(name, configuration)
    try:
        documents: dict[Split, list[str]] = {
            split: _articles(loaded[there]["text"]) for split, there in HUB_SPLITS.items()
        }
    except KeyError as error:
        raise BadData(
            f"data.source: {name}:{configuration} needs the splits {', '.join(HUB_SPLITS.values())} with `text`; "
            f"{error} is missing. Give a local file."
        ) from error
    return LanguageText(configuration, documents)


def _articles(lines: list[str]) -> list[str]:
    """Rows of WikiText joined to articles, which begin with a line such as ` = Title = `."""
    articles: list[list[str]] = [[]]
    for line in lines:
        if _is_heading(line):
            articles.append([])
        articles[-1].append(line)
    return [text for text in ("".join(lines).strip() for lines in articles) if text]


def _is_heading(line: str) -> bool:
    """Whether a line is ` = Title = `; those of sections have two signs or more."""
    return line.startswith(" = ") and not line.startswith(" = =") and line.rstrip().endswith(" =")
