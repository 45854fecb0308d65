import pytest

from forerun.recipes.code_lora.data.python_code import code_of, parses
from forerun.recipes.code_lora.evaluation.answers import defines, form_of, text_scores


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Sure!\n```python\nx = 1\n```\nDone. ```y```", "x = 1"), ("```\nx = 1\n```", "x = 1"),
        ("```py\nx = 1\ny =", "x = 1\ny ="), ("x = 1", "x = 1"), ("", ""), ("```python\n```", ""),
    ],
)  # fmt: skip
def test_the_code_of_an_answer(answer, code):
    assert code_of(answer) == code


@pytest.mark.parametrize(
    ("text", "is_complete", "form"),
    [
        ("def f():\n    return 1", True, "parses"), ("def f():\n    return (", False, "truncated"),
        ("def f():\n    return (", True, "not code"), ("I cannot do that.", True, "not code"), ("  \n", True, "empty"),
        ("# nothing but a comment", True, "not code"), ("x = '\\d'", True, "parses"), ("(" * 5000, False, "truncated"),
    ],
)  # fmt: skip
def test_forms(text, is_complete, form):
    assert form_of(code_of(text), text=text, is_complete=is_complete) == form
    assert parses(code_of(text)) == (form == "parses")


def test_definitions_at_the_outermost_level():
    assert defines("import re\nasync def f(): pass", "f")
    assert defines("class f: pass", "f")
    assert not defines("    def f(): pass", "f")
    assert not defines("def ff(): pass", "f")


def test_bleu_and_chrf_with_their_signatures():
    same = text_scores(["x = a + b * c - d"], ["x = a + b * c - d"])
    assert (round(same.bleu), round(same.chrf)) == (100, 100)
    assert "tok:13a" in same.bleu_signature
    assert "nc:6" in same.chrf_signature
    corpus = text_scores(["a b c d e f", "x"], ["a b c d e f", "a long one that is quite missed"])
    assert corpus.bleu < 60, "the corpus has one brevity penalty, not a mean over sentences"
