"""Dtypes of results that PyTorch's own fake kernels have otherwise."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from forerun.virtual.fake_results import run_fake

aten = torch.ops.aten


@pytest.mark.parity
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_of_wider_weights_has_the_dtypes_of_the_real_kernels(dtype):
    def dtypes(run):
        image, weight = torch.ones(2, 8, 4, 4, dtype=dtype), torch.ones(8)
        result = run(
            aten.native_group_norm.default, aten.native_group_norm, (image, weight, weight, 2, 8, 16, 4, 1e-5), {}
        )
        gradients = run(
            aten.native_group_norm_backward.default, aten.native_group_norm_backward,
            (image, image, result[1], result[2], weight, 2, 8, 16, 4, [True] * 3), {},
        )  # fmt: skip
        return [each.dtype for each in (*result, *gradients)]

    real = dtypes(lambda function, _, args, kwargs: function(*args, **kwargs))
    with FakeTensorMode():
        assert dtypes(run_fake) == real
    assert F.group_norm(torch.ones(2, 8, 4, 4, dtype=dtype), 4).dtype == dtype


@pytest.mark.parametrize("is_given", [False, True])
def test_products_added_in_a_wider_dtype_have_it(is_given):
    """TRL sums the gradients of its loss's tiles so."""
    with FakeTensorMode():
        left, total = torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.ones(2, 3, 3)
        operands = (total, left, left.transpose(1, 2), torch.float32)
        own = {"out": total} if is_given else {}
        func = aten.baddbmm.dtype_out if is_given else aten.baddbmm.dtype
        result = run_fake(func, aten.baddbmm, operands, own)
        assert (result.shape, result.dtype, result is total) == ((2, 3, 3), torch.float32, is_given)
        of_rows = (total[0], left[0], left[0].t(), torch.float32)
        assert run_fake(aten.addmm.dtype, aten.addmm, of_rows, {}).dtype == torch.float32
