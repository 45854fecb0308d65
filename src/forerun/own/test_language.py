"""A stream of documents is cut the same whether it is whole or comes document by document."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.own.language import pieces, pieces_of_stream, without_doubles

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=8)


def arrays(documents):
    return [np.asarray(document, dtype=np.int32) for document in documents]


@given(DOCUMENTS, st.integers(2, 9))
def test_pieces_of_a_stream_are_those_of_its_documents_together(documents, length):
    whole = list(chain.from_iterable(documents))
    expected = [list(part) for part in pieces(whole, length)]
    assert [part.tolist() for part in pieces_of_stream(arrays(documents), length)] == expected


@given(DOCUMENTS)
def test_a_token_does_not_follow_itself(documents):
    stream = list(chain.from_iterable(documents))
    expected = [token for place, token in enumerate(stream) if token != 2 or not place or stream[place - 1] != 2]
    result = list(chain.from_iterable(part.tolist() for part in without_doubles(arrays(documents), 2)))
    assert result == expected


@pytest.mark.parametrize("length", [2, 5])
def test_every_id_but_the_first_has_one_before_it(length):
    parts = list(pieces(list(range(11)), length))
    assert [token for part in parts for token in part[1:]] == list(range(1, 11))
