"""Which architecture is it? Rows of the catalogue, by name, Hugging Face id, or words as people type them.

The rows are data, in `architectures/*.toml`; each says where its configuration and parameter count come from. Words
that mean one row are taken and said by a `NameNote`; those that mean several are an error that lists them. Neither
torch nor transformers is imported.
"""

import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from forerun.errors import UnknownModel
from forerun.models.outside_settings import other_task
from forerun.models.typed_ids import BITSANDBYTES, is_copy, packing, plain_id, unpacked
from forerun.records import Record
from forerun.settings.plain import in_short
from forerun.spelling import WORD, NameNote, Spelled, alike, holds, meant_by, ordered_words, words

NOISE = frozenset({"model", "hf", "the", "parameters", "params"})
DIFFUSERS = "diffusers"
"""`model_type` of denoisers, whose classes are those of diffusers."""
MOST_LISTED = 8
MOST_PARTS = 12
"""Parts of a name, two of which may be one word."""
MOST_ORIGINS = 3
"""Rows that a message about a packed copy names."""
BEGINNING = 2
"""First words of a name, of which one must be typed: "llama 2 8b" is no Hermes-2-Pro-Llama-3-8B. Two, as the first of
"Meta-Llama-3-8B" is its maker."""
NUMBER_OF_PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)([bm])")
SIZE_TOLERANCE_FRACTION = 0.06
"""How far a row's parameters may lie from a number that its name lacks ("phi4:14b" has 14.7 billion)."""


class Architecture(Record):
    """One row of the catalogue."""

    name: str
    aliases: tuple[str, ...] = ()
    """Hugging Face ids and other names, lower case."""
    family: str
    model_type: str
    """transformers' name of the configuration class, or `DIFFUSERS`."""
    config: Mapping[str, Any]
    """Configuration fields that differ from the class defaults."""
    nulls: tuple[str, ...] = ()
    """Configuration fields that are null where the class default is not; TOML has no null."""
    parameters: int
    """Parameters of the class `parameters_of`, each shared tensor once."""
    parameters_of: str
    """Workload whose head is counted: encoder, causal-lm, seq2seq-lm, or one of images and sound."""
    source: str
    licence: str | None = None
    """Of the weights, as their source states it; null where it was not read."""

    @property
    def fields(self) -> dict[str, Any]:
        """`config` with its nulls."""
        return {**self.config, **dict.fromkeys(self.nulls)}

    @property
    def is_tiny(self) -> bool:
        """Whether it is a toy of its family for tests, that nobody published."""
        return self.name.startswith("tiny-") and "/" not in "".join(self.aliases)

    @property
    def hub_ids(self) -> tuple[str, ...]:
        """Its Hugging Face ids, lower case."""
        return tuple(alias for alias in self.aliases if "/" in alias)


@cache
def _rows() -> dict[str, Architecture]:
    rows: dict[str, Architecture] = {}
    more_ids: list[Mapping[str, Any]] = []
    for file in sorted(files("forerun.models").joinpath("architectures").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            rows |= {row["name"]: Architecture(**row) for row in content["architecture"]}
            more_ids += content.get("more_ids", [])
    for entry in more_ids:  # ids of one shape with a row of another file
        row = rows[entry["name"]]
        rows[row.name] = row.model_copy(update={"aliases": (*row.aliases, *entry["aliases"])})
    return rows


@cache
def _names() -> dict[str, str]:
    """Every name and alias → the row's name."""
    return {spelling: name for name, row in _rows().items() for spelling in (name, *row.aliases)}


@cache
def spelled_models() -> tuple[Spelled, ...]:
    """Rows by the words of their names, for a search; toys are reached by their own names alone."""
    return tuple(
        Spelled(
            row.name,
            words(row.name),
            frozenset().union(*map(words, (row.name, *row.aliases, row.family, row.model_type))),
        )
        for row in _rows().values()
        if not row.is_tiny
    )


def architectures() -> list[Architecture]:
    """All rows."""
    return list(_rows().values())


def is_folder(name: str) -> bool:
    """Whether a folder of that name is here; a name too long for one is none."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def row_of(name: str, *, as_typed: bool = True) -> Architecture | None:
    """The row of a name or Hugging Face id, without regard to case, or of words as people type them; None without one.

    Raises:
        UnknownModel: several rows can be meant; the message lists them.
    """
    name = plain_id(name)
    exact = _names().get(name.lower())
    if exact is not None:
        return _rows()[exact]
    copied = _copied_row(name.lower())
    if copied is not None:
        is_packed = BITSANDBYTES.search(name.lower())
        how = ", packed in 4 bits: quantization: nf4 forecasts it so" if is_packed else ", which it is a copy of"
        warnings.warn(f"Model {name!r} is taken as {copied.name}{how}.", NameNote, stacklevel=4)
        return copied
    if not as_typed or "/" in name or is_folder(name):
        return None
    candidates = [row.name for row in spelled_models() if words(row.name) == words(name)]
    is_own_name = bool(candidates)
    candidates = candidates or _candidates(name)
    if len(candidates) > 1:
        listed = "; ".join(in_brief(_rows()[each]) for each in candidates[:MOST_LISTED])
        more = f" and {len(candidates) - MOST_LISTED} more" if len(candidates) > MOST_LISTED else ""
        raise UnknownModel(f"model.name: {in_short(name)} can be several models: {listed}{more}. Name one of them.")
    if not candidates:
        return None
    if not is_own_name:
        row = _rows()[candidates[0]]
        weights = f"weights of {_identity(row, name)}" if row.hub_ids else "no weights"
        text = f"Model {name!r} is taken as {row.name} ({count_text(row.parameters)}, {weights})."
        warnings.warn(text, NameNote, stacklevel=4)
    return _rows()[candidates[0]]


def _copied_row(name: str) -> Architecture | None:
    """The row of the weights that an id is a copy of: packed by bitsandbytes, or of an owner who copies others'."""
    plain = BITSANDBYTES.sub("", name)
    if "/" not in plain or (plain == name and not is_copy(name)):
        return None
    plain = plain.removesuffix("-bf16")
    return _names_to_row(plain) or _row_named(plain.partition("/")[2])


def _names_to_row(name: str) -> Architecture | None:
    row = _names().get(name)
    return None if row is None else _rows()[row]


def _row_named(short: str) -> Architecture | None:
    """The row of an id with this name under any owner."""
    return next((_rows()[row] for spelling, row in _names().items() if spelling.rpartition("/")[2] == short), None)


def packed_from(name: str) -> str:
    """What a name that says that its weights are packed for running was made from, as a sentence; else empty."""
    how = packing(name)
    if not how:
        return ""
    short = unpacked(name)
    row = _row_named(short)
    names = [row.name] if row else _candidates(short)[:MOST_ORIGINS]
    origin = f": {' or '.join(names)}" if names else ""
    return (
        f"Its weights are packed for running ({how}), and nothing trains them so. Forecast what it was made "
        f"from{origin} (4 bits: quantization: nf4). "
    )


def _candidates(name: str) -> list[str]:
    """Names of the rows that words can mean: one name or id has them all, and begins with one of them.

    Where the words are all of a name, its rows alone are meant. A number of parameters that no name has is compared
    with the rows' own; words written apart are tried as one ("tiny llama").
    """
    candidates = _of_words(name) or _of_size(name)
    parts = re.split(r"[\s_-]+", name)[:MOST_PARTS]
    joined = [" ".join([*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]) for i in range(len(parts) - 1)]
    return candidates or next((rows for each in joined if (rows := _of_words(each))), [])


def _of_words(text: str) -> list[str]:
    """Names of the rows of which one name or id has all words of a text, and begins with one of them."""
    matches = [
        each for each in meant_by(text, spelled_models(), NOISE) if _has_all(_rows()[each], text, _spellings(each))
    ]
    return _of_whole_name(text, matches) or sorted(matches, key=lambda each: not _has_all(_rows()[each], text, [each]))


def _of_size(text: str) -> list[str]:
    """Names of the rows that have all words but a number of parameters, and about so many of them."""
    sizes = [match for word in words(text) if (match := NUMBER_OF_PARAMETERS.fullmatch(word))]
    if len(sizes) != 1:
        return []
    parameters = float(sizes[0][1]) * (10**9 if sizes[0][2] == "b" else 10**6)
    rest = re.sub(rf"(?<![\w.]){re.escape(sizes[0][0])}(?!\w)", " ", text.lower())
    close = [
        row.name
        for row in _rows().values()
        if abs(row.parameters / parameters - 1) <= SIZE_TOLERANCE_FRACTION
        and not row.is_tiny
        and _has_all(row, rest, [each for each in (row.name, *row.aliases) if not _states_size(each)])
    ]
    return _of_whole_name(rest, close) or close


def _has_all(row: Architecture, text: str, spellings: Iterable[str]) -> bool:
    """Whether a name or id has all words of a text and begins with one, and its numbers stand behind the same words.

    So "llama 2 8b" is no Llama-Guard-2-8B.
    """
    query, numbers = words(text, NOISE), _numbers(text)
    kind = f"{row.family} {row.model_type}"
    return any(
        query <= words(f"{each} {kind}") and query & _beginning(each) and numbers <= _numbers(f"{each} {kind}")
        for each in spellings
    )


def _numbers(text: str) -> set[tuple[str, str]]:
    """Numbers of a text that stand behind a word or another number, with that: the 8 of "qwen 3 8" is no GSM8K's."""
    listed = [word for word in ordered_words(text) if word not in NOISE]
    return {
        (before, word)
        for before, word in pairwise(listed)
        if not NUMBER_OF_PARAMETERS.fullmatch(before) and word[0].isdigit() and "b" not in word
    }


def _spellings(name: str) -> tuple[str, ...]:
    return (name, *_rows()[name].aliases)


def _states_size(spelling: str) -> bool:
    """Whether a name says how many parameters there are."""
    return any(NUMBER_OF_PARAMETERS.fullmatch(word) for word in words(spelling))


def _of_whole_name(text: str, names: list[str]) -> list[str]:
    """Those of the rows of which the words are all of a name or id."""
    query = words(text, NOISE)
    return [name for name in names if any(words(each.rpartition("/")[2], NOISE) == query for each in _spellings(name))]


def _beginning(spelling: str) -> set[str]:
    """Words that a name begins with; what stands behind a digit is no beginning (the Gemma of T5Gemma)."""
    short = spelling.rpartition("/")[2]
    firsts = list(WORD.finditer(short))[:BEGINNING]
    return {word[0] for word in firsts if word[0][0].isalpha() and not short[: word.start()][-1:].isdigit()}


def architecture(name: str, *, as_typed: bool = True) -> Architecture:
    """The row of a name or Hugging Face id, without regard to case, or of words as people type them.

    Raises:
        UnknownModel: no such row, or several; the message lists them, or the nearest names.
    """
    row = row_of(name, as_typed=as_typed)
    if row is None:
        raise UnknownModel(
            f"No architecture {in_short(name)} in the catalogue. {other_task(name)}Nearest: {nearest_rows(name)}."
        )
    return row


def nearest_rows(name: str) -> str:
    """The three rows most like a name."""
    return ", ".join(alike(name if " " in name else name.rpartition("/")[2], spelled_models(), NOISE))


def in_brief(row: Architecture) -> str:
    """A row's name with its size and ids."""
    ids = f", {', '.join(row.hub_ids[:2])}" if row.hub_ids else ""
    return f"{row.name} ({count_text(row.parameters)}{ids})"


def count_text(parameters: int) -> str:
    """A number of parameters as model cards print it: 124M, 8.03B, 1.03T."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:,}"


def hub_id(name: str) -> str:
    """The Hugging Face id under which the weights of a catalogue name are; an id or any other name as it is."""
    name = plain_id(name)
    if "/" in name:
        return name
    row = _rows().get(_names().get(name.lower(), "")) or (None if is_folder(name) else _row_of_words(name))
    return _identity(row, name) if row is not None else name


def _identity(row: Architecture, name: str) -> str:
    """The id that has the most of what was typed ("instruct"), the first of them; ids of one row differ in weights."""
    typed = words(name, NOISE)
    return max(row.hub_ids, key=lambda identity: len(typed & words(identity)), default=name)


def _row_of_words(name: str) -> Architecture | None:
    """The one row of words, in silence: who asks for weights has been told by the configuration."""
    candidates = _candidates(name)
    return _rows()[candidates[0]] if len(candidates) == 1 else None


def searched_rows(text: str | None) -> tuple[list[Architecture], str]:
    """Rows that a search finds, all without one (toys left out), and a note where only the nearest are there."""
    if text is None:
        return [row for row in architectures() if not row.is_tiny], ""
    exact = _names().get(plain_id(text).lower())
    names: list[str] = [] if exact is None else [exact]
    names += _candidates(text) + holds(text, spelled_models(), NOISE)
    if names:
        return [_rows()[name] for name in dict.fromkeys(names)], ""
    close = alike(text.rpartition("/")[2], spelled_models(), NOISE)
    note = f"No model has all words of {in_short(text)}; the nearest: {', '.join(close)}. A hub id needs no row."
    return [_rows()[name] for name in close], note
