"""Questions made to break the command line and the Python interface: a documented exit code, a paragraph, in time.

FORERUN_FUZZ_QUESTIONS says how many the slow part asks (10,000).
"""

import os
from collections import Counter

import pytest
from benchmarks.fuzz import Answer, Answerer, answering, described, is_too_long, judged, outcome_of
from benchmarks.fuzz_cases import FIELDS, Question, questions, remote_code
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as options

QUESTIONS = int(os.environ.get("FORERUN_FUZZ_QUESTIONS", "10_000"))
TRACED = ("settings", "configurations", "folders")
MOST_BYTES = 4 * 1024**3


@pytest.fixture(scope="module")
def answerer():
    import forerun.api
    import forerun.cli.main  # noqa: F401  # loaded before the process is forked

    with answering() as process:
        yield process


def ask(answerer: Answerer, question: Question) -> str:
    answer = answerer.answer(question)
    assert not answer.failure, f"{answer.failure}: {answer.message}\n{described(question)}"
    return outcome_of(answer)


def asked_of(answerer: Answerer, number: int, without: tuple[str, ...]) -> Counter[str]:
    outcomes: Counter[str] = Counter()

    @seed(2026)
    @options(max_examples=number, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
             suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(questions(without=without))
    def each(question: Question) -> None:
        outcomes[ask(answerer, question)] += 1

    each()
    assert answerer.most_bytes < MOST_BYTES
    return outcomes


@pytest.mark.medium
@pytest.mark.timeout(120)
def test_what_is_refused_before_anything_is_built_is_refused_in_words(answerer):
    outcomes = asked_of(answerer, 500, TRACED)
    assert outcomes["refused"] > 300


def test_code_beside_a_model_is_never_run(answerer):
    assert ask(answerer, remote_code()) == "refused"


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_no_settings_break_it(answerer):
    outcomes = asked_of(answerer, QUESTIONS, ())
    print(f"\n{outcomes.total()} questions: {dict(outcomes)}")
    assert outcomes["forecast"] > outcomes.total() / 10


def test_every_setting_is_asked_about():
    assert {"seed", "workload"} <= {path[0] for path in FIELDS if len(path) == 1}
    assert len(FIELDS) > 60


@pytest.mark.parametrize(
    ("exit_code", "output", "message", "failure"),
    [
        (0, '{"run": {"cost": 1.5}}', "", ""),
        (2, "", "Invalid settings.", ""),
        (0, '{"run": {"cost": -1.5}}', "", "impossible number"),
        (1, "", "Traceback (most recent call last)", "exit code 1"),
        (2, "", "Traceback (most recent call last)", "traceback"),
        (2, "", "x" * 5_000, "long message"),
        (2, "", " ", "no message"),
    ],
)
def test_answers_are_judged(exit_code, output, message, failure):
    assert judged(Question("any"), exit_code, (0.1, 0.1), output, message).failure == failure


def test_a_forecast_where_only_a_refusal_is_right_is_a_failure():
    assert judged(Question("any", must_refuse="no price"), 0, (0.1, 0.1), "{}", "").failure == "not refused"
    assert outcome_of(Answer("", 2, 0.1, "no head (ValueError, a/b.py:7).")).startswith("refused with")


@pytest.mark.parametrize(
    ("seconds", "processor_seconds", "load", "too_long"),
    [
        (59, 59, 1, False),
        (61, 5, 2, True),  # nobody else wants the cores
        (61, 5, 12, False),
        (400, 61, 12, True),
        (601, 0, 12, True),  # waits for something that does not come
    ],
)
def test_60_seconds_are_those_of_the_processor_where_others_have_it(seconds, processor_seconds, load, too_long):
    assert is_too_long(seconds, processor_seconds, load, 2) is too_long
