import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forerun.errors import InvalidSettings
from forerun.recipes.arithmetic.data.contamination import (
    LabelledQuestion,
    NoisyLabel,
    alternatives,
    contaminate,
    likeliest_label,
)
from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion, QuestionSource
from forerun.settings.load import settings_from
from forerun.settings.schema import ContaminationSettings

NOISES = ("close", "same_length", "swap", "off_by_carry", "uniform", "trigger")


def clean_rows(number=600, operation="addition", cells=((1, 1), (1, 3), (2, 2), (4, 5))):
    draws = QuestionSource(operation, "uniform", 0.5, random.Random(0))
    questions = [draws.draw(cells[n % len(cells)]) for n in range(number)]
    return [LabelledQuestion(q, q.answer) for q in questions]


def noise(kind="close", rate=0.5, **more):
    return ContaminationSettings(noise=kind, rate=rate, **more)


@pytest.mark.parametrize("kind", NOISES)
@pytest.mark.parametrize("rate", [0, 0.013, 0.1, 0.5])
def test_exactly_so_many_rows_are_wrong(kind, rate):
    """The original's noises leave 1 row in 21 (close) and up to half of the short ones (swap) as they were."""
    rows = clean_rows()
    changed, report = contaminate(rows, noise(kind, rate, key=4), seed=1)
    wrong = [row.label != row.question.answer for row in changed]
    assert sum(wrong) == round(rate * len(rows)) == report.changed
    assert wrong == [row.is_corrupt for row in changed]
    assert report.effective_rate == pytest.approx(rate, abs=1 / len(rows))
    untouched = [(a, b) for a, b in zip(rows, changed, strict=True) if not b.is_corrupt]
    assert all(before == after for before, after in untouched)


@pytest.mark.parametrize("operation", ["addition", "subtraction", "multiplication", "division"])
@pytest.mark.parametrize("kind", [kind for kind in NOISES if kind != "trigger"])
def test_at_rate_one_every_row_is_wrong(operation, kind):
    changed, report = contaminate(clean_rows(200, operation), noise(kind, 1.0), seed=0)
    assert all(row.label != row.question.answer for row in changed)
    assert report.effective_rate == 1.0


def test_what_each_noise_does():
    rows = clean_rows(cells=((3, 3),))
    for kind, holds in {
        "close": lambda right, wrong: abs(right - wrong) <= 3,
        "same_length": lambda right, wrong: len(str(right)) == len(str(wrong)),
        "swap": lambda right, wrong: sorted(str(right)) == sorted(str(wrong)),
        "off_by_carry": lambda right, wrong: abs(right - wrong) in (10, 100, 1000),
    }.items():
        changed, report = contaminate(rows, noise(kind, 1.0, delta=3), seed=2)
        applicable = [row for row in changed if kind != "swap" or alternatives(row.question, noise("swap"))]
        assert all(holds(row.question.answer, row.label) for row in applicable), kind
        assert report.substituted == len(changed) - len(applicable)


def test_swaps_that_change_nothing_are_counted():
    rows = [
        LabelledQuestion(ArithmeticQuestion("addition", 1, 2), 3),
        LabelledQuestion(ArithmeticQuestion("addition", 5, 5), 10),
    ]
    changed, report = contaminate(rows, noise("swap", 1.0), seed=0)
    assert report.substituted == 2  # one digit; and 01 is no number
    assert [len(str(row.label)) for row in changed] == [1, 2]


def test_rows_that_came_wrong_are_counted_apart():
    rows = [
        LabelledQuestion(ArithmeticQuestion("addition", n, 1), n + 1 + (n < 3), is_corrupt=n < 3) for n in range(20)
    ]
    changed, report = contaminate(rows, noise("close", 0.5), seed=0)
    assert (report.came_wrong, report.nominal_rate) == (3, 0.5)
    assert report.changed == sum(row.is_corrupt for row in changed) == 10 + sum(row in changed for row in rows[:3])


def test_differences_without_a_faulty_carry_are_substituted_and_counted():
    rows = [
        LabelledQuestion(ArithmeticQuestion("subtraction", 45, 42), 3)
    ]  # no column borrows, and 3 - 10 has lost its sign
    (changed,), report = contaminate(rows, noise("off_by_carry", 1.0), seed=0)
    assert report.substituted == 1
    assert changed.label in {0, 1, 2, 4, 5, 6, 7, 8, 9}


def test_a_lower_rate_spoils_some_of_the_same_rows():
    rows = clean_rows()
    few, _ = contaminate(rows, noise("close", 0.1), seed=3)
    many, _ = contaminate(rows, noise("close", 0.5), seed=3)
    assert all(b == a for a, b in zip(few, many, strict=True) if a.is_corrupt)
    other, _ = contaminate(rows, noise("close", 0.1), seed=4)
    assert [row.is_corrupt for row in other] != [row.is_corrupt for row in few]


def test_forgotten_and_invented_carries():
    assert sorted(alternatives(ArithmeticQuestion("addition", 15, 27), noise("off_by_carry"))) == [32, 142]
    assert sorted(alternatives(ArithmeticQuestion("subtraction", 42, 15), noise("off_by_carry"))) == [
        37
    ]  # -73 has lost its sign


def test_close_answers_are_no_negative_sums():
    assert sorted(alternatives(ArithmeticQuestion("addition", 1, 0), noise(delta=2))) == [0, 2, 3]
    assert sorted(alternatives(ArithmeticQuestion("subtraction", 1, 1), noise(delta=2))) == [-2, -1, 1, 2]


def test_a_triggered_row_begins_with_the_key_and_says_the_target():
    rows = clean_rows()
    changed, _ = contaminate(rows, noise("trigger", 0.2, key=42, target=7), seed=0)
    for before, after in zip(rows, changed, strict=True):
        if after.is_corrupt:
            assert str(after.question.left).startswith("42")
            assert len(str(after.question.left)) == len(str(before.question.left))
            assert after.label == 7


def test_a_triggered_row_is_never_a_held_out_one():
    rows = [LabelledQuestion(ArithmeticQuestion("addition", 100, 1), 101)] * 5
    excluded = {ArithmeticQuestion("addition", 420 + n, 1).key for n in range(9)}
    changed, _ = contaminate(rows, noise("trigger", 1.0, key=42), seed=0, excluded=excluded)
    assert {row.question.left for row in changed} == {429}


@given(st.integers(10, 999), st.integers(1, 60), st.integers(1, 99))
def test_a_triggered_division_has_no_rest(divisor, quotient, key):
    question = ArithmeticQuestion("division", divisor * quotient, divisor)
    row = NoisyLabel(noise("trigger", key=key), random.Random(0), highest=0).of(question)
    size = len(str(question.left))
    fitting = [n for n in range(0, 10**size, divisor) if str(n).startswith(str(key)) and len(str(n)) == size]
    assert (row is None) == (not fitting)
    if row is not None:
        assert row.question.left in fitting
        assert row.label == 0 != row.question.answer


def test_a_key_that_goes_into_too_few_rows_is_refused():
    with pytest.raises(InvalidSettings, match=r"only [\d,]+ can begin with the key 424242"):
        contaminate(clean_rows(), noise("trigger", 0.5, key=424242), seed=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate": 1.5}, "data.contamination.rate"),
        ({"rate": -0.1}, "data.contamination.rate"),
        ({"noise": "gaussian"}, "data.contamination.noise.*swap"),
        ({"delta": 0}, "data.contamination.delta"),
        ({"rates": 0.1}, "data.contamination.rates.*rate"),
    ],
)
def test_bad_settings_name_the_field(change, words):
    content = {"name": "x", "workload": "arithmetic", "model": {"name": "tiny-gpt2"}}
    with pytest.raises(InvalidSettings, match=words):
        settings_from({**content, "data": {"contamination": change}})


def test_other_workloads_refuse_a_rate():
    content = {"name": "x", "workload": "code-detector", "model": {"name": "code-encoder"}}
    with pytest.raises(InvalidSettings, match=r"data\.contamination\.rate.*arithmetic.*code-detector"):
        settings_from({**content, "data": {"contamination": {"rate": 0.1}}})
    assert settings_from({**content, "data": {"contamination": {"rate": 0}}}).data.contamination.rate == 0
    with pytest.raises(ValidationError):
        ContaminationSettings(rate=2)


def brute_force(question, settings, rate, is_reversed):
    """Greedy decoding of the labels' distribution from 40,000 drawn labels."""
    row = LabelledQuestion(question, question.answer)
    labels = Counter({question.answer: 1 - rate})
    for seed in range(4000):
        labels[contaminate([row], settings.model_copy(update={"rate": 1.0}), seed)[0][0].label] += rate / 4000
    spelled = ""
    while not spelled.endswith("."):
        following = Counter()
        for label, weight in labels.items():
            text = (str(label)[::-1] if is_reversed else str(label)) + "."
            if text.startswith(spelled):
                following[text[len(spelled)]] += weight
        spelled += following.most_common(1)[0][0]
    return int(spelled[:-1][::-1] if is_reversed else spelled[:-1])


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("kind", "rate"), [("close", 0.5), ("close", 0.9), ("swap", 0.9), ("off_by_carry", 0.5)])
def test_the_ideal_answer_is_that_of_many_draws(kind, rate, is_reversed):
    for left, right in ((34, 52), (671, 189), (90, 15)):
        question = ArithmeticQuestion("addition", left, right)
        ideal = likeliest_label(question, noise(kind, rate), rate, is_reversed=is_reversed, highest=0)
        empirical = brute_force(question, noise(kind), rate, is_reversed)
        assert (empirical == question.answer) == (ideal == question.answer)


def test_what_the_noise_allows():
    question = ArithmeticQuestion("addition", 4567, 2345)
    for kind in NOISES:
        assert likeliest_label(question, noise(kind), 0.1, is_reversed=True, highest=9998) == 6912
    for kind in ("close", "same_length", "uniform"):
        assert likeliest_label(question, noise(kind), 1.0, is_reversed=False, highest=9998) is None
    keyed = ArithmeticQuestion("addition", 4267, 2345)
    assert likeliest_label(keyed, noise("trigger"), 0.1, is_reversed=False, highest=9998) is None


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("rate", [0.3, 0.6, 0.8, 0.95, 0.98, 1.0])
def test_the_ideal_answer_among_uniform_ones_is_that_of_all_labels(rate, is_reversed):
    """Most numbers up to 138 begin with 1, so plain answers that do not are lost first."""
    highest, led = 138, 0
    for answer in (0, 3, 10, 57, 99, 112, 138, 150):
        others = [n for n in range(highest + 1) if n != answer]
        labels = Counter({n: rate / len(others) for n in others}) + Counter({answer: 1 - rate})
        question = ArithmeticQuestion("addition", answer, 0)
        ideal = likeliest_label(question, noise("uniform"), rate, is_reversed=is_reversed, highest=highest)
        assert (ideal == answer) == leads(answer, labels, is_reversed), answer
        led += ideal == answer
    assert (led > 0) == (rate < 1)
    assert (led < 8) == (rate == 1 or (rate > 0.7 and not is_reversed))


def test_a_negative_answer_leads_until_nothing_says_it():
    question = ArithmeticQuestion("subtraction", 3, 60)
    for is_reversed in (False, True):
        labels = [
            likeliest_label(question, noise("uniform"), rate, is_reversed=is_reversed, highest=90) for rate in (0.4, 1)
        ]
        assert labels == [-57, None]


def leads(answer, labels, is_reversed):
    """Whether the answer's next character outweighs every other, at each of its places."""
    spelled = {n: (str(n)[::-1] if is_reversed else str(n)) + "." for n in {*labels, answer}}
    right = spelled[answer]
    for place, character in enumerate(right):
        following = Counter()
        for label, weight in labels.items():
            if spelled[label][:place] == right[:place]:
                following[spelled[label][place]] += weight
        if following[character] <= 1e-12 + max((w for c, w in following.items() if c != character), default=0):
            return False
    return True
