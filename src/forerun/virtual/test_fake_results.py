"""Results that PyTorch's own fake kernels have otherwise, or not at all."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from forerun.hardware.catalogue import device
from forerun.virtual.fake_results import run_fake
from forerun.virtual.session import VirtualSession

aten = torch.ops.aten


@pytest.mark.parity
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_of_wider_weights_has_the_dtypes_of_the_real_kernels(dtype):
    def dtypes(run):
        image, weight = torch.ones(2, 8, 4, 4, dtype=dtype), torch.ones(8)
        result = run(aten.native_group_norm.default, (image, weight, weight, 2, 8, 16, 4, 1e-5), {})
        gradients = run(
            aten.native_group_norm_backward.default,
            (image, image, result[1], result[2], weight, 2, 8, 16, 4, [True] * 3), {},
        )  # fmt: skip
        return [each.dtype for each in (*result, *gradients)]

    real = dtypes(lambda function, args, kwargs: function(*args, **kwargs))
    with FakeTensorMode():
        assert dtypes(lambda *of: run_fake(*of, [])) == real
    assert F.group_norm(torch.ones(2, 8, 4, 4, dtype=dtype), 4).dtype == dtype


@pytest.mark.parametrize("is_given", [False, True])
def test_products_added_in_a_wider_dtype_have_it(is_given):
    """TRL sums the gradients of its loss's tiles so."""
    with FakeTensorMode():
        left, total = torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.ones(2, 3, 3)
        operands = (total, left, left.transpose(1, 2), torch.float32)
        own = {"out": total} if is_given else {}
        func = aten.baddbmm.dtype_out if is_given else aten.baddbmm.dtype
        result = run_fake(func, operands, own, [])
        assert (result.shape, result.dtype, result is total) == ((2, 3, 3), torch.float32, is_given)
        of_rows = (total[0], left[0], left[0].t(), torch.float32)
        assert run_fake(aten.addmm.dtype, of_rows, {}, []).dtype == torch.float32


@pytest.mark.parametrize("is_view", [False, True])
def test_rows_that_a_mask_replaces_have_a_gradient_and_are_said(is_view):
    """`x[ids == special] = row`, as T5Gemma 2 writes the end of an image: no value says how many rows there are."""
    with VirtualSession(device("t4"), "auto") as session:
        here, recorder = torch.device(session.torch_device), session.recorder
        ids, row = torch.zeros(2, 8, dtype=torch.long, device=here), torch.zeros(4, device=here, requires_grad=True)
        x = torch.zeros(2, 9, 4, device=here, requires_grad=True) * 2
        x = x[:, 1:] if is_view else x[:, 1:].clone()
        x[ids == 5] = row
        x.sum().backward()
        assert row.grad.shape == (4,)
        assert recorder.trace.assumed_values == ["gradient of rows that a mask replaces: none are"]
        with pytest.raises(DynamicOutputShapeException):
            torch.zeros(2, 8, 4, device=here)[ids == 5]


def test_a_mask_that_autograd_does_not_ask_about_is_never_guessed():
    with FakeTensorMode(), pytest.raises(DynamicOutputShapeException):
        run_fake(aten.index.Tensor, (torch.zeros(2, 4), [torch.zeros(2, dtype=torch.bool)]), {}, [])
