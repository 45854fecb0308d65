"""Exchanges on the streams of their groups, and what is known of them when."""

import pytest

from forerun.clock.issuing import RECOMPUTED_SHARE
from forerun.clock.rank_clock import Exchange, RankClock
from forerun.clock.timed_calls import Role, TimedCall
from forerun.trace import Phase


def call(role, seconds=1.0, ranks=(), has_flops=False):
    return TimedCall(
        name=role.value, role=role, device_seconds=seconds, host_seconds=0.0, ranks=ranks, has_flops=has_flops
    )


def test_an_exchange_ends_when_the_last_has_come_and_what_is_before_it_has_ended():
    late, meeting = Exchange(2.0), Exchange(1.0, unknown=2)
    meeting.arrive(3.0, late)
    meeting.arrive(1.0, None)
    assert meeting.end is None, "what is before it on the stream of one of them is open"
    late.arrive(4.0, None)
    assert (late.end, meeting.end) == (6.0, 7.0)


def test_a_long_chain_of_open_exchanges_settles():
    chain = [Exchange(1.0) for _ in range(5000)]
    for before, each in zip(chain, chain[1:], strict=False):
        each.arrive(0.0, before)
    chain[0].arrive(0.0, None)
    assert chain[-1].end == 5000


@pytest.mark.parametrize(("groups", "end"), [(((0, 1), (0, 1)), 2.0), (((0, 1), (0, 2)), 1.0)])
def test_groups_have_streams_of_their_own(groups, end):
    clock = RankClock([call(Role.COLLECTIVE, ranks=ranks) for ranks in groups])
    for number in range(2):
        clock.play(number, Phase.BACKWARD)
    clock.await_all()
    assert not clock.is_held_up()
    assert clock.device == clock.busy["communication"] == end


def test_products_slow_beside_collectives_but_not_beside_messages():
    for role, expected in ((Role.COLLECTIVE, 0.8 / 0.75), (Role.SEND, 0.8)):
        clock = RankClock([call(role, 2.0), call(Role.KERNEL, 0.8, has_flops=True)], communication_share=0.25)
        clock.play(0, Phase.FORWARD)
        clock.play(1, Phase.FORWARD)
        assert clock.device == pytest.approx(expected)


def test_a_rank_is_held_up_by_what_is_not_known():
    clock, open_one = RankClock([call(Role.KERNEL)]), Exchange(1.0, is_shared=True)
    clock.awaited.append(open_one)
    assert clock.is_held_up()
    open_one.arrive(4.0, None)
    assert not clock.is_held_up()
    assert (clock.device, clock.busy["communication"], clock.late_seconds) == (5.0, 5.0, 4.0)


def on_card(card, seconds=1.0, other=None, host_seconds=0.0):
    return TimedCall(
        name="kernel", role=Role.KERNEL, device_seconds=seconds, host_seconds=host_seconds, card=card, other_card=other
    )


def played(*calls):
    clock = RankClock(calls)
    for number in range(len(calls)):
        clock.play(number, Phase.FORWARD)
    clock.finish()
    return clock


def test_cards_of_one_process_work_at_once_but_for_copies():
    assert played(on_card(0, 2.0), on_card(1, 3.0)).device == 3.0
    clock = played(on_card(0, 2.0), on_card(1, 1.0), on_card(1, 0.5, other=0), on_card(0, 1.0), on_card(1, 4.0))
    assert clock.cards == {0: 3.5, 1: 6.5}  # the copy begins at 2, when the later of both has ended
    assert sum(clock.busy.values()) == clock.device == 6.5


def test_a_card_that_waits_for_the_host_while_another_works_holds_nobody_up():
    clock = played(on_card(0, 2.0), on_card(1, 1.0, host_seconds=1.0))
    assert dict(clock.busy) == {"host": 0.0, "forward": 2.0}
    late = played(on_card(0, 1.0), on_card(1, 1.0, host_seconds=3.0))
    assert dict(late.busy) == {"host": 2.0, "forward": 2.0}


def test_reading_from_one_card_waits_for_that_card_alone():
    read = on_card(1, 0.5).model_copy(update={"syncs": True})
    assert played(on_card(0, 5.0), read).host == 0.5


def test_what_is_recomputed_costs_the_host_twice():
    for is_again, seconds in ((False, 3.0), (True, 3.0 * RECOMPUTED_SHARE)):
        kernel = TimedCall(name="k", role=Role.KERNEL, device_seconds=0.0, host_seconds=3.0, ranks=(), has_flops=False)
        clock = RankClock([kernel])
        clock.play(0, Phase.BACKWARD, is_again=is_again)
        assert clock.host == seconds
