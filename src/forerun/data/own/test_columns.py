import pytest

from forerun.data.own.columns import columns_of, is_empty, number_of, value_at


def test_numbers_with_a_decimal_comma_are_numbers():
    assert [number_of(text) for text in ("3,5", "-0,25", " 12,0001 ")] == [3.5, -0.25, 12.0001]
    grouped = ("1.180,31", "1,180.31", "-1.234.567,8", "1 180,31", "1\xa0180,5", "1'180.31", "+12\u2019000.0")
    assert [number_of(text) for text in grouped] == [1180.31, 1180.31, -1234567.8, 1180.31, 1180.5, 1180.31, 12000.0]
    assert [number_of(text) for text in ("1.18,31", "1,180,31", "1.180.31", "1 18,3", "1234.567,8")] == [None] * 5
    assert [number_of(text) for text in ("1,234", "1,2,3", "a,1", ",5")] == [None] * 4


def test_kinds_are_told_by_values():
    row = {
        "a": "x",
        "b": "1.5",
        "c": [{"role": "user"}],
        "d": [{"from": "gpt"}],
        "e": ["x"],
        "f": [1],
        "g": None,
        "h": {"i": "x"},
    }
    kinds = {name: column.kind for name, column in columns_of([row]).items()}
    assert kinds == {
        "a": "text", "b": "number", "c": "messages", "d": "turns", "e": "texts", "f": "numbers", "g": "empty",
        "h": "mapping", "h.i": "text",
    }  # fmt: skip


def test_texts_of_which_some_look_like_lists_are_texts():
    assert columns_of([{"input": "[1, 2]"}, {"input": "a word"}])["input"].kind == "text"


def test_a_dot_reaches_into_a_mapping_unless_a_column_is_called_so():
    assert value_at({"a": {"b": {"c": 1}}}, "a.b.c") == 1
    assert value_at({"a.b": 2, "a": {"b": 1}}, "a.b") == 2
    assert value_at({"a": 1}, "a.b") is None


@pytest.mark.parametrize(
    ("value", "number"), [("1e3", 1000.0), ("nan", None), ("1_000", None), (True, None), (2, 2.0), (float("inf"), None)]
)
def test_numbers(value, number):
    assert number_of(value) == number


def test_lists_as_python_prints_them_are_lists():
    assert value_at({"a": "['B-PER', 'O']"}, "a") == ["B-PER", "O"]
    assert value_at({"a": "[see below]"}, "a") == "[see below]"


def test_whole_numbers_beyond_any_float_are_none():
    assert number_of(10**400) is None


@pytest.mark.parametrize("value", [None, " \n", "\xa0\u200b", float("nan"), [], {}])
def test_emptiness(value):
    assert is_empty(value)
    assert not is_empty(0)
