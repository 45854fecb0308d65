"""Scripts that several ranks or cards run: processes of their own, DDP as it is set up, checkpoints, cards by number."""

import pytest
from tests.exec_runs import DATA_PARALLEL, forecast

from forerun.clock.priors import HOST_MEMORY_BYTES_PER_SECOND
from forerun.errors import InvalidSettings

SPAWNS = """
import torch
from torch import distributed, multiprocessing, nn

def work(rank, ranks):
    distributed.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in range(30):
        model(torch.randn(8, 256).to(rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    multiprocessing.spawn(work, args=(RANKS,), nprocs=RANKS)
"""


def test_ranks_that_a_script_spawns(tmp_path):
    """The script's own processes are ranks of the job; one of them runs here."""
    counted = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    document, _ = forecast(tmp_path, "", ranks=4, head=counted)
    assert (document.world_size, document.run.total_steps) == (4, 30)
    assert [(each.name, each.ranks) for each in document.collectives][:1] == [("allreduce_", 4)]
    with pytest.raises(InvalidSettings, match=r"it starts 4, and the machine has 1\. .*--nproc-per-node 4"):
        forecast(tmp_path, "", head=SPAWNS.replace("RANKS", "4"))


ZERO = """
from torch import distributed
from torch.distributed.optim import ZeroRedundancyOptimizer
distributed.init_process_group("nccl")
model = nn.Linear(4096, 4096, bias=False).cuda()
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
for step in range(30):
    model(torch.randn(1024, 4096, device="cuda")).square().mean().backward()
    distributed.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_a_step_waits_for_at_its_end_is_a_part_of_it(tmp_path):
    """Parameters that ranks of ZeRO send one another behind the update, before the next pass may begin."""
    document, _ = forecast(tmp_path, ZERO, ranks=4)
    alone, _ = forecast(
        tmp_path,
        ZERO.replace(
            "ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD,", "torch.optim.SGD(model.parameters(),"
        ),
        ranks=4,
    )
    (sent,) = (each for each in document.collectives if each.name == "broadcast_")
    assert (sent.bytes, sent.count) == (4096 * 4096 * 4, 1)
    added = document.step.phases.communication_seconds - alone.step.phases.communication_seconds
    assert added > sent.bytes / 32e9  # a PCIe 4.0 link


@pytest.mark.parametrize("options", ["find_unused_parameters=True", "static_graph=True"])
def test_ddp_looks_for_unused_parameters(tmp_path, options):
    """Its reducer pins a map of what was used on the host, copies it to the card and reduces it."""
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    plain, _ = forecast(tmp_path, "", ranks=4, head=script)
    document, _ = forecast(
        tmp_path, "", ranks=4, head=script.replace("device_ids=[rank]", f"device_ids=[rank], {options}")
    )
    reduced, plain_reduced = (
        sum(each.bytes for each in every.collectives if each.name == "allreduce_") for every in (document, plain)
    )
    assert plain_reduced == (256 * 256 + 256) * 4
    assert 0 <= reduced - plain_reduced < 1000
    assert document.run.total_steps == 30
    assert document.memory.peak_allocated_bytes == pytest.approx(plain.memory.peak_allocated_bytes, rel=0.02)


HOOK = """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
"""
NORM = "nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)))"


@pytest.mark.medium
def test_a_communication_hook_of_the_program_reduces_in_place_of_ddp(tmp_path):
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    plain, _ = forecast(tmp_path, "", ranks=4, head=script)
    hooked = script.replace("    optimizer =", HOOK + "    optimizer =", 1)
    document, _ = forecast(tmp_path, "", ranks=4, head=hooked)
    (reduced,), (plain_reduced,) = document.collectives, plain.collectives
    assert (reduced.name, reduced.bytes) == ("allreduce_", plain_reduced.bytes // 2)
    with pytest.raises(AssertionError, match="can only be called once"):
        forecast(tmp_path, "", ranks=4, head=script.replace("    optimizer =", 2 * HOOK + "    optimizer =", 1))


POWER = """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, START), powerSGD_hook.powerSGD_hook)
"""


@pytest.mark.parametrize("start", ["start_powerSGD_iter=2", ""])
def test_powersgd_is_seen_though_it_begins_after_a_thousand_steps(tmp_path, start):
    """An error of each gradient is held from then on, beside it copies of what is compressed, and less is reduced."""
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    plain, _ = forecast(tmp_path, "", ranks=4, head=script)
    hooked = script.replace("    optimizer =", POWER.replace("START", start) + "    optimizer =", 1)
    document, _ = forecast(tmp_path, "", ranks=4, head=hooked)
    held = document.memory.peak_allocated_bytes - plain.memory.peak_allocated_bytes
    assert 2 <= held / (256 * 257 * 4) <= 3
    assert sum(each.bytes * each.count for each in document.collectives) < plain.collectives[0].bytes / 10
    assert [each.what for each in document.assumed] == ([] if start else ["that PowerSGD leaves 1,000 steps alone"])


def test_batch_norm_over_ranks(tmp_path):
    """Statistics of all ranks are gathered forward and reduced backward, for each channel."""
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()").replace("nn.Linear(256, 256)", NORM)
    document, _ = forecast(tmp_path, "", ranks=4, head=script)
    gathered = [each.bytes for each in document.collectives if "allgather" in each.name]
    assert gathered in ([(2 * 256 + 1) * 4], [4 * (2 * 256 + 1) * 4])  # mean, deviation and count of each rank
    assert document.parameters.trainable == 256 * 256 + 3 * 256
    assert document.assumed == []  # each rank has rows


DISPATCHES = """
import torch
from torch import distributed, nn

distributed.init_process_group("nccl")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
device = torch.device("cuda", rank)
router, expert = nn.Linear(64, ranks).to(device), nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], 0.1)

class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, incoming, outgoing):
        ctx.sizes = outgoing, incoming
        out = rows.new_empty(sum(incoming), rows.shape[1])
        distributed.all_to_all_single(out, rows, incoming, outgoing)
        return out

    @staticmethod
    def backward(ctx, upstream):
        return Exchange.apply(upstream.contiguous(), *ctx.sizes), None, None

for batch in range(30):
    rows = torch.randn(512, 64, device=device)
    counts = torch.nn.functional.one_hot(router(rows).argmax(-1), ranks).sum(0)
    gathered = torch.empty(ranks * ranks, dtype=counts.dtype, device=device)
    distributed.all_gather_into_tensor(gathered, counts)
    incoming = gathered.view(ranks, ranks)[:, rank].to("cpu").tolist()
    arrived = Exchange.apply(rows, incoming, counts.tolist())
    back = Exchange.apply(expert(arrived), counts.tolist(), incoming)
    (back.square().mean() + router(rows).square().mean()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_sizes_that_ranks_gather_into_one_tensor_are_known(tmp_path):
    """Megatron-Core's dispatcher does so: what `torch.empty` had in it was taken for the sizes of an exchange."""
    document, _ = forecast(tmp_path, "", ranks=4, head=DISPATCHES)
    exchanges = [each for each in document.collectives if "alltoall" in each.name]
    assert {each.bytes for each in exchanges} == {512 * 64 * 4}
    assert document.out_of_memory is None
    assert document.run.total_steps == 30


SHARDS = """
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("nccl")
model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256)).to("cuda")
for layer in (*model, model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for batch in range(30):
        model(torch.randn(8, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"weights": weights, "state": state}, checkpoint_id=f"checkpoint-{epoch}")
"""


def test_a_checkpoint_of_several_ranks_is_saved_by_one(tmp_path, monkeypatch):
    """Its part of the weights and of both moments; nobody is there to give the other parts."""
    monkeypatch.chdir(tmp_path)
    document, run = forecast(tmp_path, "", ranks=4, head=SHARDS)
    assert run.failed_rest == ""
    assert document.run.checkpoints_written == 3
    parameters = 2 * 256 * 1024 + 1024 + 256
    assert document.run.checkpoint_bytes == pytest.approx(3 * parameters * 4 / 4, rel=0.01)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_an_update_on_the_host_is_of_a_ranks_own_part(tmp_path):
    offloads = SHARDS.replace('.to("cuda")', "").replace("(layer)", "(layer, offload_policy=CPUOffloadPolicy())")
    offloads = offloads.replace("import fully_shard", "import CPUOffloadPolicy, fully_shard")
    document, _ = forecast(tmp_path, "", ranks=4, head=offloads.partition("    weights, state")[0])
    parameters = 2 * 256 * 1024 + 1024 + 256
    moving = 7 * parameters  # bytes: gradients in, weights and two moments in and out, a quarter of each in fp32
    assert document.step.phases.optimizer_seconds == pytest.approx(moving / HOST_MEMORY_BYTES_PER_SECOND, rel=0.5)
    assert any("host's update" in each for each in document.warnings)


def test_a_card_that_the_machine_does_not_have(tmp_path):
    """One card: as CUDA refuses it. Two: what is on the second is counted on the first, and listed."""
    body = """
    second = torch.ones(8).to("cuda:1")
    for batch in range(9):
        update()
    """
    with pytest.raises(AssertionError, match="invalid device ordinal"):
        forecast(tmp_path, body)
    document, _ = forecast(tmp_path, body, ranks=2)
    assert "a tensor on cuda:1" in [each.what for each in document.assumed]


def test_data_parallel_is_the_first_cards_share(tmp_path):
    one, _ = forecast(tmp_path, DATA_PARALLEL)
    two, _ = forecast(tmp_path, DATA_PARALLEL, ranks=2)
    hidden_bytes = 4096 * 4096 * 4
    saved = one.memory.peak_allocated_bytes - two.memory.peak_allocated_bytes
    assert hidden_bytes <= saved <= 2 * hidden_bytes  # of two to three matrices of hidden units each card holds a half
    assert two.step.phases.forward_seconds < 0.7 * one.step.phases.forward_seconds
    assert any("nn.DataParallel over 2 cards" in each.what for each in two.assumed)


SPLIT = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("tp",))
block = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to("cuda", torch.bfloat16)
parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
COMPILE
optimizer = torch.optim.SGD(block.parameters(), 0.1)
for batch in range(30):
    block(torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.medium
def test_layers_split_over_ranks_are_compiled(tmp_path):
    """DTensor moves a tensor to its mesh's device where it seems elsewhere; a captured one must not."""
    plain, _ = forecast(tmp_path, "", ranks=4, head=SPLIT.replace("COMPILE", ""))
    compiled, _ = forecast(tmp_path, "", ranks=4, head=SPLIT.replace("COMPILE", "block.compile()"))
    assert not any("as eager code" in warning for warning in compiled.warnings)
    assert [(each.name, each.bytes) for each in compiled.collectives] == [
        (each.name, each.bytes) for each in plain.collectives
    ]
    assert compiled.memory.peak_allocated_bytes <= plain.memory.peak_allocated_bytes
    assert compiled.run.phases.compile_seconds > 0 == plain.run.phases.compile_seconds
    assert 0 < plain.step.mfu < 1, "of products in bfloat16"
