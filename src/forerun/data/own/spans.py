"""Places in a text that an annotation names, and what they are as tags of its words: `B-…` begins one, `I-…` goes on.

    [[0, 5, "PER"]]                                        doccano, spaCy
    [{"start": 0, "end": 5, "label": "PER"}]               spaCy's Prodigy, Hugging Face, Label Studio (JSON-MIN)
    [{"result": [{"value": {"start": 0, "end": 5, "labels": ["PER"]}}]}]      Label Studio; the first annotation
    {"entities": [[0, 5, "PER"]]}                          spaCy 2

Places count characters from 0, and the end is behind the last one. A word that a place only touches is in it. Words are
what stands between blanks and marks; each mark, and each Chinese or Japanese letter, is one of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STARTS = ("start", "start_offset", "start_char", "startOffset", "begin")
ENDS = ("end", "end_offset", "end_char", "endOffset", "stop")
LABELS = ("label", "labels", "entity", "entity_group", "entity_type", "type", "tag", "class", "category")
"""Keys by which tools for annotation name the parts of a place."""
LETTER = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
MARK = "!-/:-@\\[-`{-~\xa1\xa7\xab\xb6\xb7\xbb\xbf\u2010-\u205e\u3000-\u303f\uff00-\uff0f\uff1a-\uff20"
WORD = re.compile(f"[{LETTER}{MARK}]|[^\\s{LETTER}{MARK}]+")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a text and what it is."""

    start: int
    end: int
    label: str


def spans_of(value: Any) -> list[Span] | None:
    """The places that a value names, in order and each once; None for anything else."""
    if isinstance(value, Mapping):
        return spans_of(value["entities"]) if isinstance(value.get("entities"), list) else None
    if not isinstance(value, list | tuple):
        return None
    if value and all(isinstance(each, Mapping) and isinstance(each.get("result"), list) for each in value):
        valid = [each["result"] for each in value if not each.get("was_cancelled")]
        places = [one.get("value", {}) for one in valid[0] if isinstance(one, Mapping)] if valid else []
        value = [place for place in places if not isinstance(place, Mapping) or "start" in place]
        if places and not value:
            return None  # choices and relations name no places
    spans = [_span(each) for each in value]
    return None if None in spans else sorted({span for span in spans if span is not None})


def words_of(text: str) -> list[tuple[str, int, int]]:
    """The words of a text with the place of each."""
    return [(match.group(), match.start(), match.end()) for match in WORD.finditer(text)]


def tags_of(text: str, spans: Sequence[Span]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of a text, and a tag for each.

    Raises:
        ValueError: a place is not in the text, holds no word, or shares one with another place.
    """
    words = words_of(text)
    tags = ["O"] * len(words)
    for span in spans:
        if not 0 <= span.start < span.end <= len(text):
            raise ValueError(f"places within its {len(text)} characters; found {_described(span)}")
        inside = [n for n, (_, start, end) in enumerate(words) if start < span.end and end > span.start]
        if not inside:
            raise ValueError(f"places that hold a word; found {_described(span)}")
        if any(tags[n] != "O" for n in inside):
            raise ValueError(f"places that share no word; found {_described(span)} over another one")
        for n in inside:
            tags[n] = f"{'B' if n == inside[0] else 'I'}-{span.label}"
    return tuple(word for word, _, _ in words), tuple(tags)


def spans_of_tags(text: str, tags: Sequence[str | None]) -> list[dict[str, Any]]:
    """Places in a text, `start, end, label, text`, that the tags of its words name."""
    spans: list[dict[str, Any]] = []
    before = "O"
    for (_, start, end), tag in zip(words_of(text), tags, strict=True):
        place, _, label = (tag or "O").partition("-")
        if place == "I" and before.partition("-")[2] == label:
            spans[-1] |= {"end": end, "text": text[spans[-1]["start"] : end]}
        elif label:
            spans.append({"start": start, "end": end, "label": label, "text": text[start:end]})
        before = tag or "O"
    return spans


def _span(value: Any) -> Span | None:
    if isinstance(value, Mapping):
        start, end, label = (
            next((value[key] for key in keys if key in value), None) for keys in (STARTS, ENDS, LABELS)
        )
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
    elif isinstance(value, list | tuple) and len(value) == 3:
        start, end, label = value
    else:
        return None
    if not isinstance(start, int) or not isinstance(end, int) or not isinstance(label, str) or not label.strip():
        return None
    return Span(start, end, label.strip())


def _described(span: Span) -> str:
    return f"{span.label} from {span.start} to {span.end}"
