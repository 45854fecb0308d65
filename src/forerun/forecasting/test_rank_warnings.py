from forerun.clock.between_ranks import job_of
from forerun.clock.priors import PriorCosts
from forerun.forecasting.rank_warnings import rank_warnings
from forerun.hardware.catalogue import device
from forerun.trace import GROUP_SIZE, MACHINES, OP, Call, Op, Phase, TensorSpec, Trace

SPEC = TensorSpec((2**20,), (1,), "int8", 2**20)
H100 = device("h100-80gb")


def warnings(name, ranks, machines=1, world=None, choice=None, gpu=H100):
    world = world or ranks
    costs = PriorCosts(gpu, world_size=world, job=job_of(gpu, world, choice=choice))
    group = ((GROUP_SIZE, ranks), (MACHINES, machines))
    calls = [Call(f"c10d.{n}.default", (SPEC,), group, (SPEC,), (), 0, 0, 1) for n in (name, "broadcast_")]
    for call in calls:
        costs.device_seconds(call)
    step = Trace(calls=calls, ops=[Op(0, Phase.BACKWARD, 0, "")], events=[(OP, 0)])
    return rank_warnings(step, costs)


def test_measured_links_need_no_words():
    """Nor does what is not in the step: the broadcast of the weights before it."""
    assert warnings("allreduce_", 8) == []
    assert warnings("allreduce_", 16, choice="efa-p5") == []


def test_an_unnamed_network_is_said_where_it_counts():
    text = "\n".join(warnings("allreduce_", 16))
    assert "ib-ndr400 is taken between machines, 3200 Gb/s" in text
    assert "cluster.network" in text
    assert "--network" in text
    assert warnings("allreduce_", 8, world=16) == []


def test_nvlink_that_joins_a_rack_is_said():
    text = "\n".join(warnings("allreduce_", 16, gpu=device("gb200")))
    assert "NVLink joins up to 72 of gb200" in text
    assert "Set cluster.gpus_per_node to 72" in text
    assert "ib-ndr400 is taken" in text
    assert "NVLink joins" not in "\n".join(warnings("allreduce_", 16))


def test_derived_curves_are_said_with_their_width():
    (text,) = warnings("_allgather_base_", 16, choice="efa-p5")
    assert text.startswith("Time of all-gather between machines is derived")
    assert text.endswith("%.")
    (text,) = warnings("allreduce_", 2, gpu=device("t4"))
    assert "inside a machine" in text
