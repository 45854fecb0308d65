"""How many rows even routing sends, and copies of rows with the gradients that are theirs."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.step.expert_exchange import _Add, _first, _Take, stops_of


class Group:
    def __init__(self, size):
        self._size = size

    def size(self):
        return self._size


@pytest.mark.parametrize(("sizes", "own", "chosen"), [((2, 2), 2, 3), ((4,), 2, 2), ((2, 3), 1, 4), ((2,), 1, 1)])
def test_shares_are_those_of_all_choices(sizes, own, chosen):
    """Counted over every choice of different experts, how often one has its first among those that a rank reaches."""
    stops = stops_of([Group(size) for size in sizes], own, chosen)
    total = own
    for size in sizes:
        total *= size
    choices = list(itertools.combinations(range(total), chosen))
    assert [stop.experts for stop in stops][-1] == own
    for stop in stops:
        wanting = sum(choice[0] < stop.experts for choice in choices)  # combinations are sorted
        assert stop.share == pytest.approx(wanting / len(choices))


@given(st.data())
def test_copies_and_sums_are_each_others_gradients(data):
    """Against dense products with the matrix that says which copy is of which row; in fp64."""
    rows, places = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    bits = data.draw(st.lists(st.booleans(), min_size=rows * places, max_size=rows * places))
    mask = torch.tensor(bits).view(rows, places)
    _, row = mask.T.nonzero().unbind(1)
    copies = row, row.argsort(stable=True), _first(mask)
    dense = torch.nn.functional.one_hot(row, rows).double()
    values = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
    own = torch.randn(len(row), 3, dtype=torch.float64, requires_grad=True)
    taken, added = _Take.apply(values, *copies), _Add.apply(own, *copies)
    assert torch.allclose(taken, dense @ values)
    assert torch.allclose(added, dense.T @ own)
    upstream = torch.randn_like(taken), torch.randn_like(added)
    (of_values,) = torch.autograd.grad(taken, values, upstream[0])
    (of_own,) = torch.autograd.grad(added, own, upstream[1])
    assert torch.allclose(of_values, dense.T @ upstream[0])
    assert torch.allclose(of_own, dense @ upstream[1])
