import pytest

from forerun.data.written_values import read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, true, null, "x\\n"]}', {"a": [1, True, None, "x\n"]}),
        ("{'a': [1.5, True, None, 'it\\'s'], 'b': {}}", {"a": [1.5, True, None, "it's"], "b": {}}),
        ('(city=\'Rome\', days=-3, deep={"a": [1, true]})', {"city": "Rome", "days": -3, "deep": {"a": [1, True]}}),
        ('{city:<|"|>Rome "x" \\n<|"|>,deep:{a:[1,None,<|"|>y<|"|>]}}',
         {"city": 'Rome "x" \\n', "deep": {"a": [1, None, "y"]}}),
        ("(a='it's \"so\"', b='')", {"a": 'it\'s "so"', "b": ""}),
        ("()", {}),
        ("[1, 2,]", [1, 2]),
        ("'caf\\u00e9'", "café"),
        ('"two\nlines"', "two\nlines"),
    ],
    ids=["JSON", "Python", "call", "Gemma 4", "without escapes", "empty", "comma", "escape", "line"],
)  # fmt: skip
def test_a_value_is_read_as_it_is_written(text, value):
    assert read_value(f"x {text}, rest", 1, '<|"|>') == (value, len(text) + 2)


@pytest.mark.parametrize("text", ["", "{", "{a}", "{a:b}", "[1 2]", "'open", "NaN", "word", '{"a": NaN}', "[" * 9000])
def test_what_is_no_value_is_none(text):
    assert read_value(text, 0) is None
