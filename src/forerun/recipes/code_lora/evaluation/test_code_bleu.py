import math

import pytest

from forerun.recipes.code_lora.evaluation.code_bleu import (
    _root,
    code_bleu,
    data_flow,
    ngram_score,
    subtrees,
    tokens,
)

REFERENCE = "def solve(xs):\n    ys = [v + 3 for v in xs]\n    return sum(ys)\n"


def test_parts_react_to_what_they_measure():
    same = code_bleu([REFERENCE], [REFERENCE])
    assert same.score == 1.0
    renamed = code_bleu([REFERENCE.replace("ys", "zs").replace("xs", "values")], [REFERENCE])
    assert renamed.syntax == renamed.data_flow == 1.0
    assert renamed.ngrams < 1
    other_flow = code_bleu([REFERENCE.replace("sum(ys)", "sum(xs)")], [REFERENCE])
    assert other_flow.syntax == 1.0
    assert other_flow.data_flow < 1
    other_form = code_bleu(["def solve(xs):\n    return sum(v + 3 for v in xs)\n"], [REFERENCE])
    assert other_form.syntax < 1


def test_keywords_weigh_five_times():
    pair = [(["return", "x"], ["return", "y"])]
    plain, weighted = ngram_score(pair, {}), ngram_score(pair, {"return": 1.0})
    assert weighted / plain == pytest.approx(((1 / 1.2) / 0.5) ** 0.25)


def test_bleu_by_hand():
    score = ngram_score([(list("abcd"), list("abce"))], {})
    assert score == pytest.approx(math.exp(sum(map(math.log, (3 / 4, 3 / 4, 2 / 3, 1 / 2))) / 4))
    assert ngram_score([(list("ab"), list("abcdef"))], {}) < math.exp(1 - 3) * 1.01


def test_data_flow_of_assignments_loops_and_uses():
    edges = data_flow(_root("def f(a, b):\n    c = a + b\n    for d in c:\n        c += d\n    return c\n"))
    assert edges[0] == ("v0", "use", ()) or edges
    froms = [edge for edge in edges if edge[1] == "from"]
    assert [(edge[0], set(edge[2])) for edge in froms] == [
        ("v2", {"v0", "v1"}), ("v3", {"v2"}), ("v2", {"v3", "v2"}),
    ]  # fmt: skip


def test_functions_attributes_and_keywords_are_no_variables():
    edges = data_flow(_root("x = 1\ny = f(x, key=x).strip\nmodule.x = 2\n"))
    assert ("v1", "from", ("v0", "v0")) in edges


def test_broken_and_strange_answers_score_without_an_error():
    for answer in ("", "def f(:", "(" * 3000, "\x00", "x = '\ud800'", "🎉"):
        assert 0 <= code_bleu([answer], [REFERENCE]).score < 0.5
    assert code_bleu(["pass"], ["pass"]).data_flow is None
    with pytest.raises(ValueError, match="one reference"):
        code_bleu([], [])


def test_comments_are_no_tokens_and_leaves_no_subtrees():
    assert tokens(_root("x = 1  # one")) == ["x", "=", "1"]
    assert subtrees(_root("x")) == ["(expression_statement identifier)", "(module (expression_statement identifier))"]
