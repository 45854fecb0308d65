"""What is known of an operator's result is what PyTorch works out: shape, layout, and whose storage it is."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from forerun.virtual.known_results import KnownResults, is_decided_by_shapes

aten = torch.ops.aten


@pytest.fixture
def known():
    with FakeTensorMode():
        yield KnownResults()


def twice(known, func, *args, **kwargs):
    """The result that is worked out and the one that is known; nothing may run a third time."""
    first = known.of(func, args, kwargs, lambda: func(*args, **kwargs))
    return first, known.of(func, args, kwargs, lambda: pytest.fail("it is known"))


def described(out, *arguments):
    """Of each result all that counts, its storage by the first argument or result that has it."""
    results = list(out) if isinstance(out, tuple) else [out]
    storages = [each.untyped_storage()._cdata for each in (*arguments, *filter(None.__ne__, results))]
    return isinstance(out, tuple), [
        None if each is None else (
            type(each), each.shape, each.stride(), each.dtype, each.device, each.storage_offset(), each.requires_grad,
            each.untyped_storage().nbytes(), storages.index(each.untyped_storage()._cdata),
        )
        for each in results
    ]  # fmt: skip


CASES = {
    "sum of two": (aten.add.Tensor, lambda x: (x, x[0])),
    "product": (aten.mm.default, lambda x: (x, x.t())),
    "narrower": (aten._to_copy.default, lambda x: (x,), {"dtype": torch.bfloat16}),
    "joined": (aten.cat.default, lambda x: ([x, x, x], 1)),
    "another shape": (aten.view.default, lambda x: (x, [3, 8])),
    "turned": (aten.t.default, lambda x: (x,)),
    "a part": (aten.slice.Tensor, lambda x: (x, 1, 2, 6, 2)),
    "a row of a part": (aten.select.int, lambda x: (x[1:], 0, 1)),
    "spread": (aten.expand.default, lambda x: (x[0], [5, 6])),
    "its own view": (aten._unsafe_view.default, lambda x: (x, [8, 3])),
    "several": (aten.native_layer_norm.default, lambda x: (x, [6], None, None, 1e-5)),
    "some of several": (
        aten.convolution_backward.default,
        lambda x: (x.view(1, 4, 6), x.view(1, 4, 6), x[:, :4, None], None, [1], [0], [1], False, [0], 1,
                   [False, True, False]),
    ),
    "highest": (aten.max.dim, lambda x: (x, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_a_known_result_is_the_same(known, case):
    func, arguments, *rest = CASES[case]
    args = arguments(torch.empty(4, 6))
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    first, second = twice(known, func, *args, **(rest[0] if rest else {}))
    assert described(first, *tensors) == described(second, *tensors)
    assert first is not second


def test_what_differs_is_worked_out(known):
    x = torch.empty(4, 6)
    shapes = {known.of(aten.add.Tensor, (x, one), {}, lambda one=one: x + one).dtype for one in (1, 1.0, True)}
    assert shapes == {torch.float32}
    counts = torch.empty(4, dtype=torch.int64)
    dtypes = [
        known.of(aten.add.Tensor, (counts, one), {}, lambda one=one: counts + one).dtype for one in (1, 1.0, True)
    ]
    assert dtypes == [torch.int64, torch.float32, torch.int64]
    halves = [known.of(aten.t.default, (each,), {}, each.t) for each in (x, x[:2], x[2:])]
    assert [(each.shape, each.storage_offset()) for each in halves] == [((6, 4), 0), ((6, 2), 0), ((6, 2), 12)]


def test_a_part_of_an_emptied_storage_is_another(known):
    x = torch.empty(4, 6)
    twice(known, aten.t.default, x)
    x.untyped_storage().resize_(0)
    part = x.new_empty(0)
    assert known.of(aten.t.default, (x,), {}, lambda: part) is part


@pytest.mark.parametrize(
    "func",
    [aten.add_.Tensor, aten.nonzero.default, aten._local_scalar_dense.default, aten.index.Tensor, aten.mm.out,
     aten.split.Tensor, aten._foreach_add_.Scalar],
)  # fmt: skip
def test_what_writes_or_asks_for_values_is_always_run(func):
    assert not is_decided_by_shapes(func)


def test_an_argument_that_comes_back_is_that_argument(known):
    x = torch.empty(4, 6)
    runs = []
    for _ in range(2):
        assert known.of(aten.lift_fresh.default, (x,), {}, lambda: runs.append(1) or x) is x
    assert len(runs) == 2


def test_what_is_no_plain_value_is_no_key(known):
    x = torch.empty(4)
    runs = []
    for _ in range(2):
        known.of(aten.bernoulli.default, (x,), {"generator": torch.Generator()}, lambda: runs.append(1) or x.clone())
    assert len(runs) == 2


def test_a_number_that_is_known_stays_known(known):
    number = torch.tensor(3)
    assert isinstance(number, FakeTensor)
    assert number.constant is not None
    for _ in range(2):
        assert int(known.of(aten.add.Tensor, (number, 1), {}, lambda: number + 1)) == 4


def test_gradients_of_known_results_are_those_of_others():
    from forerun.hardware.catalogue import device
    from forerun.virtual.session import VirtualSession

    session = VirtualSession(device("h100-80gb"))
    with session:
        layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to(session.torch_device)
        shapes = []
        for _ in range(3):
            x = torch.empty(2, 5, 8, device=session.torch_device, requires_grad=True)
            layers(x.transpose(0, 1).reshape(-1, 8)).square().mean().backward()
            shapes.append([each.grad.shape for each in (x, *layers.parameters())])
    assert shapes[0] == shapes[1] == shapes[2] == [(2, 5, 8), (8, 8), (8,), (8, 8), (8,)]
