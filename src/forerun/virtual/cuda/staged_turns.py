"""Turns of a `for` loop that are known before it begins: those of a range or a list, and those that `enumerate` counts.

Bars of progress around them (`trange(90)`, `bar = tqdm(range(90))`) are looked through. Of batches of a loader their
number is known, and nothing else: a turn that is left out makes none.
"""

import ast
import itertools
from collections.abc import Callable, Collection, ItemsView, Iterable, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

from forerun.virtual.cuda.loop_sizes import name_of

MOST_ELEMENTS = 2_000
"""Of a list whose elements are looked at."""
SETTINGS = (itertools.product, itertools.permutations, itertools.combinations)
FROM_LISTS = type(iter([])), type(iter(()))
MOST_SETTINGS = 50
"""Of which one after another is tried; what is more are rows."""
PASSED_ON = {"tqdm", "track", "iter"}
"""Calls around `enumerate` that hand on what it gives."""


@dataclass(frozen=True)
class Turns:
    """The turns of one loop."""

    numbers: range
    """What they are counted with."""
    elements: Iterable[Any] | None = None
    """What they are given; None: the numbers."""
    is_enumerated: bool = False
    """They are given both."""

    def __len__(self) -> int:
        return len(self.numbers)

    def counters(self, target: ast.expr) -> Collection[str]:
        """Names of a target that only count."""
        if self.elements is None:
            return names_of(target)
        return names_of(target.elts[0]) if self.is_enumerated and isinstance(target, ast.Tuple) else ()

    def names_in(self, number: int, target: ast.expr) -> dict[str, Any]:
        """What a turn gives the names of a target, as far as it is known."""
        if self.elements is None:
            return dict(_bound(target, self.numbers[number]))
        is_known = isinstance(self.elements, Sequence)
        element = self.elements[number] if isinstance(self.elements, Sequence) else None
        if not self.is_enumerated:
            return dict(_bound(target, element)) if is_known else {}
        counter, *others = target.elts if isinstance(target, ast.Tuple) else [target]
        names = dict(_bound(counter, self.numbers[number]))
        for other in others if is_known else ():
            names |= _bound(other, element)
        return names

    def values(self) -> Callable[[int], Any]:
        """What gives a turn its value, by its number; of what is no sequence the next one.

        Raises:
            StopIteration: there is no other one.
        """
        elements = self.elements
        if elements is None:
            return lambda number: self.numbers[number]
        if isinstance(elements, Sequence):
            return lambda number: (self.numbers[number], elements[number]) if self.is_enumerated else elements[number]
        iterator = iter(elements)
        return lambda number: (self.numbers[number], next(iterator)) if self.is_enumerated else next(iterator)


def known_turns(value: Any) -> Turns | None:
    """The turns of a loop over something; None where they are not known."""
    if isinstance(value, range):
        return Turns(value)
    is_of_dictionary = isinstance(value, dict | ItemsView | ValuesView)
    if (is_of_dictionary or isinstance(value, list | tuple)) and len(value) <= MOST_ELEMENTS:
        return Turns(range(len(value)), list(value) if is_of_dictionary else value)
    return None


def with_length(value: Any) -> Any:
    """The same turns, as a list where they are all that `itertools` makes of settings, or `zip` of lists."""
    is_of_lists = isinstance(value, zip) and all(isinstance(each, FROM_LISTS) for each in value.__reduce__()[1])
    if not is_of_lists and not isinstance(value, SETTINGS):
        return value
    first = list(itertools.islice(value, MOST_SETTINGS + 1))
    return first if len(first) <= MOST_SETTINGS else itertools.chain(first, value)


def enumerated_turns(value: Any, start: int = 0) -> Turns | None:
    """The same of `enumerate(value, start)`."""
    try:
        count = len(value)
    except (TypeError, NotImplementedError):
        return None
    return Turns(range(start, start + count), value, is_enumerated=True)


def enumerate_call(node: ast.expr) -> ast.Call | None:
    """The call of `enumerate` in what a loop runs over, through bars of progress around it."""
    while isinstance(node, ast.Call) and node.args and name_of(node.func) in PASSED_ON:
        node = node.args[0]
    if not isinstance(node, ast.Call) or name_of(node.func) != "enumerate":
        return None
    return node if node.args and not node.keywords else None


def names_of(target: ast.expr) -> Collection[str]:
    """Names that a target has."""
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def _bound(target: ast.expr, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif (
        isinstance(target, ast.Tuple | ast.List) and isinstance(value, list | tuple) and len(value) == len(target.elts)
    ):
        for part, each in zip(target.elts, value, strict=True):
            yield from _bound(part, each)
