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
