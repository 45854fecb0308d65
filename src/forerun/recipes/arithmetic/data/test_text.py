import pytest

from forerun.recipes.arithmetic.data.questions import ArithmeticQuestion
from forerun.recipes.arithmetic.data.text import (
    SPELLINGS,
    TEMPLATES,
    DigitTokeniser,
    final_integer,
    llama_tokens,
    output_of,
    prompt_of,
    wordings,
)

SUM = ArithmeticQuestion("addition", 123, 456)
TOKENISER = DigitTokeniser()


@pytest.mark.parametrize("operation", list(SPELLINGS))
def test_every_wording_keeps_the_operands_in_order_and_can_be_tokenised(operation):
    question = ArithmeticQuestion(operation, 84, 21)
    prompts = {prompt_of(question, number) for number in range(wordings(operation))}
    assert len(prompts) == wordings(operation)
    for prompt in prompts:
        assert prompt.endswith("\nAnswer:")
        assert prompt.index("84") < prompt.index("21")
        assert TOKENISER.decode(TOKENISER.encode(prompt)).replace(" ", "") == prompt.replace(" ", "").replace("\n", "")


def test_templates_differ():
    assert len(set(TEMPLATES)) == len(TEMPLATES)
    assert all(template.count("{x}") == 1 for template in TEMPLATES)


def test_forms_of_the_output():
    assert prompt_of(SUM, None) == "123 + 456 ="
    assert prompt_of(SUM, None, width=5) == "00123 + 00456 ="
    assert output_of(SUM, 579, "answer", "plain") == "579"
    assert output_of(SUM, 579, "answer", "reversed") == "975"
    assert output_of(SUM, 580, "equation", "plain") == "123 + 456 = 580"
    assert output_of(SUM, 580, "equation", "reversed", width=4) == "0123 + 0456 = 085"


def test_steps_are_right_on_the_way():
    product = ArithmeticQuestion("multiplication", 123, 406)
    output = output_of(product, product.answer, "steps", "plain")
    assert output == "123 * 406 = 123 * 400 + 123 * 6 = 49200 + 738 = 49938"
    quotient = ArithmeticQuestion("division", 4536, 12)
    output = output_of(quotient, 378, "steps", "plain")
    assert output == "4536 / 12 = 3600 / 12 + 840 / 12 + 96 / 12 = 378"
    for question in (product, quotient):
        parts = output_of(question, question.answer, "steps", "plain").split(" = ")
        assert {eval(part) for part in parts} == {question.answer}


def test_only_a_whole_final_integer_counts():
    """By substring, 42 would be found in 142, and an operand in every reply that repeats the question."""
    assert final_integer("42", "plain") == "42"
    assert final_integer("40 + 2 = 42", "plain") == "42"
    assert final_integer("40 + 2 = 142", "plain") == "142"
    assert final_integer("The answer is 42.", "plain") == "42"
    assert final_integer("42 + 1 =", "plain") is None
    assert final_integer("42 + 1 = 4 3", "plain") is None
    assert final_integer("forty-two", "plain") is None
    assert final_integer("", "plain") is None
    assert final_integer("- 42", "plain") == "-42"
    assert final_integer("24 -", "reversed") == "-42"
    assert final_integer("012", "reversed") == "210"
    assert final_integer("210", "reversed") == "012"  # no number: the right answer never has it


def test_replies_survive_the_vocabulary():
    for answer, order in ((-5130, "plain"), (-5130, "reversed"), (20, "reversed")):
        output = output_of(SUM, answer, "equation", order)
        assert final_integer(TOKENISER.decode(TOKENISER.encode(output)), order) == str(answer)


def test_ids_are_few_and_unique():
    assert len(set(TOKENISER.vocabulary)) == len(TOKENISER.vocabulary) <= 96
    assert TOKENISER.encode("12 + 7 =") == [3, 4, TOKENISER.vocabulary.index("+"), 9, TOKENISER.vocabulary.index("=")]
    with pytest.raises(KeyError):
        TOKENISER.encode("hexadecimal")


def test_counted_tokens_by_hand():
    assert llama_tokens("12 + 3 = 15") == 10  # ▁ 1 2 ▁+ ▁ 3 ▁= ▁ 1 5
    assert llama_tokens("What is 12+3?\nAnswer:") == 11  # What is ▁ 1 2 + 3 ? \n Answer :
    assert llama_tokens("homework calculator") == 3  # ten letters are two tokens
