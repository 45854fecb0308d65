"""Tables with a word and its tag a row, as Kaggle's set of named entities: rows of one sentence become one.

    Sentence #    Word    Tag            sentence_id,word,tag
    Sentence: 1   Peter   B-PER          1,Peter,B-PER
                  came    O              1,came,O
    Sentence: 2   Yes     O              2,Yes,O

`data.fields: {words: Word, tags: Tag, sentence: 'Sentence #'}` reads them so. A sentence goes on while the column says
nothing or the same. Columns that say one thing of the whole sentence are kept.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from forerun.data.own.columns import Column, Row, is_empty, value_at
from forerun.data.own.format_parts import VALUES, Proposal
from forerun.data.own.repairs import Repairs
from forerun.data.own.value_formats import are_tags

MOST_WORDS = 1.5
"""Mean words of a column up to which it holds single words."""
LEAST_WORDS = 2
"""Mean words of a sentence from which rows belong together."""


def with_sentences(rows: Iterable[Row], fields: Mapping[str, str], source: str, repairs: Repairs) -> Iterator[Row]:
    """A row for each sentence, whose words and tags are lists; rows as they are where `fields` name no sentence.

    Raises:
        BadData: a word is empty, and `repairs` does not allow to leave it out.
    """
    column = fields.get("sentence")
    if column is None:
        yield from rows
        return
    lists = [fields[part] for part in ("words", "tags") if part in fields]
    sentence: list[Row] = []
    for number, row in enumerate(rows, start=1):
        if column not in row:
            yield row  # files to be answered may hold sentences
            continue
        if sentence and not is_empty(row[column]) and row[column] != sentence[0][column]:
            yield _joined(sentence, lists)
            sentence = []
        if is_empty(row.get(lists[0])) and not is_empty(row.get(lists[-1])):
            rule = f"the column {lists[0]!r} (words) holds a word; found none."
            repairs.allow("empty-texts", f"{source}, row {number}", rule)
        elif not is_empty(row.get(lists[0])) or not is_empty(row[column]):
            sentence.append(row)
    if sentence:
        yield _joined(sentence, lists)


def sentences_by_values(columns: Mapping[str, Column], rows: Sequence[Row]) -> list[Proposal]:
    """Sentences of rows with a word and its tag each, where a column says which belong together."""
    single = [c for c in columns.values() if c.kind == "text" and c.mean_words < MOST_WORDS]
    tags = [c.name for c in single if are_tags([value_at(row, c.name) for row in rows])]
    others = [c for c in columns.values() if c.name not in tags and c.kind in ("text", "number")]
    together = [c.name for c in others if _come_together(c, rows)]
    words = [c for c in single if c.is_full and c.name not in (*tags, *together)]
    if not tags or not words or not together:
        return []
    sentence = min(together, key=lambda name: "sent" not in name.lower())
    word = max(words, key=lambda c: ("word" in c.name.lower() or "token" in c.name.lower(), c.distinct)).name
    fields = {"words": word, "tags": tags[0], "sentence": sentence}
    reason = f"{word} holds a word a row, {tags[0]} its tag, and {sentence} which of them are a sentence."
    return [Proposal("tagged", fields, "token-classification", False, reason, VALUES)]


def _joined(sentence: Sequence[Row], lists: Sequence[str]) -> Row:
    first = sentence[0]
    same = {name: value for name, value in first.items() if all(row.get(name) in (value, "") for row in sentence)}
    return same | {name: [row.get(name) for row in sentence] for name in lists if name in first}


def _come_together(column: Column, rows: Sequence[Row]) -> bool:
    """Whether rows with one value follow each other, several on average, and none of the values comes again later."""
    values: list[object] = []
    for row in rows:
        value = value_at(row, column.name)
        values.append(values[-1] if is_empty(value) and values else value)
    runs = [value for value, _ in groupby(values)]
    return 1 < len(runs) <= len(values) / LEAST_WORDS and len(runs) == len({repr(value) for value in runs})
