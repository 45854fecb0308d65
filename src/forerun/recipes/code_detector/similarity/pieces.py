"""A file in pieces that a reader would name: each function or method, and what stands between them.

Long ones are cut into stretches of equal length. A piece with few marks of its own says nothing and is left out; a file
that has no other is one piece.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from forerun.recipes.code_detector.similarity.compare import LEAST_MARKS, PreparedFile
from forerun.recipes.code_detector.similarity.streams import parse

DEFINITIONS = {"function_definition", "method_declaration", "constructor_declaration"}
"""Node types of functions and methods in tree-sitter's grammars of Python, Java and C++."""
MOST_LINES = 40


@dataclass(frozen=True)
class Piece:
    """Part of a file: lines from 1, both ends included."""

    first_line: int
    last_line: int
    marks: int
    """Number of syntax marks, base code apart."""


def pieces_of(code: str, file: PreparedFile) -> list[Piece]:
    """Pieces of a file of this `code`, in order; never none.

    Raises:
        NotSupported: no grammar for its language.
    """
    number = code.count("\n") + 1
    pieces = [_piece(first, last, file) for first, last in _stretches(parse(code, file.language), number)]
    return [piece for piece in pieces if piece.marks >= LEAST_MARKS] or [_piece(1, number, file)]


def _piece(first: int, last: int, file: PreparedFile) -> Piece:
    marks = file.streams.syntax
    own = (marks.first_lines >= first) & (marks.last_lines <= last) & ~file.used_syntax
    return Piece(first, last, int(own.sum()))


def _stretches(root: Node, number: int) -> Iterator[tuple[int, int]]:
    """First and last lines of definitions and of what is between them, none longer than MOST_LINES."""
    previous_end = 0
    for begin, end in sorted(_definitions(root)):
        for first, last in ((previous_end + 1, begin - 1), (max(begin, previous_end + 1), end)):
            yield from _cut(first, last)
        previous_end = max(previous_end, end)
    yield from _cut(previous_end + 1, number)


def _definitions(root: Node) -> Iterator[tuple[int, int]]:
    """First and last lines of the outermost definitions."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type in DEFINITIONS:
            yield node.start_point.row + 1, node.end_point.row + 1
        else:
            waiting.extend(node.children)


def _cut(first: int, last: int) -> Iterator[tuple[int, int]]:
    lines = last - first + 1
    if lines > 0:
        step = math.ceil(lines / math.ceil(lines / MOST_LINES))
        for begin in range(first, last + 1, step):
            yield begin, min(begin + step - 1, last)
