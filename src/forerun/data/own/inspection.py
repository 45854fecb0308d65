"""What is in somebody's data, and what is wrong with it? One streamed pass; the data are never changed.

All rows: lengths, exact duplicates, parts of the split and leaks between them, labels, secrets and e-mail addresses.
A sample of `SAMPLE` rows, drawn by the hash of their texts: near duplicates, languages, signs that give labels away.
In memory: the sample, and some 200 bytes a row, mostly its `SplitKey`.
"""

import heapq
import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forerun.data.own.canonical import checked_row
from forerun.data.own.columns import Column, Row, columns_of, is_empty, value_at
from forerun.data.own.findings import findings_of
from forerun.data.own.flag_columns import BETWEEN
from forerun.data.own.format_parts import TAGGED
from forerun.data.own.formats import UNPAIRED, RowLayout
from forerun.data.own.inspection_record import DESIRABLE, UNDESIRABLE, Histogram, Inspection
from forerun.data.own.label_signs import columns_that_tell, label_signs, sign_sentences
from forerun.data.own.labels import have_no_names
from forerun.data.own.near_duplicates import near_pairs
from forerun.data.own.repairs import Repairs
from forerun.data.own.row_kinds import CanonicalRow, LabelledRow, TaggedRow, UnpairedRow, texts_of
from forerun.data.own.rows import rows_of
from forerun.data.own.splits import (
    HeldOutSplit,
    SplitKey,
    dated_column,
    day_first_column,
    hash_of,
    normalised,
    own_sources,
    split_key,
    split_rows,
)
from forerun.data.own.text_signs import language_of, markup_in, signs_in
from forerun.data.own.tool_columns import unread_tools
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

SAMPLE = 5000
CHARACTERS_A_TOKEN = 4.0
"""Where no tokenizer says more: English text under the byte-pair encodings of GPT-2 has some 4.2, code some 3.2."""
WIDE = re.compile("[\u2e80-\uffef\U00020000-\U0003ffff]")
"""Letters of Chinese, Japanese and Korean, among others."""
WIDE_CHARACTERS = 2.7
"""Those that such a letter counts for: 0.68 tokens of Chinese, under 2,048 byte pairs (2026-11-28)."""
FAR_LONGER = 50
"""Times the 95th percentile of characters from which a row is named."""
MOST_LABELS = 50
"""Labels that are listed; all are counted."""
OTHER_COLUMNS, MOST_VALUES = 8, 200_000
"""Columns beside those of the format that are looked at, and different values until one is given up."""


@dataclass
class _Tally:
    """What one pass gathers."""

    characters: array = field(default_factory=lambda: array("L"))
    tokens: array = field(default_factory=lambda: array("L"))
    """Estimates."""
    words: array = field(default_factory=lambda: array("L"))
    hashes: bytearray = field(default_factory=bytearray)
    keys: list[SplitKey] = field(default_factory=list)
    labels: list[tuple[str, ...]] = field(default_factory=list)
    emails: int = 0
    secrets: int = 0
    sample: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (minus the hash, place): those with the least hashes."""
    texts: dict[int, str] = field(default_factory=dict)
    records: dict[int, CanonicalRow] = field(default_factory=dict)
    cells: dict[str, list[int]] = field(default_factory=dict)
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    tools: str = ""
    """A sentence on tools that are not read."""
    dated: str = ""
    """A column of dates by which rows could be ordered."""
    day_first: str = ""
    """A column of dates that do not begin with the year."""


def inspect(
    data: DataSettings, layout: RowLayout, rows_sample: Sequence[Row], sampled: list[CanonicalRow] | None = None
) -> Inspection:
    """Look at every row of `data` once; `rows_sample` are its first, by which other columns are chosen.

    The rows of the sample are added to `sampled`, for whoever counts their tokens.

    Raises:
        BadData: a row that no repair is for, or a split that leaves a part empty.
    """
    repairs, tally = Repairs(tuple(data.repair)), _Tally()
    columns = columns_of(rows_sample)
    others = _other_columns(columns, layout, data)
    tally.tools = unread_tools(layout, rows_sample)
    if data.order_by is None:
        tally.dated, tally.day_first = dated_column(rows_sample), day_first_column(columns.values(), rows_sample)
    tally.cells = {name: [] for name in others}
    tally.codes = {name: {} for name in others}
    shared_labels: dict[tuple[str, ...], tuple[str, ...]] = {}
    for source, part in own_sources(data):
        for number, row in enumerate(rows_of(data, repairs, source), start=1):
            where = f"{source}, row {number}"
            record = checked_row(row, layout, where, repairs)
            if record is not None:
                key = split_key(row, record, data, where, part)
                _add(tally, row, record, key, shared_labels)
    if not tally.keys:
        raise BadData(f"{data.source}: must hold at least one good row; found none that is left. Give data.")
    if sampled is not None:
        sampled += tally.records.values()
    return _summary(data, tally, split_rows(tally.keys, data), repairs, layout)


def _add(
    tally: _Tally, row: Row, record: CanonicalRow, key: SplitKey, shared: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    """Count one row."""
    texts = texts_of(record)
    place, whole = len(tally.keys), "\n".join(texts)
    text_hash = hash_of(normalised(whole))
    tally.characters.append(len(whole))
    tally.tokens.append(estimated_tokens(whole))
    tally.words.append(len(whole.split()))
    tally.hashes += text_hash
    tally.keys.append(SplitKey(_hash_of_text(key), key.group, key.order, key.stated))
    labels = record.labels if isinstance(record, LabelledRow) else tuple(sorted(set(_tags(record))))
    if isinstance(record, UnpairedRow):
        labels = (DESIRABLE if record.is_desirable else UNDESIRABLE,)
    tally.labels.append(shared.setdefault(labels, labels) if len(shared) < MOST_VALUES else labels)
    signs = signs_in(whole)
    tally.emails += "email" in signs
    tally.secrets += "secret" in signs
    for name, cells in list(tally.cells.items()):
        value, codes = value_at(row, name), tally.codes[name]
        cells.append(-1 if is_empty(value) else codes.setdefault(str(value), len(codes)))
        if len(codes) > MOST_VALUES:
            del tally.cells[name], tally.codes[name]
    _maybe_sample(tally, place, record, whole, int.from_bytes(text_hash))


def _hash_of_text(key: SplitKey) -> bytes:
    """What tells the text apart: kept for every row in place of the text."""
    return key.text if isinstance(key.text, bytes) else hash_of(key.text)


def _maybe_sample(tally: _Tally, place: int, record: CanonicalRow, whole: str, value: int) -> None:
    """Take the row into the sample if its hash is among the least so far; equal texts come together."""
    if len(tally.sample) < SAMPLE:
        heapq.heappush(tally.sample, (-value, place))
    elif -value > tally.sample[0][0]:
        _, leaving = heapq.heapreplace(tally.sample, (-value, place))
        del tally.texts[leaving], tally.records[leaving]
    else:
        return
    tally.texts[place], tally.records[place] = whole, record


def estimated_tokens(text: str) -> int:
    """Tokens of a text, where no tokenizer tells."""
    wide = 0 if text.isascii() else len(text) - len(WIDE.sub("", text))
    return math.ceil((len(text) + (WIDE_CHARACTERS - 1) * wide) / CHARACTERS_A_TOKEN)


def _summary(data: DataSettings, tally: _Tally, split: HeldOutSplit, repairs: Repairs, layout: RowLayout) -> Inspection:
    hashes = np.frombuffer(bytes(tally.hashes), dtype=">u8")
    places = sorted(tally.texts)
    markup = markup_in(tally.texts[place] for place in places)
    near, near_leaks = _near(tally, split, places, hashes)
    label_counts = Counter(label for labels in tally.labels for label in labels)
    has_classes = layout.format == "labelled" and layout.labels != "number"
    sentences, telling = _signs(tally, places) if has_classes else ([], {})
    values = dict(
        rows=len(tally.keys),
        characters=Histogram.of(np.asarray(tally.characters)),
        words=Histogram.of(np.asarray(tally.words)),
        tokens=Histogram.of(np.asarray(tally.tokens)),
        characters_per_token=CHARACTERS_A_TOKEN,
        are_tokens_counted=False,
        parts={str(part): count for part, count in split.counts.items()},
        split_hash=split.hash,
        left_training=split.left_training,
        left_validation=split.left_validation,
        stated_parts=sorted({key.stated for key in tally.keys if key.stated}),
        exact_duplicates=len(hashes) - len(np.unique(hashes)),
        contradictions=_contradictions(hashes, tally.labels) if layout.format in ("labelled", UNPAIRED) else 0,
        near_duplicates=near,
        near_leaks=near_leaks,
        sample=len(places),
        labels=dict(label_counts.most_common(MOST_LABELS)) if layout.labels != "number" else {},
        label_count=len(label_counts),
        unseen_labels=_unseen(tally, split) if has_classes or layout.format in TAGGED else {},
        languages=dict(Counter(language_of(tally.texts[place]) for place in places).most_common()),
        html=markup["html"],
        turns=markup["turns"] if layout.format == "text" else 0,
        emails=tally.emails,
        secrets=tally.secrets,
        signs=sentences,
        telling_columns=telling,
        shared_values=_shared_values(tally, split),
        repairs={str(kind): count for kind, count in sorted(repairs.counts.items())},
        findings=[],
    )
    inspection = Inspection.model_validate(values)
    are_unnamed = layout.format in TAGGED and have_no_names(label_counts)
    are_alike = layout.format == UNPAIRED and len(label_counts) < 2
    counts, tools = label_counts if has_classes or are_alike else None, tally.tools
    longest = _far_longer(np.asarray(tally.characters), inspection.characters.at[95])
    dates = {"dated": tally.dated, "day_first": tally.day_first}
    findings = findings_of(inspection, counts, are_tags_unnamed=are_unnamed, tools=tools, longest=longest, **dates)
    return inspection.model_copy(update={"findings": findings})


def _far_longer(characters: NDArray, usual: int) -> list[int]:
    """Numbers, from 1 and in the order in which they are read, of rows far longer than nearly all."""
    return [int(place) + 1 for place in np.flatnonzero(characters > FAR_LONGER * max(usual, 1))]


def _near(tally: _Tally, split: HeldOutSplit, places: Sequence[int], hashes: NDArray) -> tuple[int, int]:
    """Rows of the sample that are near one before them, and judged rows near a training row."""
    pairs = [(places[a], places[b]) for a, b in near_pairs([tally.texts[place] for place in places])]
    pairs = [(a, b) for a, b in pairs if hashes[a] != hashes[b]]
    leaks = {
        judged
        for pair in pairs
        for judged, other in (pair, pair[::-1])
        if split.part(other) == "train" and split.part(judged) in ("val", "test")
    }
    return len({b for _, b in pairs}), len(leaks)


def _contradictions(hashes: NDArray, labels: Sequence[tuple[str, ...]]) -> int:
    """Texts that occur with more than one label."""
    order = np.argsort(hashes, kind="stable")
    texts: set[int] = set()
    for a, b in zip(order[:-1], order[1:], strict=True):
        if hashes[a] == hashes[b] and labels[a] != labels[b]:
            texts.add(int(hashes[a]))
    return len(texts)


def _unseen(tally: _Tally, split: HeldOutSplit) -> dict[str, list[str]]:
    trained = {label for place in split.places("train") for label in tally.labels[place]}
    unseen = {}
    for part in ("val", "test"):
        labels = {label for place in split.places(part) for label in tally.labels[place]} - trained
        if labels:
            unseen[part] = sorted(labels)
    return unseen


def _signs(tally: _Tally, places: Sequence[int]) -> tuple[list[str], dict[str, float]]:
    """Sentences about words and layouts that give the label away, and columns that do."""
    single = [place for place in places if len(tally.labels[place]) == 1]
    labels = [tally.labels[place][0] for place in single]
    sentences = sign_sentences(label_signs([tally.texts[place] for place in single], labels))
    columns = {name: [str(cells[place]) for place in single] for name, cells in tally.cells.items()}
    return sentences, columns_that_tell(columns, labels)


def _shared_values(tally: _Tally, split: HeldOutSplit) -> dict[str, float]:
    """Columns that look like groups (tasks, authors), and the share of test rows whose group is trained on."""
    shares = {}
    train, test = split.places("train"), split.places("test")
    for name, cells in tally.cells.items():
        column = np.asarray(cells)
        values = len(tally.codes[name])
        if not 20 < values <= 0.7 * (column >= 0).sum() or not len(test):
            continue
        tested = column[test]
        tested = tested[tested >= 0]
        if len(tested):
            shares[name] = float(np.isin(tested, column[train]).mean())
    return shares


def _other_columns(columns: dict[str, Column], layout: RowLayout, data: DataSettings) -> list[str]:
    """Columns of short values that come again and are no part of the format."""
    labels = layout.fields.get("label", "").split(BETWEEN)
    used = {*layout.fields.values(), *labels, data.fields.get("split", "split")}
    names = [
        column.name
        for column in columns.values()
        if column.name not in used
        and column.kind in ("text", "number")
        and column.mean_length < 60
        and 1 < column.distinct <= 0.9 * column.values
    ]
    return names[:OTHER_COLUMNS]


def _tags(record: CanonicalRow) -> tuple[str, ...]:
    return record.tags if isinstance(record, TaggedRow) else ()
