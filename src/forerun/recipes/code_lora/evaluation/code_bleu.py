"""CodeBLEU of Python answers (Ren et al. 2020, arXiv 2009.10297): words, weighted words, syntax and data flow.

The mean of four shares over the corpus, each from 0 to 1:

- *ngrams*: BLEU-4 over the tokens of the syntax tree;
- *weighted*: the same with Python's keywords counted five times as much among the single tokens;
- *syntax*: subtrees of the reference (node types, names and constants left out) that the answer has too;
- *data flow*: edges of the reference that the answer has too. An edge is (variable, `from`, the variables that its
  value is computed from) for every assignment, loop and comprehension, and (variable, `use`, what it was last
  computed from) for every use; variables are renamed by first appearance, so that names do not matter.

**Differs from the published one:** tokens are leaves of tree-sitter's tree, not white-space words; counts of two and
more tokens are smoothed by adding one (Lin and Och 2004); the data flow is one pass in the order of the text, without
fixed points over loops and branches, and nested functions share names with what is around them; a corpus whose
references have no data flow is scored by the other three, where the authors' script gives 0.
Figures of the two are not to be compared.
"""

import keyword
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tree_sitter_python
from tree_sitter import Language, Node, Parser

ORDERS = 4
KEYWORD_WEIGHT, OTHER_WEIGHT = 1.0, 0.2
"""Weights of keywords and other tokens, those of the authors' script."""
Edge = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class CodeBleu:
    """The score and its parts, from 0 to 1."""

    ngrams: float
    weighted: float
    syntax: float
    data_flow: float | None
    """None where no reference has any."""

    @property
    def score(self) -> float:
        """Mean of the parts that there are."""
        parts = [self.ngrams, self.weighted, self.syntax, *([] if self.data_flow is None else [self.data_flow])]
        return sum(parts) / len(parts)


def code_bleu(answers: Sequence[str], references: Sequence[str]) -> CodeBleu:
    """CodeBLEU of a corpus with one reference each.

    Raises:
        ValueError: there are no pairs.
    """
    if not answers or len(answers) != len(references):
        raise ValueError(f"one reference an answer; found {len(answers)} answers and {len(references)} references")
    pairs = [(_root(a), _root(r)) for a, r in zip(answers, references, strict=True)]
    words = [(tokens(a), tokens(r)) for a, r in pairs]
    syntax = _matched([(Counter(subtrees(a)), Counter(subtrees(r))) for a, r in pairs])
    flow = _matched([(Counter(data_flow(a)), Counter(data_flow(r))) for a, r in pairs])
    return CodeBleu(ngram_score(words, {}), ngram_score(words, _weights()), syntax or 0.0, flow)


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_python.language()))


def _root(code: str) -> Node:
    return _parser().parse(code.encode("utf-8", "replace")).root_node


def _weights() -> dict[str, float]:
    return dict.fromkeys(keyword.kwlist, KEYWORD_WEIGHT)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def tokens(root: Node) -> list[str]:
    """Texts of the leaves, comments left out."""
    return [_text(node) for node in _nodes(root) if not node.child_count and node.type != "comment" and _text(node)]


def _nodes(root: Node) -> Iterator[Node]:
    """All nodes in the order of the text, parents first."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


def ngram_score(pairs: Sequence[tuple[list[str], list[str]]], weights: dict[str, float]) -> float:
    """Corpus BLEU-4 with single tokens weighted (all alike where `weights` is empty)."""
    logarithms = 0.0
    for order in range(1, ORDERS + 1):
        hit = total = 0.0
        for answer, reference in pairs:
            counts, limits = _ngrams(answer, order), _ngrams(reference, order)
            for gram, number in counts.items():
                weight = weights.get(gram[0], OTHER_WEIGHT) if weights and order == 1 else 1.0
                hit += weight * min(number, limits[gram])
                total += weight * number
        smooth = 1.0 if order > 1 else 0.0  # Lin and Och 2004: add one to counts of two and more tokens
        if not total + smooth or not hit + smooth:
            return 0.0
        logarithms += math.log((hit + smooth) / (total + smooth)) / ORDERS
    answer_length, reference_length = sum(len(a) for a, _ in pairs), sum(len(r) for _, r in pairs)
    return math.exp(logarithms + min(0.0, 1 - reference_length / answer_length))


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[place : place + order]) for place in range(len(words) - order + 1))


def subtrees(root: Node) -> list[str]:
    """Every subtree of more than one node, as node types in brackets."""
    shapes: dict[int, str] = {}
    trees = []
    for node in reversed(list(_nodes(root))):  # children before their parents, without recursion
        inner = " ".join(shapes[child.id] for child in node.children)
        shapes[node.id] = f"({node.type} {inner})" if inner else node.type
        if inner:
            trees.append(shapes[node.id])
    return trees


def _matched(pairs: Sequence[tuple[Counter[Any], Counter[Any]]]) -> float | None:
    """Share of what the references have that the answers have too; None where they have nothing."""
    total = sum(reference.total() for _, reference in pairs)
    return sum((answer & reference).total() for answer, reference in pairs) / total if total else None


TARGETS = {"assignment": ("left", "right"), "augmented_assignment": ("left", "right"), "for_statement": ("left",
           "right"), "for_in_clause": ("left", "right"), "named_expression": ("name", "value")}  # fmt: skip


def data_flow(root: Node) -> list[Edge]:
    """Edges of the program in the order of the text, variables renamed by first appearance."""
    names: dict[str, str] = {}
    sources: dict[str, tuple[str, ...]] = {}
    edges: list[Edge] = []
    for node in _in_order_of_binding(root):
        if node.type in TARGETS:
            left, right = (node.child_by_field_name(field) for field in TARGETS[node.type])
            used = _variables(right) + (_variables(left) if node.type == "augmented_assignment" else [])
            for name in _variables(left):
                sources[name] = tuple(_renamed(each, names) for each in used)
                edges.append((_renamed(name, names), "from", sources[name]))
        elif _is_variable(node) and _text(node) in sources:
            edges.append((_renamed(_text(node), names), "use", sources[_text(node)]))
        elif _is_variable(node) and node.parent is not None and node.parent.type in PARAMETERS:
            sources[_text(node)] = ()
            _renamed(_text(node), names)
    return edges


PARAMETERS = ("parameters", "lambda_parameters", "typed_parameter", "default_parameter", "typed_default_parameter")


def _in_order_of_binding(root: Node) -> Iterator[Node]:
    """Nodes in the order of the text, but the `for` of a comprehension before what it makes."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        children = node.children
        if node.type.endswith("comprehension") or node.type == "generator_expression":
            children = sorted(children, key=lambda child: child.type != "for_in_clause")
        waiting.extend(reversed(children))


def _variables(node: Node | None) -> list[str]:
    return [] if node is None else [_text(each) for each in _nodes(node) if _is_variable(each)]


def _is_variable(node: Node) -> bool:
    """An identifier that is neither a called function, an attribute, a keyword's name nor a definition's."""
    parent = node.parent
    if node.type != "identifier" or parent is None:
        return False
    if parent.type == "call":
        return parent.child_by_field_name("function") != node
    if parent.type == "attribute":
        return parent.child_by_field_name("object") == node
    if parent.type in ("keyword_argument", "function_definition", "class_definition"):
        return parent.child_by_field_name("name") != node
    return parent.type not in ("dotted_name", "aliased_import", "type", "global_statement")


def _renamed(name: str, names: dict[str, str]) -> str:
    return names.setdefault(name, f"v{len(names)}")
