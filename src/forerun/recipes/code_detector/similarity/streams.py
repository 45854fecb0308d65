"""A source file as two streams of tokens that know their lines: its words without names, and its syntax tree.

- *words*: the leaves of tree-sitter's tree in the order of the text. Names become one token, so do numbers and texts;
  keywords and operators stay; comments, docstrings, imports and `package` lines go.
- *syntax*: marks for what the tree does (assign, call, loop … end, each operator) with its names, numbers and texts as
  one mark each, one vocabulary for every language (`syntax.toml`). Types, modifiers and punctuation go. Every loop is
  written as a `while`: the first value before it, its test, its body, its step at the end of the body; an `elif` is an
  `if` inside an `else`; `i++` is an assignment, as is a declaration with a value.

A token is a 64-bit number that depends on its text alone, so streams of different processes agree.

**Not covered:** languages other than Python, Java and C++ (an error, not a guess). A file that does not parse gives
what tree-sitter's recovery finds in it.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tree_sitter_cpp
import tree_sitter_java
import tree_sitter_python
from numpy.typing import NDArray
from tree_sitter import Language, Node, Parser

from forerun.errors import NotSupported

Tokens = NDArray[np.uint64]
Lines = NDArray[np.int32]

GRAMMARS: dict[str, Callable[[], Any]] = {
    "python": tree_sitter_python.language,
    "java": tree_sitter_java.language,
    "cpp": tree_sitter_cpp.language,
}
"""Grammars by the language names of `data.corpus`."""
NAMES = {"identifier", "type_identifier", "field_identifier", "namespace_identifier", "statement_identifier"}
NUMBERS = {"integer", "float", "number_literal", "decimal_integer_literal", "hex_integer_literal",
           "octal_integer_literal", "binary_integer_literal", "decimal_floating_point_literal",
           "hex_floating_point_literal"}  # fmt: skip
TEXTS = {"string", "concatenated_string", "string_literal", "raw_string_literal", "char_literal", "character_literal",
         "text_block"}  # fmt: skip
COMMENTS = {"comment", "line_comment", "block_comment"}
IMPORTS = {"import_statement", "import_from_statement", "future_import_statement", "import_declaration",
           "package_declaration", "preproc_include", "using_declaration"}  # fmt: skip
OPERATIONS = {"binary_expression", "binary_operator", "boolean_operator"}
CHANGES = {"augmented_assignment", "assignment_expression", "update_expression"}
KNOWN_TEXTS = 65_536
"""Most token numbers that are cached: names come from other people's files, and a service must not keep them all."""
SAME_OPERATORS = {"and": "&&", "or": "||"}


@dataclass(frozen=True)
class TokenStream:
    """Tokens in order, with the first and last line (from 1) of each; arrays of one length."""

    tokens: Tokens
    first_lines: Lines
    last_lines: Lines

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class FileStreams:
    """Both streams of one file."""

    words: TokenStream
    syntax: TokenStream


def streams_of(code: str, language: str) -> FileStreams:
    """Words and syntax of `code`.

    Raises:
        NotSupported: no grammar for `language`.
    """
    root = parse(code, language)
    return FileStreams(_stream(_words(root)), _stream(_syntax(root, language)))


def parse(code: str, language: str) -> Node:
    """The root of the syntax tree.

    Raises:
        NotSupported: no grammar for `language`.
    """
    if language not in GRAMMARS:
        raise NotSupported(f"language: {language!r} has no grammar here. Known: {', '.join(GRAMMARS)}.")
    # JSON allows lone surrogates, for which UTF-8 has no bytes: "replace" makes them question marks.
    return _parser(language).parse(code.encode("utf-8", "replace")).root_node


@lru_cache(maxsize=KNOWN_TEXTS)
def token(text: str) -> int:
    """The number of a token, by its text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@cache
def _parser(language: str) -> Parser:
    return Parser(Language(GRAMMARS[language]()))


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "syntax.toml").read_text(encoding="utf-8"))


Mark = tuple[str, int, int]
"""Text of a token, its first and last row (from 0)."""


def _stream(marks: Iterator[Mark]) -> TokenStream:
    rows = list(marks)
    return TokenStream(
        np.array([token(text) for text, _, _ in rows], dtype=np.uint64),
        np.array([first + 1 for _, first, _ in rows], dtype=np.int32),
        np.array([last + 1 for _, _, last in rows], dtype=np.int32),
    )


def _words(root: Node) -> Iterator[Mark]:
    waiting = [root]  # a stack of our own: a file of deeply nested parentheses would exceed Python's recursion limit
    while waiting:
        node = waiting.pop()
        kind = node.type
        if kind in COMMENTS or kind in IMPORTS or (kind == "expression_statement" and _is_docstring(node)):
            continue
        if kind in TEXTS:
            yield "text", node.start_point.row, node.end_point.row
        elif node.child_count and kind not in NUMBERS:
            waiting.extend(reversed(node.children))
        elif node.end_byte > node.start_byte:
            name = "name" if kind in NAMES else "number" if kind in NUMBERS else kind
            yield name, node.start_point.row, node.end_point.row


def _is_docstring(node: Node) -> bool:
    """A statement that is nothing but a text; only Python has them."""
    return node.child_count == 1 and node.children[0].type in ("string", "concatenated_string")


def _syntax(root: Node, language: str) -> Iterator[Mark]:
    """Marks of the tree in the order of what it does."""
    table = _table()[language]
    blocks, points, skipped = table["blocks"], table["points"], frozenset(table["skipped"])
    waiting: list[Node | Mark] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            yield node
            continue
        kind = node.type
        if kind in skipped or (kind == "expression_statement" and _is_docstring(node)):
            continue
        first, last = node.start_point.row, node.end_point.row
        leaf = _leaf(kind)
        if leaf is not None:
            yield leaf, first, last
            continue
        if kind in blocks:
            waiting.extend(reversed(_block(node, blocks[kind], (first, last))))
            continue
        if kind in points:
            yield points[kind], first, first
        elif kind in OPERATIONS or kind in CHANGES:
            if kind in CHANGES:
                yield "assign", first, first
            operator = _operator(node)
            if operator:
                yield operator, first, first
            if kind == "update_expression":  # i++ is i += 1
                waiting.append(("number", first, first))
        elif kind == "variable_declarator" and node.child_by_field_name("value") is not None:
            yield "assign", first, first
        waiting.extend(reversed(node.children))


def _operator(node: Node) -> str:
    """The operator of an expression: `+` for a + b, a += b and a++; empty for a = b."""
    field = node.child_by_field_name("operator")
    text = field.type if field is not None else next((c.type for c in node.children if c.type in ("++", "--")), "")
    if node.type in CHANGES:
        text = text[:1] if node.type == "update_expression" else text.removesuffix("=")
    return SAME_OPERATORS.get(text, text)


def _leaf(kind: str) -> str | None:
    if kind in ("identifier", "field_identifier"):
        return "name"
    return "number" if kind in NUMBERS else "text" if kind in TEXTS else None


def _block(node: Node, name: str, rows: tuple[int, int]) -> list[Node | Mark]:
    """Marks and child nodes that stand for a block, in order."""
    first, last = rows
    begin, end = (name, first, first), (f"end {name}", last, last)
    if name == "loop":
        before, inside = _loop_parts(node, first)
        return [*before, begin, *inside, end]
    if node.type == "elif_clause":  # as the other languages nest it; its end is marked before the outer one's
        return [("else", first, first), begin, *node.children, end]
    return [begin, *node.children, end]


def _loop_parts(node: Node, row: int) -> tuple[list[Node | Mark], list[Node | Mark]]:
    """Parts before a loop and parts inside it, every loop written as a `while`."""
    assign: Mark = ("assign", row, row)
    if node.type == "for_statement" and node.child_by_field_name("update") is not None:
        before = [child for field in ("init", "initializer") for child in node.children_by_field_name(field)]
        step = list(node.children_by_field_name("update"))
        inside = [node.child_by_field_name("condition"), node.child_by_field_name("body")]
        return list(before), [*(part for part in inside if part is not None), *step]
    if node.type == "for_statement" and _counts(node):  # for i in range(…)
        right, body = node.child_by_field_name("right"), node.child_by_field_name("body")
        bounds = right.child_by_field_name("arguments") if right is not None else None
        parts: list[Node | Mark] = [("compare", row, row), *([bounds] if bounds else []), *([body] if body else [])]
        return [assign], [*parts, assign]
    if node.type in ("for_statement", "enhanced_for_statement", "for_range_loop"):
        return [], [assign, *node.children]
    return [], list(node.children)


def _counts(node: Node) -> bool:
    right = node.child_by_field_name("right")
    called = right.child_by_field_name("function") if right is not None and right.type == "call" else None
    return called is not None and called.text in (b"range", b"xrange")
