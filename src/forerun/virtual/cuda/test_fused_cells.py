import pytest
import torch
from torch import nn

import forerun


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell])
def test_a_cell_is_one_kernel_and_every_weight_gets_a_gradient(cell):
    with forerun.virtual_cuda("t4") as gpu:
        net = cell(16, 32).cuda()
        state = None
        for _ in range(3):
            state = net(torch.randn(4, 16, device="cuda"), state)
        (state if isinstance(state, torch.Tensor) else state[0]).sum().backward()
        assert [p.grad.shape for p in net.parameters()] == [p.shape for p in net.parameters()]
    names = [gpu.trace.calls[op.call].name for op in gpu.trace.ops]
    assert sum("_thnn_fused" in name and "backward" not in name for name in names) == 3
    assert sum("_thnn_fused" in name and "backward" in name for name in names) == 3
