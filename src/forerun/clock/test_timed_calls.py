"""Calls are told apart by their names, and keep what ranks need to meet."""

import pytest

from forerun.clock.test_timeline import FixedCosts
from forerun.clock.timed_calls import Role, role_of, timed_calls
from forerun.trace import PEER, RANKS, Call


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("aten.mm.default", Role.KERNEL),
        ("fsdp.split_with_sizes_copy.default", Role.COPY_OUT),
        ("c10d._allgather_base_.default", Role.GATHER),
        ("c10d._reduce_scatter_base_.default", Role.COLLECTIVE),
        ("_c10d_functional.all_reduce.default", Role.AWAITED),
        ("c10d.send.default", Role.SEND),
        ("c10d.recv_.default", Role.RECEIVE),
        ("forerun.copy_to_host.default", Role.BESIDE_HOST),
    ],
)
def test_roles(name, role):
    assert role_of(Call(name, (), (), (), (), 0, 0, 0)) is role


def test_times_and_ranks_are_kept():
    message = Call("c10d.send.default", (), ((RANKS, (0, 4)), (PEER, 4)), (), (), 0, 0, 0)
    product = Call("aten.mm.default", (), (), (), (), 10, 0, 0, syncs=True)
    first, second = timed_calls([message, product], FixedCosts(host=0.25))
    assert (first.ranks, first.peer, first.device_seconds, first.host_seconds) == ((0, 4), 4, 1.0, 0.25)
    assert (second.has_flops, second.syncs, second.ranks, second.peer) == (True, True, (), None)
