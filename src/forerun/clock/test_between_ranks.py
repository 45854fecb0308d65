from dataclasses import replace

import pytest

from forerun.clock.between_ranks import job_of, job_of_trace, kind_of, message_bytes
from forerun.errors import UnknownNetwork
from forerun.hardware.catalogue import device
from forerun.network.algorithms import Layout
from forerun.trace import GROUP_SIZE, MACHINES, Call, Issuer, TensorSpec, Trace
from forerun.units import MIB

H100 = device("h100-80gb")


def collective(name, *sizes, ranks=0, machines=1):
    specs = tuple(TensorSpec((size,), (1,), "int8", size) for size in sizes)
    group = ((GROUP_SIZE, ranks), (MACHINES, machines)) if ranks else ()
    return Call(f"c10d.{name}.default", specs, group, specs, (), 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("allreduce_", "all_reduce"), ("_allgather_base_", "all_gather"), ("all_gather_into_tensor", "all_gather"),
     ("_reduce_scatter_base_", "reduce_scatter"), ("reduce_scatter_tensor", "reduce_scatter"), ("alltoall_base_", "all_to_all"),
     ("all_to_all_single", "all_to_all"), ("broadcast_", "broadcast"), ("barrier", "barrier"), ("send", "send_receive"),
     ("recv_", "send_receive"), ("reduce_", "broadcast"), ("gather_", "broadcast"), ("scatter_", "broadcast")],
)  # fmt: skip
def test_kinds_of_operators(name, kind):
    assert kind_of(collective(name, 8)) == kind


def test_messages_are_whole():
    """Four ranks, parts of 2 MiB: the gathered tensor, a list of parts, several side by side."""
    part = 2 * MIB
    assert message_bytes(collective("_allgather_base_", 4 * part, part), 4) == 4 * part
    assert message_bytes(collective("allgather_", part, part, part, part, part), 4) == 4 * part
    assert message_bytes(collective("allgather_into_tensor_coalesced_", 4 * part, 4 * part, part, part), 4) == 8 * part
    assert message_bytes(collective("allreduce_coalesced_", part, part), 4) == 2 * part
    assert message_bytes(collective("barrier"), 4) == 0


def test_ranks_beyond_one_machine_are_in_several():
    job = job_of(H100, 64)
    inside, across = (job.price(collective("allreduce_", 64 * MIB, ranks=n)) for n in (8, 64))
    assert across.seconds > inside.seconds
    assert set(job.prices) == {("all_reduce", Layout(8)), ("all_reduce", Layout(64, 8))}


def test_groups_across_machines_share_adapters_with_those_beside_them():
    """Eight ranks, one of each machine, as HSDP reduces: an eighth of the machine's adapters."""
    job = job_of(H100, 64, choice="ethernet-100g")
    job.price(collective("allreduce_", 64 * MIB, ranks=8, machines=8))
    assert list(job.prices) == [("all_reduce", Layout(8, 8, groups=8))]


def test_a_pipeline_stage_sends_to_one_rank():
    job = job_of(H100, 16)
    job.price(collective("send", MIB, ranks=16, machines=2))
    assert list(job.prices) == [("send_receive", Layout(2, 2, groups=8))]


def test_the_kernel_of_a_dispatcher_fills_links_as_messages_by_pairs_do_not():
    """Within a machine; between machines the adapters are what limits both."""
    job = job_of(device("gb200"), 16, 8)
    plain = {n: collective("all_to_all_single", 256 * MIB, ranks=8, machines=n) for n in (1, 8)}
    dispatcher = {n: replace(call, issuer=Issuer.EXPERTS) for n, call in plain.items()}
    assert job.price(dispatcher[1]).seconds == job.price(collective("_allgather_base_", 256 * MIB, ranks=8)).seconds
    assert job.price(dispatcher[1]).seconds < job.price(plain[1]).seconds
    assert job.price(dispatcher[8]).seconds == job.price(plain[8]).seconds


def test_an_assumed_network_is_known_to_be():
    assert job_of(H100, 16).network_is_assumed
    assert job_of(H100, 16).cluster.network.name == "ib-ndr400"
    assert not job_of(H100, 16, choice="efa-p5").network_is_assumed
    assert not job_of(H100, 8).network_is_assumed
    assert job_of(H100, 1) is None
    assert job_of(H100.model_copy(update={"name": "of-no-catalogue"}), 8) is None


def test_users_own_words(tmp_path):
    table = tmp_path / "run.txt"
    table.write_text(
        "# Collective test starting: all_reduce_perf\n"
        "#  Rank  0 Group  0 Pid 1 on  a device  0 [0x10] NVIDIA H100\n#  Rank  1 Group  0 Pid 2 on  b device  0 [0x10] NVIDIA H100\n"
        "     1048576        262144     float     sum      -1    80.00   13.11   19.66      0    90.00   11.65   17.48      0\n"
    )
    assert job_of(H100, 2, 1, str(table)).price(
        collective("allreduce_", MIB, ranks=2, machines=2)
    ).seconds == pytest.approx(90e-6)
    own = {"like": "efa-p5", "nccl_tests": str(table), "inside": "pcie5"}
    cluster = job_of(H100, 16, 8, own).cluster
    assert (cluster.network.adapters, cluster.fabric.name, len(cluster.table.curves)) == (32, "pcie5", 1)
    with pytest.raises(UnknownNetwork):
        job_of(H100, 16, choice="ib-ndr")


def test_a_trace_says_where_its_ranks_are():
    job = job_of_trace(H100, Trace(world_size=8, gpus_per_machine=4, network="roce-200g"))
    assert (job.cluster.gpus_per_machine, job.cluster.network.name) == (4, "roce-200g")
