import pytest

from forerun.data.language_tokens import SEPARATOR, learned
from forerun.errors import InvalidSettings

TEXT = ["the cat sat on the mat. " * 5, "the dog sat too: größer ≠ kleiner"]


@pytest.mark.parametrize("size", [257, 280])
def test_every_text_comes_back(size):
    tokens = learned(TEXT, size)
    assert tokens.size <= size
    ids = tokens.encode(TEXT)
    separator = tokens._tokenizer.token_to_id(SEPARATOR)
    assert [ids[0], ids[-1]] == [separator, separator]
    assert (ids == separator).sum() == 3
    assert tokens._tokenizer.decode([int(i) for i in ids if i != separator]) == "".join(TEXT)


def test_bytes_alone_are_257_ids():
    tokens = learned(TEXT, 257)
    assert len(tokens.encode(TEXT)) == sum(len(t.encode()) for t in TEXT) + 3
    assert "257" in tokens.name


def test_fewer_than_the_bytes_are_refused():
    with pytest.raises(InvalidSettings, match="257"):
        learned(TEXT, 256)
