import pytest

from forerun.spelling import Spelled, alike, closeness, holds, meant_by, without_count, words

ROWS = [
    Spelled("rtx-4070", frozenset({"4070"}), frozenset({"rtx", "4070", "12"})),
    Spelled("rtx-4070-ti", frozenset({"4070", "ti"}), frozenset({"rtx", "4070", "ti", "12"})),
    Spelled("a100-80gb", frozenset({"a100"}), frozenset({"a100", "80", "sxm"})),
    Spelled("a100-80gb-pcie", frozenset({"a100"}), frozenset({"a100", "80", "pcie"})),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RTX4070Ti", {"rtx", "4070", "ti"}),
        ("A100 80 GB", {"a100", "80"}),
        ("a100-40gb-3g.20gb", {"a100", "40", "3g.20gb"}),
        ("Llama-3.1-8B", {"llama", "3.1", "8b"}),
        ("mixtral_8x7b", {"mixtral", "8x7b"}),
        ("!?", set()),
    ],
)
def test_words_of_a_text(text: str, expected: set[str]):
    assert words(text) == expected


def test_what_must_be_typed_decides_between_rows():
    assert meant_by("4070", ROWS) == ["rtx-4070"]
    assert meant_by("ti 4070", ROWS) == ["rtx-4070-ti"]
    assert meant_by("a100", ROWS) == ["a100-80gb", "a100-80gb-pcie"]
    assert meant_by("a100 sxm", ROWS) == ["a100-80gb"]


@pytest.mark.parametrize("text", ["4070 24gb", "4070 super", "", "x" * 10_000])
def test_a_word_of_no_row_means_none(text: str):
    assert meant_by(text, ROWS) == []


def test_a_search_takes_beginnings():
    assert holds("407", ROWS) == ["rtx-4070", "rtx-4070-ti"]
    assert holds("a100-80gb-p", ROWS) == ["a100-80gb-pcie"]
    assert holds("mi300", ROWS) == []


@pytest.mark.parametrize(
    ("text", "rest", "count"),
    [
        ("2x T4", "T4", 2),
        ("8 × H100", "H100", 8),
        ("3090", "3090", 1),
        ("7900 xtx", "7900 xtx", 1),
        ("8 h100", "h100", 8),
        ("2x3090", "3090", 2),
        ("4090x2", "4090", 2),
        ("a100 × 8", "a100", 8),
        ("gpu_8x_h100_sxm5", "h100_sxm5", 8),
        ("rtx4090", "rtx4090", 1),
        ("7900xtx", "7900xtx", 1),
    ],
)
def test_a_number_of_cards(text: str, rest: str, count: int):
    assert without_count(text) == (rest, count)


def test_what_shares_words_is_offered_before_what_looks_alike():
    assert alike("4070 laptop", ROWS, count=2) == ["rtx-4070", "rtx-4070-ti"]
    assert alike("a10-80gb", ROWS, count=2) == ["a100-80gb", "a100-80gb-pcie"]


@pytest.mark.parametrize(
    ("word", "other", "is_slip"),
    [
        ("4900", "4090", True), ("kagle", "kaggle", True), ("distilbet", "distilbert", True), ("rxt", "rtx", True),
        ("mistrall", "mistral", True), ("qwem", "qwen", True), ("l4", "t4", False), ("7bb", "7b", False),
        ("13b", "33b", False), ("llama", "gemma", False), ("4900", "4060", False),
    ],
)  # fmt: skip
def test_a_slip_is_one_key(word: str, other: str, is_slip: bool):
    assert (closeness(word, other) > 0) == is_slip


def test_a_word_with_a_slip_is_offered_first():
    assert alike("rtx 4700 it", ROWS, count=1) == ["rtx-4070"]
    assert alike("rtx 4700 ti", ROWS, count=1) == ["rtx-4070-ti"]
    assert alike("nvida a10 80gb pice", ROWS, count=1) == ["a100-80gb-pcie"]
    sizes = [Spelled("qwen3-8b", frozenset({"qwen", "3", "8b"}), frozenset({"qwen", "3", "8b"})),
             Spelled("qwen3-14b", frozenset({"qwen", "3", "14b"}), frozenset({"qwen", "3", "14b"}))]  # fmt: skip
    assert alike("qwen 3 14", sizes, count=1) == ["qwen3-14b"], "a number of parameters without its unit"
