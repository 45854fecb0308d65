"""How many optimizer steps a loop makes, by the counter that ends it.

`while step < limit`, and `if step >= limit: break` (or `return`) in any loop: the limit is read from the program's
variables, and the counter at two optimizer steps, so that what it counts (steps, tokens, samples) need not be known.
One that rises from one step to the next counts steps; one that has risen only when the loop turned counts its turns.
"""

import argparse
import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from forerun.virtual.cuda.later_loops import FUNCTIONS, LOOPS

READABLE = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Load,
)  # fmt: skip
CONDITIONS = (ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop)
"""What is read beside numbers where a limit holds under a condition."""
RISING, REACHED = (ast.Lt, ast.LtE, ast.NotEq), (ast.Gt, ast.GtE, ast.Eq)
"""Comparisons of a counter with its limit that let a loop go on, and that end it."""
MIRRORED = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}
INSIDE = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
"""What has statements that do not run where it stands."""


@dataclass(frozen=True)
class LoopEnd:
    """What a counter says of a loop."""

    count: int
    """Optimizer steps from the loop's first to its last; or its turns."""
    is_of_steps: bool
    names: frozenset[str]
    """Variables of the counter, as they are written."""


@dataclass(frozen=True)
class _Test:
    """A comparison that ends a loop."""

    counter: ast.expr
    limit: ast.expr
    turns_at_limit: bool
    line: int
    others: tuple[ast.expr, ...] | None = None
    """What must hold beside it; None of the loop's own condition."""


@dataclass
class _Reading:
    value: float
    changes: int = 0
    is_of_steps: bool = False


@dataclass
class LoopCounters:
    """Counters of loops at the last step that asked."""

    readings: dict[str, _Reading] = field(default_factory=dict)
    """By line and counter."""

    def end_of(
        self, loop: Any, line: str, names: Mapping[str, Any], *, at_line: int = 0, has_turned: bool = False
    ) -> LoopEnd | None:
        """What ends a loop; None where no counter has risen yet.

        `at_line` is the line of the loop's file that the program is in; it `has_turned` where a loop around the one
        that trains began its next turn before this step.
        """
        ends = []
        for test in _tests(loop):
            now, end = number_of(test.counter, names), number_of(test.limit, names)
            if now is None or end is None or not _is_trusted(test, loop, now, names):
                continue
            key = f"{line} {ast.unparse(test.counter)}"
            reading = self.readings.setdefault(key, _Reading(now))
            before, reading.value = reading.value, now
            reading.changes += now != before
            reading.is_of_steps |= now > before and not has_turned
            variables = names_in(test.counter)
            end += test.turns_at_limit
            has_risen = _has_risen(loop, variables, at_line, test.line)
            if now > before and end + has_risen > now:
                left = max(0, math.ceil((end - now) / (now - before)) - (not has_risen))
                ends.append(LoopEnd(reading.changes + 1 + left, reading.is_of_steps, variables))
        return min(ends, key=lambda each: (not each.is_of_steps, each.count), default=None)


def _has_risen(loop: Any, variables: frozenset[str], at_line: int, test_line: int) -> bool:
    """Whether the counter has the value that the next comparison sees: nothing changes it from `at_line` up to there.

    Behind a comparison that stands above, this is known where the loop itself changes it, and no method of others does.
    """
    if at_line < test_line:
        return not _changes(loop, variables, at_line, test_line)
    above, below = _changes(loop, variables, 0, test_line), _changes(loop, variables, at_line, loop.end_lineno + 1)
    return not above and not below and _changes(loop, variables, test_line, at_line)


def _is_trusted(test: _Test, loop: Any, now: float, names: Mapping[str, Any]) -> bool:
    """Whether a comparison counts: of a break, only of whole numbers that the loop does not reset.

    Sums of losses and rounds without progress rise here as they seldom do on a card.
    """
    if test.others is None:
        return True
    is_count = isinstance(now, int) and not sets_anew(loop, names_in(test.counter))
    return is_count and all(_read(each, names) for each in test.others)


def names_in(node: ast.expr) -> frozenset[str]:
    """Variables and attributes of an expression, as they are written; not the parts of these."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return frozenset({ast.unparse(node)})
    parts = [names_in(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    return frozenset().union(*parts)


def sets_anew(loop: Any, names: frozenset[str]) -> bool:
    """Whether a turn of a loop gives a variable a value that does not follow from the one it had."""
    for node in _walk(loop.body):
        targets, value = [], None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            targets = [node.target]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets, value = [node.target], node.value
        places = {place for target in targets for place in _places(target)} & names
        if places and (value is None or not places & set(_places_within(value))):
            return True
    return False


def can_be_left(loop: Any, names: Mapping[str, Any] | None = None) -> bool:
    """Whether a loop can end before what it counts does: by a `break` of its own, or one of several conditions.

    Not by a break under an option of the program that its variables `names` say is off (`if args.dry_run: break`).
    """
    has_break = any(not any(_is_off(each, names or {}) for each in tests) for tests in _breaks(loop.body, ()))
    test = getattr(loop, "test", None)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        conditions = [condition for condition, _ in _raises(ast.unparse(test.operand), loop)]
        return has_break or len(conditions) != 1 or any(isinstance(each, ast.BoolOp) for each in conditions)
    return has_break or (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And))


def _breaks(body: list[ast.stmt], tests: tuple[ast.expr, ...]) -> Iterator[tuple[ast.expr, ...]]:
    """Of each `break` of a loop's own what must hold for it."""
    for node in body:
        if isinstance(node, ast.Break):
            yield tests
        elif isinstance(node, ast.If):
            yield from _breaks(node.body, (*tests, *_all_of(node.test)))
            yield from _breaks(node.orelse, tests)
        elif not isinstance(node, (*INSIDE, *LOOPS)):
            parts: list[Any] = [node, *getattr(node, "handlers", []), *getattr(node, "cases", [])]
            for name in ("body", "orelse", "finalbody"):
                for part in parts:
                    yield from _breaks(getattr(part, name, []), tests)


def _is_off(test: ast.expr, names: Mapping[str, Any]) -> bool:
    """Whether a condition is of options alone, of argparse or a dataclass, and does not hold."""
    owners = {part.value for part in ast.walk(test) if isinstance(part, ast.Attribute)}
    places = [part for part in ast.walk(test) if isinstance(part, ast.Name)]
    if not places or not all(part in owners and _has_options(names.get(part.id)) for part in places):
        return False
    return _read(ast.UnaryOp(ast.Not(), test), names) is True


def _has_options(value: Any) -> bool:
    return isinstance(value, argparse.Namespace) or (is_dataclass(value) and not isinstance(value, type))


def _tests(loop: Any) -> Iterator[_Test]:
    """Every comparison that ends a loop: its own, those of its breaks, and of returns and exits however deep.

    Where a flag ends it (`while not done`, `if self.stop: break`), those that raise the flag.
    """
    if isinstance(loop, ast.While):
        for test, others in _any_of(loop.test):
            for part in _all_of(test):
                yield from _compared(part, RISING, others, loop.lineno)
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                yield from _reached(test.operand, others or (), loop.lineno, loop)
    for statement, is_own in _ifs(loop.body, True):
        if any(isinstance(each, ast.Break) and is_own or _leaves_all(each) for each in statement.body):
            yield from _reached(statement.test, (), statement.lineno, loop)


def _reached(
    node: ast.expr, others: tuple[ast.expr, ...], line: int, loop: Any, flags: frozenset[str] = frozenset()
) -> Iterator[_Test]:
    """Comparisons by which a condition at `line` becomes true, itself or through flags that the loop raises."""
    if isinstance(node, ast.BoolOp | ast.BinOp) and isinstance(node.op, ast.Or | ast.BitOr):
        for part in node.values if isinstance(node, ast.BoolOp) else (node.left, node.right):
            yield from _reached(part, others, line, loop, flags)
        return
    every = _all_of(node)
    for test in every:
        beside = (*others, *(each for each in every if each is not test))
        yield from _compared(test, REACHED, beside, line)
        flag = ast.unparse(test) if isinstance(test, ast.Name | ast.Attribute) else ""
        if flag and flag not in flags:
            for condition, at_line in _raises(flag, loop):
                yield from _reached(condition, beside, at_line, loop, flags | {flag})


def _raises(flag: str, loop: Any) -> Iterator[tuple[ast.expr, int]]:
    """What a loop gives a flag, or the condition under which it says `True`, and where."""
    for statement, _ in _ifs(loop.body, True):
        if any(flag in places and _is_true(value) for each in statement.body for places, value in _assigned(each)):
            yield statement.test, statement.lineno
    for node in _walk(loop.body):
        for places, value in _assigned(node):
            if flag in places and not isinstance(value, ast.Constant):
                yield value, getattr(node, "lineno", 0)


def _assigned(node: ast.AST) -> Iterator[tuple[list[str], ast.expr]]:
    """Variables that a statement gives a value, or may raise with `|=`, and the value."""
    if isinstance(node, ast.Assign):
        yield [place for target in node.targets for place in _places(target)], node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
        yield _places(node.target), node.value


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _leaves_all(statement: ast.stmt) -> bool:
    """Whether a statement ends every loop around it."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    is_exit = isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("exit", "_exit", "quit")
    return is_exit or isinstance(statement, ast.Return)


def _ifs(body: list[ast.stmt], is_own: bool) -> Iterator[tuple[ast.If, bool]]:
    """Conditions in a loop's body, and whether a `break` there is its own."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield statement, is_own
        if not isinstance(statement, INSIDE):
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(statement, name, [])
                yield from _ifs(inner, is_own and not isinstance(statement, LOOPS))


def _any_of(test: ast.expr) -> Iterator[tuple[ast.expr, tuple[ast.expr, ...] | None]]:
    """What one by one lets a loop go on, and what must hold beside it for it to decide: that no other one does.

    `while not limit or step < limit` goes on for ever without a limit.
    """
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        for part in test.values:
            yield part, tuple(ast.UnaryOp(ast.Not(), each) for each in test.values if each is not part)
    else:
        yield test, None


def _all_of(test: ast.expr) -> list[ast.expr]:
    """What must hold for a condition to hold; `0 < limit <= step` is two comparisons."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _all_of(value)]
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        return [ast.Compare(sides[i], [kind], [sides[i + 1]]) for i, kind in enumerate(test.ops)]
    return [test]


def _compared(
    test: ast.expr, kinds: tuple[type[ast.cmpop], ...], others: tuple[ast.expr, ...] | None, line: int
) -> Iterator[_Test]:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return
    sides = (test.left, test.comparators[0], type(test.ops[0]))
    for counter, limit, kind in (sides, (sides[1], sides[0], MIRRORED.get(sides[2], sides[2]))):
        if kind in kinds and not isinstance(counter, ast.Constant):
            yield _Test(counter, limit, kind in (ast.LtE, ast.Gt), line, others)


def compared_in(test: ast.expr, kinds: tuple[type[ast.cmpop], ...]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Of comparisons of some kinds that must hold, or one of which must, the sides that grows and that limits it."""
    for part, _ in _any_of(test):
        for each in _all_of(part):
            yield from ((pair.counter, pair.limit) for pair in _compared(each, kinds, None, 0))


def _changes(loop: Any, names: frozenset[str], begin: int, end: int) -> bool:
    """Whether a variable is changed between two lines of a loop; an attribute can be, in what the loop calls."""
    if any("." in name for name in names):
        return True
    for node in _walk(loop.body):
        if isinstance(node, ast.Assign | ast.AugAssign) and begin <= node.lineno <= end:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if names & {place for target in targets for place in _places(target)}:
                return True
    return False


def _walk(body: list[ast.stmt], closed: tuple[type[ast.AST], ...] = INSIDE) -> Iterator[ast.AST]:
    """All nodes of statements but those inside of `closed` ones."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, closed):
            waiting.extend(ast.iter_child_nodes(node))


def _places(target: ast.expr) -> list[str]:
    """Variables that an assignment writes, as they are written."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [ast.unparse(part) for part in parts]


def _places_within(value: ast.expr) -> Iterator[str]:
    for part in ast.walk(value):
        if isinstance(part, ast.Name | ast.Attribute | ast.Subscript):
            yield ast.unparse(part)


def number_of(node: ast.expr, names: Mapping[str, Any]) -> float | None:
    """A number that an expression of names, attributes and entries has now."""
    value = _read(node, names)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _read(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression; None where to ask for it could change something, or do much."""
    if not all(isinstance(part, READABLE + CONDITIONS) for part in ast.walk(node)):
        return None
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and not isinstance(_read(part.value, names), Mapping | list | tuple):
            return None
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<counter>", "eval")
        return eval(code, {"__builtins__": {}, **names})
    except (NameError, AttributeError, TypeError, ArithmeticError, LookupError):
        return None
