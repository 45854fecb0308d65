"""Arithmetic questions: operands of exact lengths, the five-part curriculum of Goat, held-out pairs.

A *cell* is a pair of lengths (shorter, longer). The curriculum takes for each start `s` all cells whose shorter length
is at least `s`, `per_cell` draws each: with starts 1, 3, 6, 9, 12 and 15 digits 120 + 91 + 55 + 28 + 10 = 304 cells,
304,000 rows at 1,000 draws (Liu & Low 2023, arXiv 2305.14201, and the script behind its data). It is one shuffled
mixture: a cell weighs as much as the number of starts that it reaches.

A number of n digits is drawn from 10^(n-1) to 10^n - 1, both included, and one of one digit from 0 to 9: none is ever a
digit longer than its cell says. Pairs that are held out for testing never occur in training, in either order where the
order does not matter.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from forerun.errors import InvalidSettings

Operation = Literal["addition", "subtraction", "multiplication", "division"]
Sampler = Literal["uniform", "carry-balanced", "log-uniform"]
Cell = tuple[int, int]
SYMBOLS: dict[Operation, str] = {"addition": "+", "subtraction": "-", "multiplication": "*", "division": "/"}
COMMUTATIVE = ("addition", "multiplication")
HELD_OUT_SHARE = 0.2
"""At most this share of a cell's pairs is held out, half of it for each of two sets: one-digit operands have only a
hundred. Of sums and products, whose two orders are one question, it is up to twice the share."""
COUNTED_DIVISORS = 10_000
"""A cell with more of them has 90,000 divisions or more, enough for any held-out set."""


@dataclass(frozen=True, slots=True)
class ArithmeticQuestion:
    """One operation on two whole numbers."""

    operation: Operation
    left: int
    right: int

    @property
    def answer(self) -> int:
        """The right answer; divisions have no remainder."""
        match self.operation:
            case "addition":
                return self.left + self.right
            case "subtraction":
                return self.left - self.right
            case "multiplication":
                return self.left * self.right
            case "division":
                return self.left // self.right

    @property
    def expression(self) -> str:
        """Text of the question, such as `12 + 34`."""
        return f"{self.left} {SYMBOLS[self.operation]} {self.right}"

    @property
    def cell(self) -> Cell:
        """Digits of the shorter and of the longer operand."""
        lengths = sorted((len(str(self.left)), len(str(self.right))))
        return lengths[0], lengths[1]

    @property
    def key(self) -> tuple[str, int, int]:
        """The same for questions that are one: 12 + 34 and 34 + 12, but not 12 - 34 and 34 - 12."""
        left, right = self.left, self.right
        if self.operation in COMMUTATIVE and left > right:
            left, right = right, left
        return self.operation, left, right


def carries(question: ArithmeticQuestion) -> list[bool]:
    """Whether each column, units first, carries into the next (addition) or borrows from it (subtraction).

    Empty for other operations. Of a difference below zero, the columns of its size.
    """
    if question.operation not in ("addition", "subtraction"):
        return []
    larger, smaller = max(question.left, question.right), min(question.left, question.right)
    sign = 1 if question.operation == "addition" else -1
    flags, carry = [], 0
    for _ in str(larger):
        column = larger % 10 + sign * (smaller % 10 + carry)
        carry = int(column > 9 or column < 0)
        flags.append(bool(carry))
        larger, smaller = larger // 10, smaller // 10
    return flags


def longest_chain(question: ArithmeticQuestion) -> int:
    """Most columns in a row that carry or borrow."""
    longest = running = 0
    for carried in carries(question):
        running = running + 1 if carried else 0
        longest = max(longest, running)
    return longest


def curriculum(max_digits: int, starts: Sequence[int]) -> list[Cell]:
    """The cells of all parts, one part after the other.

    Raises:
        InvalidSettings: a start is above `max_digits`, so that its part is empty.
    """
    beyond = [start for start in starts if start > max_digits]
    if beyond or not starts:
        raise InvalidSettings(
            f"recipe.starts: each part has operands of at least so many digits, at most recipe.max_digits="
            f"{max_digits}; found {list(starts)}. Leave out {beyond or 'nothing, but give one'}."
        )
    return [
        (shorter, longer)
        for start in starts
        for shorter in range(start, max_digits + 1)
        for longer in range(shorter, max_digits + 1)
    ]


@dataclass(frozen=True)
class QuestionSource:
    """Draws questions of a cell, from a random generator of its own."""

    operation: Operation
    sampler: Sampler
    swapped_share: float
    """Share of the questions whose longer operand comes first."""
    random: random.Random

    def __post_init__(self) -> None:
        if self.sampler == "carry-balanced" and self.operation != "addition":
            raise InvalidSettings(
                f"recipe.sampler: carry-balanced draws sums; found recipe.operation={self.operation!r}. Set "
                f"recipe.sampler to uniform or log-uniform."
            )

    def draw(self, cell: Cell) -> ArithmeticQuestion:
        """One question whose operands have exactly the lengths of `cell`."""
        shorter, longer = cell
        if self.operation == "division":
            return self._division(shorter, longer)
        if self.sampler == "carry-balanced":
            first, second = self._balanced(shorter, longer)
        else:
            first, second = self._number(shorter), self._number(longer)
        if self.random.random() < self.swapped_share:
            first, second = second, first
        return ArithmeticQuestion(self.operation, first, second)

    def draw_many(
        self, cell: Cell, number: int, excluded: Collection[tuple[str, int, int]]
    ) -> Iterator[ArithmeticQuestion]:
        """A number of questions, repeats allowed, none of `excluded`."""
        for _ in range(number):
            question = self.draw(cell)
            while question.key in excluded:
                question = self.draw(cell)
            yield question

    def held_out(self, cell: Cell, number: int, excluded: set[tuple[str, int, int]]) -> list[ArithmeticQuestion]:
        """At most `number` questions that differ from each other and from `excluded`, to which they are added."""
        allowed = min(number, int(HELD_OUT_SHARE * pairs_of(self.operation, cell) / 2))
        questions: list[ArithmeticQuestion] = []
        for _ in range(20 * allowed):
            question = self.draw(cell)
            if question.key not in excluded and len(questions) < allowed:
                excluded.add(question.key)
                questions.append(question)
        return questions

    def _number(self, digits: int) -> int:
        lowest, highest = lowest_of(digits), 10**digits - 1
        if self.sampler == "log-uniform":  # the leading digit d has share log10(1 + 1/d)
            return max(lowest, min(highest, int(10 ** (digits - 1 + self.random.random()))))
        return self.random.randint(lowest, highest)

    def _division(self, shorter: int, longer: int) -> ArithmeticQuestion:
        """A dividend of `longer` digits that the divisor divides."""
        divisor = max(1, self._number(shorter))
        lowest, highest = -(-lowest_of(longer) // divisor), (10**longer - 1) // divisor
        return ArithmeticQuestion("division", divisor * self.random.randint(lowest, highest), divisor)

    def _balanced(self, shorter: int, longer: int) -> tuple[int, int]:
        """Operands whose common columns carry in any number from none to all with equal chance."""
        carrying = set(self.random.sample(range(shorter), self.random.randint(0, shorter)))
        first = second = carry = 0
        for column in range(longer):
            lowest = 1 if column == longer - 1 and longer > 1 else 0
            if column >= shorter:
                digit = self.random.randint(lowest, 9)
                second += digit * 10**column
                continue
            other = 1 if column == shorter - 1 and shorter > 1 else 0
            pairs = [
                (x, y)
                for x in range(other, 10)
                for y in range(lowest, 10)
                if (x + y + carry > 9) == (column in carrying)
            ]
            x, y = self.random.choice(pairs or [(other, lowest)])
            carry = int(x + y + carry > 9)
            first, second = first + x * 10**column, second + y * 10**column
        return first, second


def lowest_of(digits: int) -> int:
    """The smallest number of so many digits; 0 for one digit."""
    return 10 ** (digits - 1) if digits > 1 else 0


def numbers_of(digits: int) -> int:
    """How many numbers have so many digits."""
    return 10**digits - lowest_of(digits)


def pairs_of(operation: Operation, cell: Cell) -> int:
    """How many ordered pairs a cell has; of divisions without rest those of the first `COUNTED_DIVISORS`."""
    shorter, longer = cell
    if operation != "division":
        return numbers_of(shorter) * numbers_of(longer)
    lowest, highest, first = lowest_of(longer), 10**longer - 1, max(1, lowest_of(shorter))
    divisors = range(first, min(10**shorter, first + COUNTED_DIVISORS))
    return sum(highest // divisor - -(-lowest // divisor) + 1 for divisor in divisors)
