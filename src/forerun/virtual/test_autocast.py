"""The policy against what the running PyTorch registers for CUDA, and the cache of cast weights."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from forerun.virtual import autocast
from forerun.virtual.backend import DEVICE
from forerun.virtual.registration import register

register()

LISTED = [
    *autocast.LOWER_PRECISION,
    *autocast.SINGLE_PRECISION,
    *autocast.SINGLE_PRECISION_BY_DTYPE_ARGUMENT,
    *autocast.SINGLE_PRECISION_NORM,
    *autocast.WIDEST_TYPE,
    *autocast.ONLY_CUDNN,
    *autocast.REFUSED,
]
CALLS = {
    "linear": lambda d, t: F.linear(t(4, 8), t(6, 8), t(6)),
    "matmul": lambda d, t: t(4, 8) @ t(8, 4),
    "bmm": lambda d, t: torch.bmm(t(2, 4, 8), t(2, 8, 4)),
    "layer_norm": lambda d, t: F.layer_norm(t(4, 8), (8,)),
    "rms_norm": lambda d, t: F.rms_norm(t(4, 8), (8,)),
    "softmax": lambda d, t: F.softmax(t(4, 8), dim=-1),
    "log_softmax": lambda d, t: F.log_softmax(t(4, 8), dim=-1),
    "sum": lambda d, t: t(4, 8).sum(),
    "sum over a dimension": lambda d, t: t(4, 8).sum(1),
    "mean": lambda d, t: t(4, 8).mean(),
    "pow": lambda d, t: t(4, 8).pow(2),
    "rsqrt": lambda d, t: t(4, 8).rsqrt(),
    "exp": lambda d, t: t(4, 8).exp(),
    "cumsum": lambda d, t: t(4, 8).cumsum(0),
    "gelu": lambda d, t: F.gelu(t(4, 8)),
    "add": lambda d, t: t(4, 8) + t(4, 8),
    "addcmul": lambda d, t: torch.addcmul(t(4), t(4), t(4)),
    "norm": lambda d, t: t(4, 8).norm(),
    "cat": lambda d, t: torch.cat([t(4, 8), t(4, 8)]),
    "dot": lambda d, t: torch.dot(t(4), t(4)),
    "mse_loss": lambda d, t: F.mse_loss(t(4, 8), t(4, 8)),
    "embedding": lambda d, t: F.embedding(torch.zeros(3, dtype=torch.long, device=d), t(4, 8)),
}


def test_every_op_with_a_cuda_kernel_is_listed_once():
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    has = {n[6:] for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, "AutocastCUDA")}
    assert has == set(LISTED)
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_result_dtype_is_cudas(name, dtype):
    call = CALLS[name]
    results = {}
    for device in ("cuda", DEVICE):
        with FakeTensorMode(), torch.no_grad():
            before = torch.is_autocast_enabled(device)
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, torch.float16)
            try:
                results[device] = call(device, lambda *s, d=device: torch.empty(s, dtype=dtype, device=d)).dtype
            finally:
                torch.set_autocast_enabled(device, before)
    assert results[DEVICE] == results["cuda"]


def test_a_weight_is_cast_once_per_context_and_dropped_after_it():
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.empty(8, 8, device=DEVICE))
        inputs = torch.empty(4, 8, device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            F.linear(inputs, weight)
            first = autocast._cast_weights[id(weight)][1]
            F.linear(inputs, weight)
            assert autocast._cast_weights[id(weight)][1] is first
        assert first.dtype == torch.bfloat16
        autocast.clear_cache()
        assert not autocast._cast_weights
