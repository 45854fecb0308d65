import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.recipes.code_detector.similarity.compare import BaseCode, Sizes, SourceFile, base_code, compare, prepare
from forerun.recipes.code_detector.similarity.winnowing import Winnowing

TEMPLATE = """def read(path):
    rows = []
    with open(path) as file:
        for line in file:
            parts = line.split(",")
            if len(parts) > 2 and parts[0] != "id":
                rows.append([float(part) for part in parts[1:]])
    return rows
"""
OWN = """
def spread(rows):
    means = []
    for row in rows:
        total = 0
        for value in row:
            total += value * value
        means.append(total / len(row) if row else 0)
    best = max(means)
    while means and means[-1] < best / 2:
        means.pop()
    return best - min(means)
"""
OTHER = """
def spread(rows):
    result = {}
    try:
        result["low"] = sorted(map(min, rows))[0]
        result["high"] = sorted(map(max, rows), reverse=True)[0]
    except IndexError:
        return None
    return result["high"] - result["low"]
"""
RENAMED = OWN.replace("means", "averages").replace("value", "x").replace("row", "line").replace("total", "acc")


def python(code, name="f.py"):
    return prepare(SourceFile(name, code, "python"), Sizes())


def against(base: str) -> BaseCode | None:
    return base_code([SourceFile("base", base, "python")], Sizes())


@pytest.mark.parametrize("code", [OWN, TEMPLATE, TEMPLATE + OWN])
def test_a_file_is_wholly_in_itself(code):
    comparison = compare(python(code, "a"), python(code, "b"), Sizes())
    assert (comparison.a, comparison.b, comparison.too_small) == ("a", "b", False)
    for tier in (comparison.words, comparison.syntax):
        assert (tier.score, tier.of_a, tier.of_b) == (1.0, 1.0, 1.0)


def test_renaming_comments_and_blank_lines_hide_nothing():
    disguised = RENAMED.replace("    best", "\n    # the best\n    best")
    comparison = compare(python(OWN), python(disguised), Sizes())
    assert comparison.words.score == comparison.syntax.score == 1.0


def test_other_solutions_score_low():
    comparison = compare(python(OWN), python(OTHER), Sizes())
    assert comparison.syntax.score < 0.3
    assert comparison.words.score < 0.3


def test_evidence_names_the_lines_on_both_sides():
    comparison = compare(python(OWN), python(TEMPLATE + OTHER + RENAMED), Sizes())
    begin = (TEMPLATE + OTHER).count("\n") + 2
    longest = max((e for e in comparison.evidence if e.tier == "syntax"), key=lambda e: e.tokens)
    assert (longest.a_first_line, longest.a_last_line) == (2, 12)
    assert (longest.b_first_line, longest.b_last_line) == (begin, begin + 10)
    assert comparison.syntax.of_a == 1.0 > comparison.syntax.of_b


def test_code_that_was_handed_out_does_not_count():
    base = against(TEMPLATE)
    one, two = (prepare(SourceFile(n, TEMPLATE + c, "python"), Sizes(), base) for n, c in (("a", OWN), ("b", OTHER)))
    with_base, without = compare(one, two, Sizes()), compare(python(TEMPLATE + OWN), python(TEMPLATE + OTHER), Sizes())
    assert without.syntax.score > 0.4 > 0.25 > with_base.syntax.score
    assert without.words.score > with_base.words.score
    assert all(e.a_first_line > TEMPLATE.count("\n") - 1 for e in with_base.evidence)
    only = prepare(SourceFile("c", TEMPLATE, "python"), Sizes(), base)
    comparison = compare(only, only, Sizes())
    assert comparison.too_small
    assert (comparison.words.score, comparison.syntax.score, comparison.evidence) == (0.0, 0.0, [])


@given(
    st.sampled_from([OWN, OTHER, TEMPLATE, RENAMED, "", "x = 1"]), st.sampled_from([OWN, OTHER, TEMPLATE, OTHER * 2])
)
@settings(deadline=None)
def test_scores_are_shares_and_sides_can_be_swapped(first, second):
    one, two = python(first), python(second)
    comparison, swapped = compare(one, two, Sizes()), compare(two, one, Sizes())
    for tier in (comparison.words, comparison.syntax):
        assert 0 <= tier.score <= 1
        assert 0 <= min(tier.of_a, tier.of_b) <= tier.score <= max(tier.of_a, tier.of_b) <= 1 + 1e-12
    assert comparison.words.score == swapped.words.score


def test_small_files_say_so():
    comparison = compare(python("print(1)"), python("print(1)"), Sizes())
    assert comparison.too_small


def test_sizes_are_checked():
    with pytest.raises(InvalidSettings, match="minimum_tile"):
        Sizes(winnowing=Winnowing(), minimum_tile=0)
