"""Sentences of a CoNLL file: a word and its tag a line, blank lines between sentences.

    EU      NNP  B-NP  B-ORG        the first field is the word, the last its tag; tabs or blanks between them
    rejects VBZ  B-VP  O

Lines that begin with `-DOCSTART-` are none. Known by the name: `.conll`, `.bio`, `.iob`, `.iob2`, perhaps packed;
a `.tsv` by its lines.
CoNLL-U (`.conllu`) has ten columns with the tags in the middle, and is not read.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from forerun.data.own.columns import Row
from forerun.data.own.packed_files import plain_name
from forerun.data.own.repairs import Repairs
from forerun.data.own.text_lines import TextLines

ENDINGS = (".conll", ".bio", ".iob", ".iob2")
TABS = ".tsv"
LINES_LOOKED_AT = 200
DOCUMENT = "-DOCSTART-"
TAG_STARTS = ("B-", "I-", "E-", "S-", "L-", "U-")
SHARE = 0.9
"""Share of lines that must end in a tag for a text to look like words with tags."""


def is_tagged_lines(path: Path) -> bool:
    """Whether the name says so, or the first lines of a `.tsv`, with a blank line among them."""
    name = plain_name(path)
    return name.endswith(ENDINGS) or (name.endswith(TABS) and path.is_file() and _has_sentences(path))


def _has_sentences(path: Path) -> bool:
    lines = _first_lines(path)
    return looks_tagged(lines) and any(not line.strip() for line in lines[:-1])


def tagged_line_rows(path: Path, repairs: Repairs) -> Iterator[Row]:
    """`tokens` and `ner_tags` of each sentence; `tokens` alone where the first lines are words without tags.

    Raises:
        BadData: a line has a word and no tag, and `repairs` does not allow to leave its sentence out.
    """
    words: list[str] = []
    tags: list[str] = []
    is_good, least = True, 1 if _are_words(path) else 2
    lines = TextLines(path, repairs)
    for line in lines:
        fields = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
        if not line.strip() or fields[0] == DOCUMENT:
            if words and is_good:
                yield _sentence(words, tags)
            words, tags, is_good = [], [], True
        elif len(fields) < least or not fields[0].strip() or not fields[-1].strip():
            rule = f"a word and its tag; found {line.strip()[:40]!r}."
            repairs.allow("ragged-rows", f"{path}, line {lines.number}", rule)
            is_good = False
        else:
            words.append(fields[0].strip())
            tags += [fields[-1].strip()] if len(fields) > 1 else []
    if words and is_good:
        yield _sentence(words, tags)


def _sentence(words: list[str], tags: list[str]) -> Row:
    return {"tokens": words, "ner_tags": tags} if tags else {"tokens": words}


def _are_words(path: Path) -> bool:
    """Whether the first lines are words without tags, as of a file to be answered."""
    lines = [line.split() for line in _first_lines(path)]
    return any(lines) and all(len(fields) < 2 or fields[0] == DOCUMENT for fields in lines)


def _first_lines(path: Path) -> list[str]:
    return list(islice(TextLines(path, Repairs(("encoding",))), LINES_LOOKED_AT))


def looks_tagged(texts: Sequence[str]) -> bool:
    """Whether nearly all lines of texts are a word and a tag, most of them in the words of CoNLL."""
    lines = [line.split() for text in texts for line in text.splitlines() if line.strip()]
    tagged = [line for line in lines if len(line) > 1 and (line[-1] == "O" or line[-1].startswith(TAG_STARTS))]
    return bool(lines) and len(tagged) >= SHARE * len(lines)
