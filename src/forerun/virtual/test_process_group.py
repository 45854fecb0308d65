"""One rank's view of DDP and FSDP2 for groups whose other ranks do not exist."""

import pytest
import torch
import torch.distributed as dist

import forerun
from forerun.data.plan import BatchShape
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.memory.overhead import NCCL_BYTES, NCCL_PAIR_BYTES
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.trace import PEER, RANKS, STREAM
from forerun.virtual.describe import _group
from forerun.virtual.process_group import noting_groups, one_of, recording_waits
from forerun.virtual.recorder import Recorder
from forerun.virtual.trace_step import trace_step

BASE = {
    "name": "p", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "batch": {"micro_batch_size": 2, "sequence_length": 64}, "data": {"examples": 6400},
}  # fmt: skip
PADDING = 0.03
"""Each of 21 parameters is padded to whole rows per rank, and each block's buffers to 512 bytes."""


def memory(kind, world_size, **changes):
    settings = {**BASE, "parallel": {"kind": kind, "world_size": world_size}, **changes}
    return forerun.forecast(settings, gpu="a100-40gb")


@pytest.fixture(scope="module")
def alone():
    return memory("none", 1)


@pytest.mark.parametrize("world_size", [2, 8, 16])
def test_fsdp_shares_state(world_size, alone):
    shared = memory("fsdp", world_size).memory.breakdown
    for part in ("parameter_bytes", "optimizer_state_bytes"):
        share = getattr(shared, part) * world_size / getattr(alone.memory.breakdown, part)
        assert 1 <= share <= 1 + PADDING * world_size


def test_a_group_of_64_is_one_process():
    forecast = memory("fsdp", 64)
    assert forecast.world_size == 64
    assert forecast.parameters.total == 138_048
    assert not dist.is_initialized()


def test_what_is_kept_of_a_collective_is_plain_data():
    """Groups are objects that cannot be compared: `forecast --explain` of two sharded sizes ended in an error."""
    settings = settings_from({**BASE, "parallel": {"shard": 2}})
    trace = trace_step(settings, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(2, 64))
    exchanged = [call for call in trace.calls if call.name.startswith("c10d.")]
    assert exchanged
    assert "ScriptObject" not in {type(value).__name__ for call in exchanged for value in call.arguments}


def test_ddp_holds_its_gradients_all_the_time(alone):
    replicated = memory("ddp", 4).memory
    assert replicated.breakdown.parameter_bytes == alone.memory.breakdown.parameter_bytes
    assert replicated.breakdown.gradient_bytes == pytest.approx(4 * 138_048, abs=512)
    assert alone.memory.breakdown.gradient_bytes == 0, "the peak is in the loss, before any gradient is there"


@pytest.mark.parametrize(("world_size", "extra"), [(2, NCCL_PAIR_BYTES), (4, NCCL_BYTES)])
def test_nccl_lies_outside_the_allocator(world_size, extra, alone):
    assert memory("ddp", world_size).memory.context_bytes - alone.memory.context_bytes == extra


def test_steps_of_an_epoch_are_shared(alone):
    shared = memory("ddp", 4)
    assert shared.run.steps_per_epoch * 4 == alone.run.steps_per_epoch
    assert shared.step.model_flops == pytest.approx(alone.step.model_flops)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_loss_scaling_and_accumulation(kind):
    batch = {"micro_batch_size": 2, "sequence_length": 64, "gradient_accumulation_steps": 3}
    assert memory(kind, 2, precision="fp16-mixed", batch=batch).fits


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_communication_is_not_free(kind):
    """Gradients of few tokens through wide layers take longer than the backward pass; alone there is none."""
    model = {"name": "tiny-llama", "config": {"hidden_size": 1024, "intermediate_size": 8192}}
    phases = memory(kind, 8, model=model).step.phases
    assert phases.communication_seconds > 0
    assert memory("none", 1, model=model).step.phases.communication_seconds == 0


def test_packed_weights_are_sharded_as_any_others():
    """Four 4-bit weights in one element of bf16; LLM.int8's rows and a rule of whole matrices cannot be cut."""
    packed = {"adapter": {"kind": "lora", "rank": 4}, "quantization": "nf4"}
    replicated, sharded = (memory(kind, 2, **packed).memory.breakdown for kind in ("ddp", "fsdp"))
    assert sharded.parameter_bytes < 0.6 * replicated.parameter_bytes
    with pytest.raises(NotSupported, match="int8"):
        memory("fsdp", 2, **{**packed, "quantization": "int8"})
    with pytest.raises(NotSupported, match="element by element"):
        memory("fsdp", 2, optimizer={"name": "muon"})


def test_no_forecast_of_a_group_inside_a_group():
    with one_of(2), pytest.raises(NotSupported, match="outside torchrun"):
        memory("ddp", 2)


def test_training_needs_a_real_group():
    settings = settings_from({**BASE, "parallel": {"kind": "ddp", "world_size": 2}})
    with pytest.raises(NotSupported, match="forerun train --nproc 2"):
        build_step(settings, generic_workload("causal-lm"), "cpu", pretrained=False)


def test_collectives_are_in_the_trace():
    trace = trace_step(
        settings_from({**BASE, "parallel": {"kind": "fsdp", "world_size": 4}}),
        generic_workload("causal-lm"),
        device("a100-40gb"),
        BatchShape(2, 64),
    )
    names = [trace.calls[op.call].name for op in trace.ops if op.phase != "prepare"]
    blocks = 2 + 1
    assert names.count("c10d._allgather_base_.default") == 2 * blocks - 1, "what is outside the blocks stays gathered"
    assert names.count("c10d._reduce_scatter_base_.default") == blocks


@pytest.mark.parametrize(("per_machine", "machines"), [(None, [1, 1, 1]), (8, [2, 1, 2]), (4, [4, 2, 2])])
def test_machines_of_groups_are_counted(per_machine, machines):
    """Of all ranks, of the first eight, and of the first of each eight, as HSDP has them."""
    with one_of(16, per_machine):
        groups = [dist.group.WORLD, dist.new_group(list(range(8))), dist.new_group([0, 8])]
        counts = [_group((group.group_name,)) for group in groups]
    assert [(len(ranks), number) for ranks, number in counts] == list(zip([16, 8, 2], machines, strict=True))


def test_what_the_default_stream_waits_for_is_noted():
    with forerun.virtual_cuda("h100-80gb") as gpu:
        dist.init_process_group("nccl", rank=0, world_size=4)
        pair = dist.new_group([0, 2])
        x = torch.zeros(1024, device="cuda")
        received = dist.irecv(x, src=2, group=pair)
        dist.all_reduce(x)  # the device goes on when it is over
        dist.all_reduce(x, async_op=True)  # nobody waits
        with torch.cuda.stream(torch.cuda.Stream()):
            dist.all_reduce(x)  # only that stream waits
        received.wait()
    trace = gpu.trace
    names = [trace.calls[trace.ops[op].call].name for _, op in trace.waits]
    assert names == ["c10d.allreduce_.default", "c10d.recv_.default"]
    receive = next(call for call in trace.calls if call.name.startswith("c10d.recv_"))
    assert dict(receive.keywords)[RANKS] == (0, 2)
    assert dict(receive.keywords)[PEER] == 2
    streams = {dict(call.keywords).get(STREAM) for call in trace.calls if "allreduce" in call.name}
    assert len(streams) == 2


def test_a_batch_of_messages_is_waited_for_as_one():
    with forerun.virtual_cuda("h100-80gb") as gpu:
        dist.init_process_group("nccl", rank=1, world_size=4)
        x = torch.zeros(1024, device="cuda")
        batch = [dist.P2POp(dist.isend, x, 0), dist.P2POp(dist.irecv, x, 2), dist.P2POp(dist.isend, x, 2)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
    calls = [dict(gpu.trace.calls[gpu.trace.ops[op].call].keywords)[PEER] for _, op in gpu.trace.waits]
    assert calls == [0, 2, 2]


def test_groups_of_all_ranks_are_noted_and_torch_is_as_it_was():
    groups = []
    before = dict(vars(dist.ProcessGroup))
    with one_of(4), noting_groups(groups), recording_waits(Recorder("virtual")):
        dist.new_group([2, 3])
        dist.init_device_mesh("cpu", (2, 2))
    assert groups == [(2, 3), (0, 2), (1, 3), (0, 1), (2, 3)]
    assert dict(vars(dist.ProcessGroup)) == before
