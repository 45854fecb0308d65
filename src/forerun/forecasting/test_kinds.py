"""Kinds of rank: which ranks do the same as one that was run."""

import itertools

from forerun.clock.job_step import rank_step
from forerun.forecasting.kinds import as_text, content_of, peers_of_trace, ranks_by_stage
from forerun.trace import OP, PEER, Call, Op, Phase, TensorSpec, Trace

WORLD = tuple(range(8))
PIPELINES = [(0, 4), (1, 5), (2, 6), (3, 7)]
DATA = [(0, 1, 2, 3), (4, 5, 6, 7)]


class CostOfOneSecond:
    description = evidence = "stated"
    is_host = False

    def device_seconds(self, call):
        return 1.0

    def host_seconds(self, call):
        return 0.0


def step_of(*names, peer=None, size=8):
    keywords = () if peer is None else ((PEER, peer),)
    spec = TensorSpec((size,), (1,), "float32", 4 * size)
    calls = [Call(name, (), keywords if "c10d" in name else (), (spec,), (), 0, 0, 0) for name in names]
    ops = [Op(index, Phase.FORWARD, 0, "") for index in range(len(names))]
    return Trace(calls=calls, ops=ops, events=[(OP, index) for index in range(len(names))])


def test_ranks_joined_by_groups_that_join_no_stages_are_one_kind():
    groups = [*PIPELINES, *DATA, *((rank,) for rank in WORLD), WORLD]
    assert ranks_by_stage([0, 4], groups, 8) == {0: [0, 1, 2, 3], 4: [4, 5, 6, 7]}


def test_three_dimensions_of_a_mesh():
    """Ranks of a mesh of pipeline 2 x data 3 x tensor 4; groups of every dimension, as all ranks make them."""
    number = {place: i for i, place in enumerate(itertools.product(range(2), range(3), range(4)))}
    families = [
        [tuple(number[p, d, t] for p in range(2)) for d in range(3) for t in range(4)],
        [tuple(number[p, d, t] for d in range(3)) for p in range(2) for t in range(4)],
        [tuple(number[p, d, t] for t in range(4)) for p in range(2) for d in range(3)],
        [tuple(number[p, 0, t] for p in range(2) for t in range(4))],  # one of model parallelism: joins stages
    ]
    members = ranks_by_stage([0, 12], itertools.chain(*families), 24)
    assert members == {0: list(range(12)), 12: list(range(12, 24))}


def test_without_messages_all_ranks_are_alike():
    assert ranks_by_stage([0], [], 16384)[0] == list(range(16384))


def test_ranks_that_no_group_names_stay_outside():
    assert ranks_by_stage([0, 4], [(0, 1), (4, 5)], 8) == {0: [0, 1], 4: [4, 5]}


def test_ranks_are_written_as_ranges():
    assert as_text([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"
    assert as_text([5]) == "5"


def test_equal_operators_are_equal_whoever_the_peer_is():
    names = ("aten.mm.default", "c10d.send.default")
    contents = [content_of(rank, step_of(*names, peer=peer), step_of(*names, peer=peer))
                for rank, peer in ((0, 1), (1, 2))]  # fmt: skip
    assert contents[0].signature == contents[1].signature
    assert [each.peers for each in contents] == [[1], [2]]
    assert rank_step(0, step_of(*names, peer=1), CostOfOneSecond()).communication_seconds == 1.0
    longer = step_of(*names, peer=1, size=16)
    assert content_of(0, longer, longer).signature != contents[0].signature
    assert peers_of_trace(step_of("aten.mm.default")) == []
