import pytest

from forerun.network.algorithms import BARRIER_BYTES, Crossing, Layout, candidates
from forerun.network.links import LinkCoefficients, MulticastRates, NetworkCoefficients, PeerRates, ProtocolRates


def links(local_steps=0.0, crowding=0.0, multicast=None):
    """Round numbers: LL 1 us a hop at 10 GB/s, Simple 10 us at 100 GB/s; no start."""
    rates = {"ll": (1e-6, 1e10), "simple": (1e-5, 1e11)}
    return LinkCoefficients(
        protocols={
            name: ProtocolRates(start_seconds=0, hop_seconds=hop, bytes_per_second=rate)
            for name, (hop, rate) in rates.items()
        },
        peers={"simple": PeerRates(start_seconds=1e-5, peer_seconds=1e-6, bytes_per_second=1e11)},
        local_steps=local_steps,
        crowding=crowding,
        multicast=multicast,
    )


def crossing(rate=4e11, reduces=False, latency_seconds=0.0):
    rates = NetworkCoefficients(ring_fraction=1.0, tree_fraction=1.0)
    return Crossing(rates, rate, 5e10, latency_seconds, reduces)


def seconds(kind, size, layout, inside, between=None):
    return {(w.algorithm, w.protocol): w.seconds for w in candidates(kind, size, layout, inside, between)}


def test_a_ring_by_hand():
    """Eight ranks reduce a gigabyte: 14 steps of an eighth over 100 GB/s and ten microseconds each."""
    assert seconds("all_reduce", 1e9, Layout(8), links())["ring", "simple"] == pytest.approx(14e-5 + 14 / 8 * 1e-2)
    assert seconds("all_gather", 1e9, Layout(8), links())["ring", "simple"] == pytest.approx(7e-5 + 7 / 8 * 1e-2)


def test_small_messages_go_with_the_protocol_of_short_hops():
    small, large = (seconds("all_gather", size, Layout(8), links()) for size in (1024, 1e9))
    assert min(small, key=small.get) == ("ring", "ll")
    assert min(large, key=large.get) == ("ring", "simple")


def test_a_barrier_reduces_four_bytes():
    assert candidates("barrier", 0, Layout(8), links(), None) == candidates(
        "all_reduce", BARRIER_BYTES, Layout(8), links(), None
    )


def test_adapters_bound_a_ring_between_machines():
    """32 ranks in four machines with 50 GB/s: 62 / 32 of a gigabyte leave each machine."""
    time = seconds("all_reduce", 1e9, Layout(32, 4), links(), crossing(5e10))["ring", "simple"]
    hops = (62 - 8) * 1e-5 + 8 * 14e-6
    assert time == pytest.approx(hops + 62 / 32 / 50)


def test_trees_take_logarithmic_steps():
    """LL over 256 machines: 16 hops of a tree instead of 512 of a ring."""
    times = seconds("all_reduce", 8, Layout(2048, 256), links(), crossing())
    assert times["tree", "ll"] == pytest.approx(2 * 7 * 1e-6 + 16 * 5e-6, rel=1e-3)
    assert times["ring", "ll"] > 20 * times["tree", "ll"]


def test_more_than_two_machines_pass_a_message_on():
    """In a tree an inner machine sends to a parent and to children: half the bandwidth."""
    switch = MulticastRates(start_seconds=0, bytes_per_second=1e12)
    two, many = (
        seconds("all_reduce", 1e11, Layout(8 * n, n), links(multicast=switch), crossing())["nvls-tree", "simple"]
        for n in (2, 4)
    )
    assert two == pytest.approx(1e11 / 4e11, rel=1e-2)
    assert many == pytest.approx(2e11 / 4e11, rel=1e-2)


def test_switches_that_add_up_carry_a_message_once():
    switch = MulticastRates(start_seconds=0, bytes_per_second=1e12)
    inside = seconds("all_reduce", 1e9, Layout(8), links(multicast=switch))
    assert inside["nvls", "simple"] == pytest.approx(1e-3)
    assert ("nvls", "simple") not in seconds("all_reduce", 1e9, Layout(4), links(multicast=switch))
    across = seconds("all_reduce", 1e11, Layout(64, 8), links(multicast=switch), crossing(reduces=True))
    assert across["collnet", "simple"] == pytest.approx(1e11 / 4e11, rel=1e-2)


def test_ranks_crowd_on_a_shared_bus():
    """Four ranks, or two groups of two, have half of what two have where crowding is 1."""
    alone, four = (seconds("all_gather", 1e12, Layout(n), links(crowding=1.0))["ring", "simple"] for n in (2, 4))
    assert four == pytest.approx(alone * (3 / 4) / (1 / 2) * 2, rel=1e-3)
    pair = seconds("all_gather", 1e12, Layout(2, groups=2), links(crowding=1.0))["ring", "simple"]
    assert pair == pytest.approx(2 * alone, rel=1e-3)


def test_all_to_all_leaves_by_the_adapters():
    """16 ranks in two machines: half of each rank's gigabyte leaves, eight ranks share 100 GB/s."""
    time = seconds("all_to_all", 1e9, Layout(16, 2), links(), crossing(1e11))["pairs", "simple"]
    assert time == pytest.approx(8 * 0.5e9 / 1e11, rel=2e-2)
    one = seconds("send_receive", 1e9, Layout(2, 2), links(), crossing(1e11))["pairs", "simple"]
    assert one == pytest.approx(1e9 / 5e10, rel=1e-2)


def test_a_broadcast_is_a_pipeline():
    assert seconds("broadcast", 1e9, Layout(8), links())["ring", "simple"] == pytest.approx(7e-5 + 1e-2)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_more_bytes_and_a_slower_network_never_cost_less(kind):
    sizes = [2.0**n for n in range(3, 35)]
    fast, slow = (
        [min(seconds(kind, s, Layout(64, 8), links(), crossing(r)).values()) for s in sizes] for r in (4e11, 1e10)
    )
    assert fast == sorted(fast)
    assert all(a <= b for a, b in zip(fast, slow, strict=True))
