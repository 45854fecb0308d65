"""What is plain passes, everything else is named by its path; a message shows any value."""

import datetime

import pytest

from forerun.settings.plain import DEEPEST, LONGEST_TEXT, MOST_VALUES, in_short, require_plain


def test_plain_values_pass():
    require_plain({"a": [1, 2.5, None, True, "text", {"b": ()}]})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "a.b: a finite number"),
        (float("-inf"), "a.b: a finite number"),
        (10**16, "a.b: a whole number"),
        ([10**5_000], "of 16610 bits"),
        (datetime.date(2026, 11, 23), "found a date"),
        ({1}, "found a set"),
        (b"x", "found a bytes"),
        ({1: 2}, "the key 1"),
        ("x\0", "NUL"),
        ("\ud800", "UTF-8"),
        ("x" * (LONGEST_TEXT + 1), "4,096 characters"),
        ([0] * MOST_VALUES, "20,000 values"),
    ],
    ids=lambda value: value if isinstance(value, str) and "a.b" in value else "",
)
def test_anything_else_is_named(value, reason):
    with pytest.raises(ValueError, match=reason):
        require_plain({"a": {"b": value}})


def test_a_list_that_holds_itself_is_too_deep():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match=f"at most {DEEPEST} levels"):
        require_plain(loop)


def test_a_message_shows_any_value_in_a_line():
    assert in_short("x" * 200) == repr("x" * 80 + "…")
    assert in_short([10**5_000]) == "a list"
    assert in_short(-(10**5_000)) == "a whole number of 16610 bits"
    assert len(in_short(["x" * 9_000])) == 81
