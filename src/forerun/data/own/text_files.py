"""What is a row of a file of text: a paragraph, a line, a line with labels, or a row of a table? Its first lines say.

    notes.txt  .md  .text  .log  README      a paragraph a row, or a line a row where no line is blank
    __label__pos A good film.                fastText: one or more labels, then the text
    ham<tab>See you there.                   as many tabs in each line: a table, unless `header` is `plain`

A name without an ending is one of text, unless JSON is in it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

from forerun.data.own.columns import Row
from forerun.data.own.delimited import delimiter_of
from forerun.data.own.packed_files import plain_name
from forerun.data.own.repairs import Repairs
from forerun.data.own.tagged_lines import looks_tagged, tagged_line_rows
from forerun.data.own.text_lines import TextLines, open_bytes

TEXTS = (".txt", ".md", ".text", ".log")
LINES_LOOKED_AT = 1000
"""Lines that tell what a file is."""
LINES_FOR_TAGS = 50
"""Lines, not blank, that tell whether they are words with tags."""
LABEL = "__label__"
"""Before each label, at the begin of a line: the default of fastText's `-label`."""
BETWEEN_LABELS = "|"
PLAIN = "plain"
"""`data.fields.header: plain` says that lines with tabs are text and no table."""
OTHER_MARKS = (";", "|")
FEW = 20
"""Lines below which it says nothing that a field comes again."""
JSON_STARTS = (b"{", b"[")
TextFileKind = Literal["labelled lines", "table", "sentences", "paragraphs", "lines"]


def is_text_file(path: Path) -> bool:
    """Whether the name says so, or has no ending."""
    name = plain_name(path)
    return name.endswith(TEXTS) or (path.is_file() and "." not in name and not _begins_as_json(path))


def text_file_kind(path: Path, header: str | None = None) -> TextFileKind:
    """What a row of a file of text is; `header` is `data.fields.header`."""
    lines = list(islice(TextLines(path, Repairs(("encoding",))), LINES_LOOKED_AT))
    full = [line for line in lines if line.strip()]
    if header != PLAIN and full and all(line.startswith(LABEL) for line in full):
        return "labelled lines"
    last = max((n for n, line in enumerate(lines) if line.strip()), default=0)
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if any(not line.strip() for line in lines[first:last]):
        return "sentences" if header != PLAIN and looks_tagged(full[:LINES_FOR_TAGS]) else "paragraphs"
    return "table" if header != PLAIN and _are_rows(full, delimiter_of(path)) else "lines"


def text_lines_rows(path: Path, kind: TextFileKind, repairs: Repairs) -> Iterator[Row]:
    """`text` of each paragraph or line, and `label` of labelled lines; `tokens` and `ner_tags` of sentences.

    Raises:
        BadData: a line has no label among others that have, and `repairs` does not allow to leave it out.
    """
    if kind == "labelled lines":
        yield from _labelled_lines(path, repairs)
        return
    if kind == "sentences":
        yield from tagged_line_rows(path, repairs)
        return
    paragraph: list[str] = []
    for line in TextLines(path, repairs):
        if line.strip():
            paragraph.append(line)
        if paragraph and (kind == "lines" or not line.strip()):
            yield {"text": "".join(paragraph).strip()}
            paragraph = []
    if paragraph:
        yield {"text": "".join(paragraph).strip()}


def _labelled_lines(path: Path, repairs: Repairs) -> Iterator[Row]:
    lines = TextLines(path, repairs)
    for line in lines:
        words = line.split()
        count = next((n for n, word in enumerate(words) if not word.startswith(LABEL)), len(words))
        if count:
            labels = BETWEEN_LABELS.join(word.removeprefix(LABEL) for word in words[:count])
            text = "".join(line.split(maxsplit=count)[count:])
            yield {"label": labels, "text": text.strip()}
        elif words:
            rule = f"begins with {LABEL} and a label, as the lines before; found {line.strip()[:40]!r}."
            repairs.allow("ragged-rows", f"{path}, line {lines.number}", rule)


def _are_rows(lines: Sequence[str], delimiter: str) -> bool:
    """Whether all lines have as many fields, and something in the first.

    Between tabs, or between semicolons or bars with a label at an end: `i feel fine;joy`.
    """
    rows = [line.rstrip("\r\n").split(delimiter) for line in lines]
    are_even = len(rows) > 1 and len(rows[0]) > 1 and all(len(r) == len(rows[0]) and r[0].strip() for r in rows)
    if not are_even or delimiter == "\t":
        return are_even
    labels = min(len({row[place] for row in rows}) for place in (0, -1))
    return delimiter in OTHER_MARKS and len(rows) >= FEW and labels <= len(rows) // 2


def _begins_as_json(path: Path) -> bool:
    with open_bytes(path) as file:
        return file.read(64).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(JSON_STARTS)
