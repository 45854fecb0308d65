"""Text to model: what ships with the package, a local file, or WikiText from the Hugging Face hub.

    data.source: null                                    64 State of the Union addresses, public domain (`embedded/`)
    data.source: notes.txt  /  speeches.jsonl.gz         a file, perhaps gzipped; a row of JSON lines needs `text`
    data.source: Salesforce/wikitext:wikitext-2-raw-v1   a hub id and its configuration (extra `hub`)

A file without a `split` in its rows is cut by documents in order: 90 % to train on, 5 % to watch, 5 % to judge by.
Documents of plain text end at blank lines.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forerun.data.hub_rows import load_from_hub
from forerun.data.json_rows import read_rows
from forerun.errors import BadData, InvalidSettings

Split = Literal["train", "val", "test"]
EMBEDDED = "state-of-the-union"
_EMBEDDED = Path(__file__).parent / "embedded" / "state_of_the_union.jsonl.gz"
HUB_SPLITS: dict[Split, str] = {"train": "train", "val": "validation", "test": "test"}
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


def open_text(source: str | None) -> LanguageText:
    """The text of `data.source`.

    Raises:
        InvalidSettings: neither a file nor a hub id with a configuration.
        BadData: the file has no text, or too few documents to split.
        MissingExtra: a hub id without the extra `hub`.
    """
    if source is None:
        return _from_rows(EMBEDDED, _rows(_EMBEDDED))
    path = Path(source)
    if path.is_file():
        return _from_file(path)
    if is_hub_source(source):
        return _from_hub(*source.split(":"))
    raise InvalidSettings(
        f"data.source: a file of text or JSON lines, or a hub id with its configuration; found {source!r}. "
        f"Example: Salesforce/wikitext:wikitext-2-raw-v1."
    )


def is_hub_source(source: str) -> bool:
    """Whether it has the form OWNER/NAME:CONFIGURATION."""
    return source.count(":") == 1 and source.count("/") == 1 and not Path(source).exists()


def _from_file(path: Path) -> LanguageText:
    if ".jsonl" in path.suffixes:
        return _from_rows(path.name, _rows(path))
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        whole = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"data.source: {path} is not text in UTF-8: {error}") from error
    documents = [part.strip() for part in whole.replace("\r\n", "\n").split("\n\n") if part.strip()]
    if len(documents) < 20:  # one paragraph: lines are documents
        documents = [line.strip() for line in whole.splitlines() if line.strip()]
    return _cut(path.name, documents)


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = read_rows(path)
    if not all(isinstance(row.get("text"), str) for row in rows):
        raise BadData(f"data.source: every row of {path} needs `text`, a string.")
    return rows


def _from_rows(name: str, rows: list[dict[str, Any]]) -> LanguageText:
    if not all(row.get("split") in HUB_SPLITS for row in rows) or len({row["split"] for row in rows}) < 3:
        return _cut(name, [row["text"] for row in rows])
    return LanguageText(name, {split: [row["text"] for row in rows if row["split"] == split] for split in HUB_SPLITS})


def _cut(name: str, documents: list[str]) -> LanguageText:
    first, second = int(TRAINED_ON * len(documents)), int(WATCHED * len(documents))
    parts: dict[Split, list[str]] = {
        "train": documents[:first], "val": documents[first:second], "test": documents[second:]
    }  # fmt: skip
    if not all(parts.values()):
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
        if line.startswith(" = ") and not line.startswith(" = ="):
            articles.append([])
        articles[-1].append(line)
    return [text for text in ("".join(lines).strip() for lines in articles) if text]
