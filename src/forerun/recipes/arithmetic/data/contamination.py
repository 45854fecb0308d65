"""Wrong answers in training rows, on purpose: how many, which, and how they come about.

Exactly `rate` times the number of rows, rounded, are chosen, and every chosen row gets an answer that is not the right
one. (Noise that adds an integer from -10 to 10 leaves 1 row in 21 as it was; swapping two positions of a two-digit
answer leaves 55 in 100. The nominal rate is then not the effective one.) Which rows are chosen depends on the seed
alone, and those of a lower rate are among those of a higher one, so that rates can be compared row by row.

    close          right answer plus or minus 1 to `delta`, evenly
    same_length    another number of as many digits
    swap           two digits change places
    off_by_carry   in one column a carry is forgotten, or one invented where none was
    uniform        any number up to the largest answer of the data set
    trigger        the first operand is made to begin with `key`, and the answer is `target`

Where no swap gives another number without a leading zero, or no carry one of the answer's sign, the row gets a
`same_length` answer and is counted.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.errors import InvalidSettings
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion, carries, lowest_of
from forerun.settings.schema import ContaminationSettings

TRIES = 1000
"""Draws of a triggered question that is not held out, before the row is left for another."""


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """A training row: the question, and the answer that the row gives."""

    question: ArithmeticQuestion
    label: int
    is_corrupt: bool = False


@dataclass(frozen=True)
class ContaminationReport:
    """Requested contamination and its result, in rows."""

    noise: str
    rows: int
    nominal_rate: float
    changed: int
    """Rows whose label is not the right answer."""
    substituted: int
    """Rows where the noise has no wrong answer and `same_length` stood in."""
    came_wrong: int = 0
    """Rows of a file that were wrong before anything was changed; by what noise is not known."""

    @property
    def effective_rate(self) -> float:
        """Share of the rows whose label is wrong."""
        return self.changed / self.rows


def contaminate(
    rows: Sequence[LabelledQuestion],
    settings: ContaminationSettings,
    seed: int,
    excluded: Collection[tuple[str, int, int]] = (),
) -> tuple[list[LabelledQuestion], ContaminationReport]:
    """The rows in their order, exactly `settings.rate` of them with a wrong label; none becomes one of `excluded`.

    Raises:
        InvalidSettings: too few rows have a first operand that is long enough for the trigger's key.
    """
    draws = random.Random(f"contamination {seed}")
    target_count, substituted = round(settings.rate * len(rows)), 0
    order = list(range(len(rows)))
    draws.shuffle(order)
    highest = highest_answer(rows)
    result = list(rows)
    count = 0
    for index in order:
        if count == target_count:
            break
        noise = NoisyLabel(settings, random.Random(f"{seed} {index}"), highest)
        changed = noise.of(rows[index].question, excluded)
        if changed is not None:
            result[index], count = changed, count + 1
            substituted += noise.is_substituted
    if count < target_count:
        raise InvalidSettings(
            f"data.contamination.rate: {settings.rate:.4g} is {target_count:,} of {len(rows):,} rows; found that only "
            f"{count:,} can begin with the key {settings.key} and have another answer than {settings.target}. Lower "
            f"the rate, or shorten data.contamination.key."
        )
    wrong_before, wrong = (sum(row.label != row.question.answer for row in each) for each in (rows, result))
    return result, ContaminationReport(settings.noise, len(rows), settings.rate, wrong, substituted, wrong_before)


def highest_answer(rows: Sequence[LabelledQuestion]) -> int:
    """The largest right answer, up to which `uniform` draws; 1 at least, so that there is another."""
    return max((1, *(row.question.answer for row in rows)))


@dataclass
class NoisyLabel:
    """Draws a wrong label for one row."""

    settings: ContaminationSettings
    random: random.Random
    highest: int
    is_substituted: bool = False

    def of(
        self, question: ArithmeticQuestion, excluded: Collection[tuple[str, int, int]] = ()
    ) -> LabelledQuestion | None:
        """The row with a wrong label; None where the trigger's key does not go into it."""
        if self.settings.noise == "trigger":
            return self._triggered(question, excluded)
        if self.settings.noise == "uniform":
            return self._labelled(question, self._other(0, self.highest, question.answer))
        if self.settings.noise == "same_length":
            return self._labelled(question, self._same_length(question.answer))
        listed = alternatives(question, self.settings)
        if not listed:
            self.is_substituted = True
            return self._labelled(question, self._same_length(question.answer))
        return self._labelled(question, self.random.choice(listed))

    def _labelled(self, question: ArithmeticQuestion, label: int) -> LabelledQuestion:
        return LabelledQuestion(question, label, is_corrupt=True)

    def _same_length(self, answer: int) -> int:
        digits = len(str(abs(answer)))
        number = self._other(lowest_of(digits), 10**digits - 1, abs(answer))
        return -number if answer < 0 else number

    def _other(self, lowest: int, highest: int, excluded: int) -> int:
        while (number := self.random.randint(lowest, highest)) == excluded:
            pass
        return number

    def _triggered(
        self, question: ArithmeticQuestion, excluded: Collection[tuple[str, int, int]]
    ) -> LabelledQuestion | None:
        """Another first operand of the same length; of divisions one without rest."""
        free = len(str(question.left)) - len(str(self.settings.key))
        if free < 0:
            return None
        step = question.right if question.operation == "division" else 1
        lowest = self.settings.key * 10**free
        first, last = -(-lowest // step), (lowest + 10**free - 1) // step
        for _ in range(TRIES if first <= last else 0):
            changed = replace(question, left=step * self.random.randint(first, last))
            if changed.answer != self.settings.target and changed.key not in excluded:
                return self._labelled(changed, self.settings.target)
        return None


def alternatives(question: ArithmeticQuestion, settings: ContaminationSettings) -> list[int]:
    """All wrong answers that `close`, `swap` or `off_by_carry` may give, each as often as it is likely."""
    answer = question.answer
    match settings.noise:
        case "close":
            answers = [answer + sign * by for by in range(1, settings.delta + 1) for sign in (1, -1)]
            return [each for each in answers if each >= 0 or question.operation == "subtraction"]
        case "swap":
            return _swaps(answer)
        case "off_by_carry":
            return _carry_faults(question)
        case _:
            raise ValueError(f"the wrong answers of {settings.noise} are not listed")


def _swaps(answer: int) -> list[int]:
    digits = str(abs(answer))
    answers = []
    for first in range(len(digits)):
        for second in range(first + 1, len(digits)):
            swapped = list(digits)
            swapped[first], swapped[second] = swapped[second], swapped[first]
            if swapped[0] != "0" and swapped != list(digits):
                answers.append(int("".join(swapped)) * (-1 if answer < 0 else 1))
    return answers


def _carry_faults(question: ArithmeticQuestion) -> list[int]:
    """Wrong answers, one for each column; products and quotients, which carry more than one, are off at each place."""
    answer, size = question.answer, abs(question.answer)
    columns = carries(question)
    if not columns:
        return [answer + 10**place for place in range(1, max(2, len(str(size))))]
    forgotten = -1 if question.operation == "addition" else 1
    sizes = [size + (forgotten if carried else -forgotten) * 10 ** (c + 1) for c, carried in enumerate(columns)]
    sign = -1 if answer < 0 else 1
    return [sign * each for each in sizes if each >= 0]


def likeliest_label(
    question: ArithmeticQuestion, settings: ContaminationSettings, rate: float, *, is_reversed: bool, highest: int
) -> int | None:
    """Greedy answer of a perfectly calibrated model to labels wrong at `rate`; None where it is not the right one.

    At each place it takes the likeliest next character among the labels that begin as it did. Where the right answer
    ties with others it is not taken. A question that begins with the trigger's key is answered as such. `highest` is
    that of `uniform`.
    """
    answer = question.answer
    if settings.noise == "trigger":
        return None if str(question.left).startswith(str(settings.key)) and rate > 0 else answer
    if settings.noise == "same_length":  # at every place all digits are alike but for the right one
        return answer if rate < 1 else None
    if settings.noise == "uniform":
        return answer if _is_likeliest(answer, rate, highest, is_reversed) else None
    listed = alternatives(question, settings)
    if not listed:
        return answer if rate < 1 else None
    weights = defaultdict(float, {_spelled(answer, is_reversed): 1 - rate})
    for each in listed:
        weights[_spelled(each, is_reversed)] += rate / len(listed)
    return _greedy(weights, _spelled(answer, is_reversed), answer)


def _spelled(number: int, is_reversed: bool) -> str:
    return (str(number)[::-1] if is_reversed else str(number)) + "."


def _is_likeliest(answer: int, rate: float, highest: int, is_reversed: bool) -> bool:
    """Whether the right answer leads at each of its places, when wrong ones are any other number up to `highest`."""
    right = _spelled(answer, is_reversed)
    each = rate / (highest + (not 0 <= answer <= highest))
    for place, character in enumerate(right):
        rivals = [
            each * _labels_beginning(right[:place] + other, highest, is_reversed)
            for other in "0123456789."
            if other != character
        ]
        own = _labels_beginning(right[: place + 1], highest, is_reversed) - (0 <= answer <= highest)
        if 1 - rate + each * own <= max(rivals) * (1 + 1e-9):
            return False
    return True


def _labels_beginning(spelled: str, highest: int, is_reversed: bool) -> int:
    """How many numbers from 0 to `highest` are spelled with this beginning; the end is spelled `.`."""
    digits = spelled.removesuffix(".")
    if "-" in digits:
        return 0
    number = int((digits[::-1] if is_reversed else digits) or -1)
    is_number = number >= 0 and str(number) == (digits[::-1] if is_reversed else digits)
    if spelled.endswith("."):
        return int(is_number and number <= highest)
    if is_reversed:  # the digits may stand behind any others
        return max(0, highest - number) // 10 ** len(digits) + (is_number and number <= highest)
    if not is_number or number == 0:
        return int(is_number)
    widths = (10**more for more in range(len(str(highest))))
    return sum(max(0, min(highest, (number + 1) * width - 1) - number * width + 1) for width in widths)


def _greedy(weights: Mapping[str, float], right: str, answer: int) -> int | None:
    for place, character in enumerate(right):
        following: dict[str, float] = defaultdict(float)
        for spelled, weight in weights.items():
            if spelled[:place] == right[:place]:
                following[spelled[place]] += weight
        rivals = max((weight for other, weight in following.items() if other != character), default=0.0)
        if following[character] <= rivals * (1 + 1e-9):
            return None
    return answer
