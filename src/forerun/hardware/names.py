"""What people call GPUs: product names, machines of clouds, notebooks → names of the catalogue.

`aliases.toml` lists what no rule finds: machine types with their cards, and words that mean several cards. Everything
else follows from the words of a row's name, its product name and what drivers report (`forerun.spelling`).
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from forerun.hardware.plainer import plainer, singular
from forerun.spelling import SIZE, Spelled, alike, meant_by, without_count, words

NOISE = frozenset(
    [
        "nvidia",
        "geforce",
        "tesla",
        "gpu",
        "gpus",
        "card",
        "cards",
        "graphics",
        "amd",
        "radeon",
        "instinct",
        "the",
        "generation",
        "edition",
        "gb",
        "gib",
        "vram",
        "memory",
        "oam",
        "workstation",
        "with",
        "mig",
        "slice",
        "runpod",
        "io",
        "vast",
        "vastai",
        "ai",
        "lambda",
        "labs",
        "crusoe",
        "akash",
        "cloud",
        "instance",
        "paperspace",
        "modal",
        "coreweave",
        "nebius",
        "aws",
        "gcp",
        "azure",
        "oci",
    ]
)
"""Words that tell no card from another, sellers among them."""
SELLERS = re.compile(
    r"^(?:aws|amazon|ec2|sagemaker|azure|gcp|google(?:-cloud)?|oci|oracle(?:-cloud)?|lambda(?:-labs|-cloud)?)-(?=.)"
)
"""Before the name of a machine type."""
LAPTOP = frozenset({"laptop", "mobile", "notebook"})
TELLING = LAPTOP | {"ti", "super"}
"""Words without which another chip is meant, also where only one row has the memory that was typed."""
OPTIONAL = frozenset({"rtx", "gtx", "rx", "quadro", "pcie", "sxm", "die"})
"""Words of a name that people leave out."""
LEAST_LIKENESS, LEAST_OF_WORDS, LEAST_BEGINNING = 0.85, 0.9, 5
"""Of a machine's name that a typing error spoiled, by difflib, and of another alias; letters that begin a machine's."""
NEAREST = 3
BOXES = (6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 141, 180, 186, 192, 256, 288)
"""Sizes on boxes, GB; a row without one has the least that its memory fits."""


@dataclass(frozen=True)
class Meaning:
    """Rows that a name can mean, and a remark for the reader."""

    names: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Machine:
    """A machine of a cloud, and what it has."""

    name: str
    gpu: str
    count: int
    source: str


def spelled(name: str, titles: Sequence[str], gibibytes: float, architecture: str) -> Spelled:
    """A row by its words; slices are told apart by their profile alone, whole cards by their size too."""
    own = words(name) - NOISE
    sizes = {number for number in SIZE.findall(name)} - {"4"}
    required = own - sizes - (OPTIONAL if own != {"titan", "rtx"} else set())
    box = next((size for size in BOXES if size >= gibibytes), round(gibibytes))
    more = words(" ".join(titles)) | {architecture, str(box)} | words(_table()["more"].get(name, ""))
    return Spelled(name, frozenset(required), frozenset(own | sizes | (more - NOISE)))


def meaning(text: str, rows: Sequence[Spelled], reported: Mapping[str, Sequence[str]]) -> Meaning:
    """Rows that `text` can mean; `reported` has drivers' strings in lower case, with their rows."""
    first = _as_typed(text, rows, reported)
    if first.names and without_count(text)[1] > 1 and singular(text) != text:  # "8x V100s": eight V100S, or V100
        other = _as_typed(singular(text), rows, reported)
        first = Meaning(tuple(dict.fromkeys((*first.names, *other.names))), "" if other.names else first.note)
    if first.names or first.note:
        return first
    for group in plainer(text, _table()["unsaid"]):
        several = [_as_typed(each, rows, reported) for each in group]
        names = tuple(dict.fromkeys(name for each in several for name in each.names))
        note = next((each.note for each in several if each.note), "")
        if names or note:
            return Meaning(names, (note or ".") if len(names) == 1 else note if not names else "")
    return first


def _as_typed(text: str, rows: Sequence[Spelled], reported: Mapping[str, Sequence[str]]) -> Meaning:
    rest, count = without_count(text)
    key = _key(rest)
    is_laptop = bool(LAPTOP & words(rest))
    for word in LAPTOP - {"laptop"}:
        rest = re.sub(rf"(?i)\b{word}\b", "laptop", rest)
    machine = machines().get(_key(text)) or machines().get(key)
    if machine is not None:
        many = f" Its {machine.count} GPUs are parallel.world_size, or --nproc-per-node." if machine.count > 1 else ""
        return Meaning((machine.gpu,), f", of which {machine.name} has {machine.count}.{many}")
    for entry in _table()["word"]:
        if key in entry["names"] or _key(text) in entry["names"]:
            note = entry.get("note", "")
            if not entry["gpus"]:
                return Meaning((), entry["source"])
            if len(entry["gpus"]) == 1:
                return Meaning(tuple(entry["gpus"]), f". {note}." if note else ".")
            return Meaning(tuple(entry["gpus"]), f"{note} " if note else "")
    counted = f" Several are parallel.world_size={count}, or --nproc-per-node {count}." if count > 1 else ""
    driver = reported.get(rest.lower().strip(), ())
    exact = [row.name for row in rows if words(row.name) == words(rest)]
    candidates = list(driver) or exact or meant_by(rest, rows, NOISE)
    lacking = _lacking(rest, candidates, rows) if len(candidates) == 1 and not (driver or exact) else ""
    if lacking:
        return Meaning((), f"{candidates[0]} has these words, but is a {lacking}.")
    if not candidates and is_laptop:
        return Meaning((), "Laptop versions are other chips at other power limits; of this one there is no row.")
    if len(candidates) != 1:
        return Meaning(tuple(candidates))
    others = [] if driver else [name for name in meant_by(rest, rows, NOISE) if name != candidates[0]]
    beside = f"; there are also {', '.join(others)}" if others else ""
    is_own_name = (driver or exact) and not others and count == 1
    return Meaning((candidates[0],), "" if is_own_name else f"{beside}.{counted}")


def _lacking(text: str, candidates: Sequence[str], rows: Sequence[Spelled]) -> str:
    """Words of the one candidate that tell it from another chip and were not typed."""
    row = next(each for each in rows if each.name == candidates[0])
    return " ".join(sorted((row.required & TELLING) - words(text), reverse=True))


@cache
def machines() -> dict[str, Machine]:
    """Machine types of clouds, by their name in lower case."""
    table: dict[str, Machine] = {}
    for cloud in _table()["cloud"]:
        for gpu, types in cloud["machines"].items():
            for name, count in types.items():
                table[_key(name)] = Machine(name, gpu, count, cloud["source"])
    return table


def nearest_names(text: str, rows: Sequence[Spelled]) -> list[str]:
    """Three names for a text with a typing error: machine types and other aliases that look like it, then rows."""
    key = _key(text)
    begun = sorted((name for name in machines() if len(key) >= LEAST_BEGINNING and name.startswith(key)), key=len)
    close = get_close_matches(key, machines(), NEAREST, LEAST_LIKENESS)
    close += get_close_matches(key, [name for name, gpus in aliases().items() if gpus], NEAREST, LEAST_OF_WORDS)
    return list(dict.fromkeys([*begun, *close, *alike(text, rows, NOISE, NEAREST)]))[:NEAREST]


def aliases() -> dict[str, tuple[str, ...]]:
    """Every alias that is listed, with the rows that it stands for."""
    listed = {key: (machine.gpu,) for key, machine in machines().items()}
    return listed | {name: tuple(entry["gpus"]) for entry in _table()["word"] for name in entry["names"]}


def _key(text: str) -> str:
    """A name as machine types are compared: lower case, one dash for each gap, no cloud's name or prefix before it."""
    plain = "-".join(text.lower().replace("_", "-").replace("×", "x").split())
    while SELLERS.match(plain):
        plain = SELLERS.sub("", plain)
    return plain.removeprefix("standard-").removeprefix("ml.")


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("forerun.hardware").joinpath("aliases.toml").read_text(encoding="utf-8"))
