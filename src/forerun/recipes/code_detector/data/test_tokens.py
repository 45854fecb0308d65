import numpy as np
import pytest

from forerun.errors import BadData
from forerun.recipes.code_detector.data.tokens import (
    CUT_ID,
    END_ID,
    START_ID,
    CodeTokeniser,
    cut,
    decisive,
    window,
    window_starts,
)

CODES = [
    "def f(a, b):\n    return a + b\n",
    "def f(a,b):\n\treturn a+b  \n\n",
    "for i in range(10):\r\n    print(i)\r\n",
] * 5


@pytest.fixture(scope="module")
def tokeniser() -> CodeTokeniser:
    return CodeTokeniser.train(CODES, vocabulary_size=400)


@pytest.mark.parametrize("code", [*CODES[:3], "é = '日本'\t\n", "\x00\n\n\n  x", ""])
def test_decoding_gives_back_every_byte(tokeniser, code):
    (ids,) = tokeniser.encode([code], sequence_length=512)
    assert tokeniser.decode(ids.tolist()) == code
    assert ids[0] == START_ID
    assert ids[-1] == END_ID
    assert ids.max() < tokeniser.vocabulary_size


def test_layout_changes_the_tokens(tokeniser):
    variants = ["a = b", "a=b", "if a:\n    b", "if a:\n\tb", "a = b ", "a = b\n", "a = b\n\n"]
    encoded = {tuple(ids.tolist()) for ids in tokeniser.encode(variants, sequence_length=64)}
    assert len(encoded) == len(variants)


def test_training_is_reproducible_and_survives_a_file(tokeniser, tmp_path):
    again = CodeTokeniser.train(CODES, vocabulary_size=400)
    again.save(tmp_path / "tokeniser.json")
    loaded = CodeTokeniser.load(tmp_path / "tokeniser.json")
    for other in (again, loaded):
        for left, right in zip(tokeniser.encode(CODES, 64), other.encode(CODES, 64), strict=True):
            np.testing.assert_array_equal(left, right)


def test_long_files_keep_head_and_tail():
    ids = cut(list(range(10, 110)), sequence_length=20)
    assert ids.tolist() == [START_ID, *range(10, 24), CUT_ID, *range(107, 110), END_ID]
    assert len(cut(list(range(18)), sequence_length=20)) == 20
    assert CUT_ID not in cut(list(range(10, 28)), sequence_length=20)


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadData, match=r"bad\.json"):
        CodeTokeniser.load(tmp_path / "bad.json")


@pytest.mark.parametrize("tokens", [63, 100, 500, 20_000])
def test_windows_overlap_and_leave_nothing_out(tokens):
    starts = window_starts(tokens, 64)
    assert (starts[0], starts[-1]) == (0, tokens - 62)
    assert len(starts) <= 64
    assert all(later > sooner for sooner, later in zip(starts, starts[1:], strict=False))
    chosen = decisive(starts)
    assert chosen[0] == 0
    assert len(chosen) <= 6
    assert set(chosen) <= set(starts)
    part = window(range(10, 10 + tokens), starts[-1], 64)
    assert part.tolist() == [START_ID, *range(10 + tokens - 62, 10 + tokens), END_ID]


def test_a_file_that_is_read_at_once_has_no_windows():
    assert window_starts(62, 64) == []
    assert window_starts(10, 64) == []
