import pytest

from forerun.data.own.labels import label_kind, labels_of, separator_of

CASES = {
    "names": (["pos", "neg", "pos"], "one", True),
    "class numbers": ([0, 1, 2, 1, 0], "one", True),
    "class numbers of a file": (["0", "1", "2", "1"], "one", True),
    "class numbers as Parquet has them": ([0.0, 1.0, float("nan")], "one", True),
    "truth": ([True, False], "one", True),
    "minus and plus one": ([-1, 1, -1], "one", True),
    "stars": ([1, 2, 3, 4, 5] * 4, "one", False),
    "many classes that come again": (list(range(77)) * 10, "one", False),
    "counts": (list(range(3, 300, 7)), "number", True),
    "measures": ([n / 7 for n in range(40)], "number", True),
    "measures with a decimal comma": ([f"{n},5" for n in range(40)], "number", True),
    "measures with thousands apart": ([f"1.{n:03},5" for n in range(40)], "number", True),
    "measures with holes": (["nan", "n/a", "inf", *(str(n / 7) for n in range(40))], "number", True),
    "class numbers and a name": (["0", "1", "2", "none"], "one", True),
    "few fractions": ([0.5, 1.0, 1.5], "number", False),
    "lists": ([["a"], ["a", "b"], []], "several", True),
    "separated": (["a|b", "a", "b|c", "c"], "several", True),
    "a bar in a name": (["yes|no", "maybe"], "several", False),
}


@pytest.mark.parametrize("case", CASES)
def test_what_labels_are(case):
    values, kind, is_certain = CASES[case]
    guess = label_kind(values, "|")
    assert (guess.kind, guess.is_certain) == (kind, is_certain), guess.reason


def test_a_column_of_scores_from_zero_is_a_question():
    assert not label_kind([0, 1, 2, 3, 4] * 4, "|", "rating").is_certain


def test_several_labels_are_sorted_and_each_once():
    assert labels_of("b| a|b|", "several", "|") == ("a", "b")
    assert labels_of(["b", "a", ""], "several", "|") == ("a", "b")


def test_a_whole_number_is_named_without_a_fraction():
    assert labels_of(1.0, "one", "|") == labels_of(1, "one", "|") == ("1",)
    assert labels_of(None, "one", "|") == ()


def test_a_number_with_a_decimal_comma_is_kept_as_a_number():
    assert labels_of("3,5", "number", "|") == ("3.5",)
    assert labels_of("3,5", "one", "|") == ("3,5",)


def test_what_separates_labels_gives_labels_that_come_again():
    colours = ["red", "red, green", "green, blue", "blue", "blue, red", "red, green, blue"]
    assert separator_of(colours) == ","
    assert separator_of([colour.replace(", ", ";") for colour in colours]) == ";"
    assert separator_of(["Smith, John", "Jones, Mary", "other"]) is None
    assert separator_of(["1,5", "2,5", "1,25"]) is None


@pytest.mark.parametrize("pattern", ["{},{:03}", "{}.{} %", "${}.{}", "20{:02}-1{}-01"])
def test_amounts_and_dates_are_asked_about(pattern):
    guess = label_kind([pattern.format(n + 10, n % 2) for n in range(40)], "|", "price")
    assert (guess.kind, guess.is_certain) == ("one", False)
    what, remedy = ("dates", "the year") if pattern.startswith("20") else ("amounts", "plain numbers")
    assert f"40 different {what}, such as" in guess.reason
    assert remedy in guess.reason


def test_class_numbers_with_commas_between_are_several_and_asked_about():
    values = ["4", "2,7", "0, 3", "2,7,12", *(f"{n},{n + 3}" for n in range(9))]
    assert separator_of(values) == ","
    guess = label_kind(values, ",")
    assert (guess.kind, guess.is_certain) == ("several", False)
    assert "or decimal commas" in guess.reason
    assert labels_of("2,7,12", "several", ",") == ("12", "2", "7")
    assert label_kind(values[:2] * 12, "|").is_certain is False


def test_amounts_with_decimal_commas_are_numbers():
    values = ["4", *(f"{n},{(n * 7) % 10}" for n in range(30))]
    assert separator_of(values) is None
    assert label_kind(values, "|").kind == "number"
