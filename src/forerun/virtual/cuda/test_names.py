"""Device arguments of a program that is not the first rank of its machine, and modules with odd names."""

import torch
from torch import nn

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

NUMBERS = """
import torch
from torch import nn
net = nn.Linear(8, 8).to(3)
inputs = [
    torch.ones(4, 8).to(3), torch.empty(4, 8, device=3), torch.tensor([1.0] * 8, device=3),
    torch.ones(4, 8).cuda(3), torch.ones(4, 8).to(device=3), torch.ones(4, 8).to("cuda:3"),
]
assert {each.device for each in inputs} == {torch.device("cuda", 3)}
net(sum(inputs)).sum().backward()
assert net.weight.grad.device == torch.device("cuda", 3)
"""


def test_a_ranks_number_is_its_card(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(NUMBERS)
    command = ["torchrun", "--nproc-per-node", "4", str(script)]
    _, run = forecast_program(parse_command(command), command, [device("t4")], rank=3)
    assert run.exit_code == 0, run.error


class Chunk(nn.Module):
    """Has a list under a name of nn.Module's, as Megatron-Core's DistributedDataParallel has."""

    def __init__(self):
        super().__init__()
        self.layer = nn.BatchNorm1d(8)
        self.buffers = []

    def forward(self, x):
        return self.layer(x)


def test_modules_may_use_the_name_buffers():
    with forerun.virtual_cuda("t4"):
        out = Chunk().cuda()(torch.ones(4, 8, device="cuda"))
    assert out.shape == (4, 8)
