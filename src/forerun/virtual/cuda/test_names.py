"""Programs that are not the first rank of their machine: device numbers, coalesced collectives, modules with odd names."""

import torch
from torch import nn

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.dispatch import _of_two_devices
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


COALESCED = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
flat = torch.zeros(4096, device="cuda")
with dist._coalescing_manager(dist.group.WORLD, async_ops=False):
    dist.all_reduce(flat[:3])
    dist.all_reduce(flat[8:9])
with dist._coalescing_manager(dist.group.WORLD, async_ops=True) as started:
    dist.reduce_scatter_single(flat[3072:], flat)
started.wait()
"""


def test_coalesced_collectives_fill_what_they_are_handed(tmp_path):
    """They have no fake kernel; on the host, a reduce-scatter into a part of its own input would be refused."""
    script = tmp_path / "train.py"
    script.write_text(COALESCED)
    command = ["torchrun", "--nproc-per-node", "4", str(script)]
    _, run = forecast_program(parse_command(command), command, [device("t4")], rank=3)
    assert run.exit_code == 0, run.error
    names = [call.name for call in run.session.recorder.trace.calls]
    assert "c10d.allreduce_coalesced_.default" in names
    assert "c10d.reduce_scatter_tensor_coalesced_.default" in names


ROUTED = """
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor, all_to_all_single, all_to_all_single_autograd
dist.init_process_group("nccl")
chosen = torch.rand(64, 8, device="cuda").topk(2, dim=1).indices
counts = torch.histc(chosen.view(-1), bins=8, min=0, max=8)
received = torch.ops._c10d_functional.wait_tensor(all_to_all_single(counts, None, None, dist.group.WORLD))
sent, kept = (each.view(4, -1).sum(dim=1).tolist() for each in (counts, received))
assert sum(sent) == 128 and sum(kept) == 4 * sent[3], (sent, kept)
rows = torch.randn(128, 16, device="cuda", requires_grad=True)
assert all_to_all_single_autograd(rows, kept, sent, dist.group.WORLD).shape == (sum(kept), 16)
assert all_gather_tensor(counts, 0, dist.group.WORLD).tolist() == 4 * counts.tolist()
"""


def test_counts_of_routed_rows_are_known_through_collectives(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(ROUTED)
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


ON_TWO_DEVICES = """
import torch
try:
    torch.ones(3).cuda() + torch.ones(3)
except RuntimeError as error:
    assert "found at least two devices, cuda:0 and cpu!" in str(error), error
else:
    raise AssertionError("nothing was raised")
assert torch.version.cuda == "13.1"
"""


def test_a_program_sees_cudas_words_for_two_devices_and_its_own_version_of_cuda(tmp_path, monkeypatch):
    """torchvision compares the CUDA that it was built for with PyTorch's."""
    monkeypatch.setattr(torch.version, "cuda", "13.1")
    script = tmp_path / "train.py"
    script.write_text(ON_TWO_DEVICES)
    command = ["python", str(script)]
    _, run = forecast_program(parse_command(command), command, [device("t4")])
    assert run.exit_code == 0, run.error


def test_words_of_older_pytorch_for_two_devices():
    old = "Unhandled FakeTensor Device Propagation for aten.add.Tensor, found two different devices virtual:0, cpu"
    assert _of_two_devices(RuntimeError(old)) == (
        "Expected all tensors to be on the same device, but found at least two devices, virtual:0 and cpu!"
    )
    assert _of_two_devices(RuntimeError("shapes cannot be multiplied")) is None


def test_tensors_of_python_values_are_pinned_and_cards_tell_their_number():
    """`torch.tensor(lengths, pin_memory=True)` of xformers, `torch.cuda.device(0).idx` of unsloth."""
    with forerun.virtual_cuda("a100-80gb"):
        offsets = torch.tensor([0, 4, 9], dtype=torch.int32, pin_memory=True)
        assert offsets.is_pinned()
        assert offsets.to("cuda", non_blocking=True).device.type == "cuda"
        assert torch.cuda.device(0).idx == 0
        properties = torch.cuda.get_device_properties(0)
        assert properties.shared_memory_per_block_optin == 166_912
        assert properties.max_threads_per_multi_processor == 2048
