import pytest

from forerun.data.own.python_lists import python_list


@pytest.mark.parametrize("value", [["B-PER", "O"], ["it's", 'a "b"'], [1, 2.5], [{"role": "user", "content": "' '"}]])
def test_what_python_prints_is_read(value):
    assert python_list(str(value)) == value


@pytest.mark.parametrize(
    "text", ["['B-PER' 'O']", "[1 2 3]", "[see below]", "[f(1)]", "[" * 5000 + "]" * 5000, r"['\d' 'a']"]
)
def test_other_texts_are_left_as_they_are(text):
    assert python_list(text) == text
