"""The page of questions is what `benchmarks.questions` writes; its cheap answers are asked again."""

import pytest
from benchmarks.questions import PAGE, QUESTIONS, answer, section

CHEAP = [number for number, question in enumerate(QUESTIONS, 1) if question.command.startswith("forerun gpus")]


@pytest.mark.medium
@pytest.mark.parametrize("number", CHEAP)
def test_an_answer_is_todays(number):
    question = QUESTIONS[number - 1]
    assert section(number, question, answer(question)) in PAGE.read_text(encoding="utf-8")


def test_the_page_has_each_question_with_its_command_and_an_answer():
    page = PAGE.read_text(encoding="utf-8")
    for number, question in enumerate(QUESTIONS, 1):
        before, _, after = section(number, question, "ANSWER").partition("ANSWER")
        begin = page.index(before) + len(before)
        assert page.index(after.strip(), begin) > begin
    assert page.count("\n## ") == len(QUESTIONS)
    assert "Traceback" not in page
