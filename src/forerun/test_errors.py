"""The tree, and the names that messages offer."""

import pytest

from forerun import errors
from forerun.errors import ForerunError, nearest

NAMES = ["bert-base-uncased", "bert-large-uncased", "roberta-base", "gpt2", "llama-2-7b", "a100-40gb", "a100-80gb"]


@pytest.mark.parametrize(
    ("typed", "first"),
    [("bert-bse", "bert-base-uncased"), ("LLAMA2-7b", "llama-2-7b"), ("a100-41gb", "a100-40gb"), ("gpt-2", "gpt2")],
)
def test_the_nearest_name_comes_first(typed, first):
    assert nearest(typed, NAMES).split(", ")[0] == first


def test_all_names_are_offered_when_none_is_close():
    assert nearest("zzz", ["one", "two"]) == "one, two"


def test_every_leaf_is_also_a_builtin():
    leaves = [
        e
        for e in vars(errors).values()
        if isinstance(e, type) and issubclass(e, ForerunError) and e is not ForerunError
    ]
    assert len(leaves) >= 12
    for leaf in leaves:
        assert len(leaf.__bases__) == 2, leaf
        assert leaf.__name__ in (errors.__doc__ or "")
