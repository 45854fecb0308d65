"""What calls cost the host: by who issues them and what they are."""

from dataclasses import replace

import pytest
import torch

import forerun
from forerun.clock.issuing import (
    COMPILED_HOST_SECONDS,
    DISPATCHER_SECONDS,
    EXPERT_SECONDS,
    FUSED_SECONDS,
    LIST_SECONDS,
    LISTED_SECONDS,
    MODULES_SHARE,
    NETWORK_SECONDS,
    OPERATOR_HOST_SECONDS,
    UPDATE_SECONDS,
    VIEW_HOST_SECONDS,
    host_seconds,
)
from forerun.trace import Call, Issuer, Phase, TensorSpec

ROWS = TensorSpec((64, 8), (8, 1), "bfloat16", 1024)
WEIGHTS = TensorSpec((16, 8, 4), (32, 4, 1), "bfloat16", 1024)
ADD = Call("aten.add.Tensor", (), (), (), (), 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, OPERATOR_HOST_SECONDS), ({"is_view": True}, VIEW_HOST_SECONDS),
        ({"issuer": Issuer.UPDATE}, UPDATE_SECONDS), ({"issuer": Issuer.GRAPH}, 0.0),
        ({"issuer": Issuer.COMPILED}, COMPILED_HOST_SECONDS), ({"issuer": Issuer.COMPILED, "is_view": True}, 0.0),
        ({"issuer": Issuer.MODULES}, MODULES_SHARE * OPERATOR_HOST_SECONDS),
        ({"issuer": Issuer.EXPERTS}, DISPATCHER_SECONDS),
        ({"issuer": Issuer.EXPERTS, "inputs": (ROWS, WEIGHTS)}, DISPATCHER_SECONDS + 16 * EXPERT_SECONDS),
        ({"issuer": Issuer.EXPERTS, "is_view": True}, VIEW_HOST_SECONDS),
        ({"name": "aten._foreach_mul_.Scalar", "arguments": ((ADD,) * 30,)}, LIST_SECONDS + 30 * LISTED_SECONDS),
        ({"name": "aten._fused_adamw_.default", "arguments": ((ADD,) * 30,)}, LIST_SECONDS + 30 * FUSED_SECONDS),
    ],
)  # fmt: skip
def test_seconds_of_a_call(changes, seconds):
    call = replace(ADD, **changes)
    assert host_seconds(call) == pytest.approx(seconds)
    is_compiled = call.issuer == Issuer.COMPILED
    assert host_seconds(call, 2 * NETWORK_SECONDS) == pytest.approx(seconds if is_compiled else 2 * seconds)


def test_an_update_by_hand_is_told_from_what_a_closure_computes():
    """L-BFGS and Lightning run forward and backward inside the optimizer's step."""
    with forerun.virtual_cuda("a100-40gb") as gpu:
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=2)
        optimizer.step(lambda: (weight.sin().sum().backward(), weight.sum())[1])
        with torch.no_grad():
            weight.cos()
    issuers = {}
    for op in gpu.trace.ops:
        issuers.setdefault(gpu.trace.calls[op.call].name, set()).add((op.phase, gpu.trace.calls[op.call].issuer))
    assert all(issuer == Issuer.EAGER for _, issuer in issuers["aten.sin.default"])
    assert all(issuer == Issuer.EAGER for _, issuer in issuers["aten.cos.default"])
    assert (Phase.OPTIMIZER, Issuer.UPDATE) in issuers["aten.neg.default"]
