"""How well sums are answered: exact match of the whole final integer, digit match, slices, and trivial answerers.

Exact match compares the last integer of a reply with the right answer as a whole; a reply that contains the answer
somewhere else is wrong. Digit match is the share of the right answer's digits that stand at their place, counted from
the right (the second figure of Goat's table 3).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forerun.evaluate.classification import clopper_pearson
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion, longest_chain


@dataclass(frozen=True, slots=True)
class Reply:
    """One question and the integer that the reply ended with; None where it ended otherwise."""

    question: ArithmeticQuestion
    integer: str | None

    @property
    def is_right(self) -> bool:
        """Whether the whole integer is the answer."""
        return self.integer == str(self.question.answer)

    @property
    def digit_match(self) -> float:
        """Share of the answer's digits that are right, places counted from the right; a sign is a digit of its own."""
        right = str(self.question.answer)
        integer = self.integer or ""
        return sum(a == b for a, b in zip(reversed(right), reversed(integer), strict=False)) / len(right)


@dataclass(frozen=True)
class Proportion:
    """Right answers among some, with the exact 95 % interval of Clopper and Pearson (1934)."""

    right: int
    total: int

    @property
    def value(self) -> float:
        """Share of right answers."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the share."""
        return clopper_pearson(self.right, self.total)


def exact_match(replies: Sequence[Reply]) -> Proportion:
    """Whole answers that are right."""
    return Proportion(sum(reply.is_right for reply in replies), len(replies))


def mean_digit_match(replies: Sequence[Reply]) -> float:
    """Mean digit match of the replies."""
    return sum(reply.digit_match for reply in replies) / len(replies)


def group_by(replies: Iterable[Reply], slice_of: Callable[[ArithmeticQuestion], object]) -> dict[object, list[Reply]]:
    """Replies by a property of their question, in ascending order of it."""
    slices: dict[object, list[Reply]] = {}
    for reply in replies:
        slices.setdefault(slice_of(reply.question), []).append(reply)
    return dict(sorted(slices.items()))  # type: ignore[type-var]


def group_by_chain(replies: Iterable[Reply]) -> dict[object, list[Reply]]:
    """Replies by the longest chain of carries or borrows of their question."""
    return group_by(replies, longest_chain)


def trivial_answers(
    questions: Sequence[ArithmeticQuestion], training: Sequence[ArithmeticQuestion]
) -> dict[str, list[Reply]]:
    """Replies that need no arithmetic: the commonest training answer, an operand, columns without carrying."""
    commonest = Counter(question.answer for question in training).most_common(1)[0][0]
    answerers: dict[str, Callable[[ArithmeticQuestion], int]] = {
        "commonest answer": lambda question: commonest,
        "copy the larger operand": lambda question: max(question.left, question.right),
        "columns without carrying": without_carrying,
    }
    return {name: [Reply(q, str(answer(q))) for q in questions] for name, answer in answerers.items()}


def without_carrying(question: ArithmeticQuestion) -> int:
    """Each column of a sum or difference by itself; of other operations the last digits' result."""
    left, right = str(question.left), str(question.right)
    if question.operation in ("multiplication", "division"):
        small = ArithmeticQuestion(question.operation, int(left[-1]), max(1, int(right[-1])))
        return small.answer
    width = max(len(left), len(right))
    sign = 1 if question.operation == "addition" else -1
    columns = zip(left.zfill(width), right.zfill(width), strict=True)
    return int("".join(str((int(a) + sign * int(b)) % 10) for a, b in columns))
