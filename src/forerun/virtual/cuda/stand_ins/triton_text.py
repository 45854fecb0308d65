"""Triton's intermediate representation as plain data: operations, their regions, and the blocks of each region.

Triton turns a kernel's Python into MLIR before it knows any device. In its text shapes and dtypes stand beside every
operation, and loops and branches are structured, so that a launch can be counted (`triton_work.py`) without running it.
The text is that of dialects `tt`, `arith`, `scf` and `cf` as Triton 3.4 to 3.9 prints them, without locations.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_STATEMENT = re.compile(r'^(?:(%[\w$.-]+)(?::(\d+))? = )?"?([\w.]+)"?(.*)$')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_BLOCK = re.compile(r"^\^(\w+)(?:\((.*)\))?:")
_TYPE = re.compile(r"((?:\d+x)*)(?:!tt\.ptr<)?((?:bf|f|i)\d+\w*)(?=[>,\s)]|$)")
BITS_OF_BYTE = 8


@dataclass
class Block:
    """Operations in order, and the names of what the block is given."""

    arguments: list[str] = field(default_factory=list)
    operations: list["Statement"] = field(default_factory=list)


@dataclass
class Statement:
    """One operation: names of its results and operands, the text behind its name, and its regions.

    A region is its blocks by label; the first has the label "".
    """

    name: str
    results: list[str]
    text: str
    regions: list[dict[str, Block]] = field(default_factory=list)

    @cached_property
    def operands(self) -> list[str]:
        """Names of its operands, in order."""
        return _VALUE.findall(self.text.partition(" : ")[0])

    @cached_property
    def types(self) -> list["BlockType"]:
        """Types that stand behind it, in order: of operands, or of operands and results."""
        _, _, behind = self.text.rpartition(" : ")
        return [BlockType.read(*each) for each in _TYPE.findall(behind)]


@dataclass(frozen=True)
class BlockType:
    """Shape and dtype of a block of values, or of pointers to such values."""

    shape: tuple[int, ...]
    dtype: str
    """As MLIR writes it: `bf16`, `f32`, `i8`, `f8E4M3FN`."""

    @classmethod
    def read(cls, dimensions: str, dtype: str) -> "BlockType":
        """From `64x32x` and `bf16`."""
        return cls(tuple(int(each) for each in dimensions.split("x") if each), dtype)

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        bits = re.search(r"\d+", self.dtype)
        return math.prod(self.shape) * max(1, int(bits[0]) // BITS_OF_BYTE if bits else 1)


def functions(text: str) -> dict[str, Statement]:
    """Functions of a module by name, in order; the kernel is the first.

    Raises:
        ValueError: the text is no module of Triton's representation.
    """
    lines = (line.strip() for line in text.splitlines())
    root = Statement("", [], "", [{"": Block()}])
    _fill(root.regions[0], (line for line in lines if line and not line.startswith(("#", "//"))))
    all_functions = [each for each in _walk(root) if each.name == "tt.func"]
    if not all_functions:
        raise ValueError("no function of Triton's representation")
    return {each.text.partition("@")[2].partition("(")[0].strip('"'): each for each in all_functions}


def arguments(function: Statement) -> list[str]:
    """Names of what a function is given."""
    return _VALUE.findall(function.text.partition("(")[2])


def _walk(operation: Statement) -> Iterator[Statement]:
    yield operation
    for region in operation.regions:
        for block in region.values():
            for inner in block.operations:
                yield from _walk(inner)


def _fill(region: dict[str, Block], lines: Iterator[str]) -> str:
    """Read a region up to its closing brace; returns the line that has it."""
    block = region[""]
    for line in lines:
        if line.startswith("}"):
            return line
        label = _BLOCK.match(line)
        if label:
            # the first block of a region that is given values has a label, too
            block = block if not block.operations and len(region) == 1 else region.setdefault(label[1], Block())
            block.arguments = _VALUE.findall(label[2] or "")
            region[label[1]] = block
            continue
        operation = _read(line)
        block.operations.append(operation)
        closing = "}" if not line.endswith("{") else "} {"
        while closing.endswith("{"):
            operation.regions.append({"": Block()})
            closing = _fill(operation.regions[-1], lines)
        operation.text += closing[1:]
    return ""


def _read(line: str) -> Statement:
    match = _STATEMENT.match(line)
    if match is None:
        raise ValueError(f"not an operation: {line}")
    result, count, name, text = match.groups()
    results = [] if result is None else [result] if count is None else [f"{result}#{i}" for i in range(int(count))]
    return Statement(name, results, text.removesuffix("{"))
