"""Whether a step fits a card, with the allocator's cache given back where it must."""

from dataclasses import replace

from forerun.hardware.catalogue import device
from forerun.memory.card import replay_on_card
from forerun.trace import ALLOCATE, FREE, Call, Category, Phase, Storage, Trace
from forerun.units import GIB, MIB

T4 = device("t4")


def growing(sizes_gib: list[float]) -> Trace:
    """Storages one after the other, each freed before the next: cached segments pile up."""
    storages = [Storage(int(s * GIB), Phase.FORWARD, Category.TEMPORARY, Phase.FORWARD) for s in sizes_gib]
    events = [e for i in range(len(storages)) for e in ((ALLOCATE, i), (FREE, i))]
    return Trace(storages=storages, events=events)


def test_a_small_step_fits_and_leaves_a_margin():
    card = replay_on_card(growing([1.0]), T4)
    assert card.fits
    assert not card.returns_cache
    assert card.device_bytes.optimistic <= card.device_bytes.expected <= card.device_bytes.conservative
    assert card.device_bytes.conservative <= T4.memory_bytes


def test_it_fits_when_the_cache_can_be_given_back():
    card = replay_on_card(growing([4.0, 4.5, 5.0, 5.5]), T4)
    assert card.fits
    assert card.returns_cache
    assert card.device_bytes.conservative == T4.memory_bytes


def test_what_is_alive_together_must_fit():
    storages = [Storage(8 * GIB, Phase.FORWARD), Storage(8 * GIB, Phase.FORWARD)]
    card = replay_on_card(Trace(storages=storages, events=[(ALLOCATE, 0), (ALLOCATE, 1)]), T4)
    assert not card.fits
    assert card.device_bytes.conservative > T4.memory_bytes


def test_managed_memory_counts_only_while_there_is_room():
    trace = growing([1.0])
    trace.paged_bytes = 2 * GIB
    small = replay_on_card(trace, T4)
    assert small.device_bytes.expected > 3 * GIB
    trace = growing([13.0])
    trace.paged_bytes = 8 * GIB
    full = replay_on_card(trace, T4)
    assert full.fits
    assert full.device_bytes.conservative <= T4.memory_bytes + MIB


def test_more_is_never_shown_as_less_beside_managed_memory():
    shown = []
    for sixteenths in range(64, 264):  # from 4 GiB to what no T4 has
        trace = growing([sixteenths / 16])
        trace.paged_bytes = 6 * GIB
        shown.append(replay_on_card(trace, T4).device_bytes)
    for name in ("optimistic", "expected", "conservative"):
        values = [getattr(one, name) for one in shown]
        assert values == sorted(values), name


def test_an_old_cuda_leaves_less_of_the_card():
    assert replay_on_card(growing([22.3]), device("rtx-3090")).fits
    assert not replay_on_card(growing([22.3]), device("rtx-3090", "11.3")).fits
    assert replay_on_card(growing([21.0]), device("rtx-3090", "11.3")).fits


def test_convolutions_under_an_old_cuda_show_cudnns_kernels():
    gpu, step = device("a100-40gb", "11.6"), growing([1.0])
    convolution = Call("aten.convolution.default", (), (), (), (), 0, 0, 0)
    plain, with_convolution = (replay_on_card(replace(step, calls=calls), gpu) for calls in ([], [convolution]))
    assert with_convolution.device_bytes.expected - plain.device_bytes.expected == gpu.cudnn_bytes > 0


def test_what_other_steps_left_is_shown_while_there_is_room_and_never_decides():
    alone, beside = (replay_on_card(growing([4.0]), T4, left_bytes=left) for left in (0, 2 * GIB))
    assert beside.memory.peak_reserved_bytes == alone.memory.peak_reserved_bytes + 2 * GIB
    assert beside.memory.peak_allocated_bytes == alone.memory.peak_allocated_bytes
    more = {
        name: value - alone.device_bytes.model_dump()[name] for name, value in beside.device_bytes.model_dump().items()
    }
    assert more["optimistic"] == 0 < more["expected"] == 2 * GIB < 4 * GIB < more["conservative"]
    full = replay_on_card(growing([4.0]), T4, left_bytes=40 * GIB)
    assert full.fits
    assert full.returns_cache
    assert full.device_bytes.conservative == T4.memory_bytes
    assert full.memory.peak_reserved_bytes < T4.memory_bytes
