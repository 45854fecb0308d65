"""Is a text code of a language at all? The language's own grammar says; no score is given to what is not.

Two shares of the text's characters, spaces and comments left out, in tree-sitter's tree: *broken*, those that the
grammar cannot place (its ERROR nodes, statements without their semicolon), and *acting*, those inside a statement that
does something: defines, assigns, calls, decides, repeats, imports. Data, one word and prose do nothing.

Of the 10,115 files of the corpus the limits refuse six (2026-11-23): Python under the name of Java, data, and four
whose mistakes the grammar cannot read past. Of 168 modules of Python's standard library they refuse none.

**Not covered:** text that was made to parse: `x = "an essay"` is code, and so is a file of settings `key = value`.
"""

from dataclasses import dataclass

from tree_sitter import Node

from forerun.recipes.code_detector.similarity.streams import COMMENTS, parse

MOST_BROKEN, LEAST_ACTING = 0.5, 0.1
ACTING = (
    "assignment", "call", "invocation", "function", "class", "method", "import", "if_", "for_", "while_", "return",
    "with_", "try_", "declaration", "definition", "_include", "_def", "del_", "raise_", "throw", "switch", "match_",
    "update_expression", "field_initializer", "print_statement", "assert", "yield", "lambda", "comprehension", "await",
)  # fmt: skip
"""Parts of the names of node kinds that do something, in the grammars of Python, Java and C++."""


UNKNOWN_DIRECTIVE = "preproc_call"
"""C++'s grammar takes any line that begins with # for one."""


@dataclass(frozen=True)
class Plausibility:
    """Shares of a text's characters, without spaces and comments."""

    broken: float
    acting: float

    @property
    def is_code(self) -> bool:
        """Whether the text is code of its language."""
        return self.broken <= MOST_BROKEN and self.acting >= LEAST_ACTING


def plausibility(code: str, language: str) -> Plausibility:
    """How much of the text is code of `language`.

    Raises:
        NotSupported: no grammar for `language`.
    """
    content = code.encode("utf-8", "replace")
    broken, acting, whole = _sizes(parse(code, language), content)
    return Plausibility(broken / max(1, whole), acting / max(1, whole))


def _sizes(root: Node, content: bytes) -> tuple[int, int, int]:
    """Bytes that the grammar cannot place, that are part of something that acts, and all."""
    broken = acting = whole = 0
    nodes = [(root, False, False)]
    while nodes:
        node, is_broken, is_acting = nodes.pop()
        if node.type in COMMENTS:
            continue
        # Java reads any two words as a declaration without its semicolon
        is_broken = is_broken or node.type == "ERROR" or any(c.is_missing and c.type == ";" for c in node.children)
        is_acting = is_acting or (node.type != UNKNOWN_DIRECTIVE and any(part in node.type for part in ACTING))
        if node.child_count and not (is_broken and is_acting):
            nodes += [(child, is_broken, is_acting) for child in node.children]
            continue
        size = len(b"".join(content[node.start_byte : node.end_byte].split()))
        whole += size
        broken += size * is_broken
        acting += size * is_acting
    return broken, acting, whole
