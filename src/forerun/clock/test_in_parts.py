"""Exchanges that go in parts beside products."""

import pytest

from forerun.clock.rank_clock import Exchange, RankClock
from forerun.clock.timed_calls import Role, TimedCall
from forerun.trace import Phase

RANKS = (0, 1, 2, 3)


def exchange(seconds, *, before_product):
    return TimedCall(
        name="exchange", role=Role.AWAITED, device_seconds=seconds, host_seconds=0.0, ranks=RANKS,
        before_product=before_product,
    )  # fmt: skip


def kernel(seconds, *, is_product=False, has_flops=False):
    return TimedCall(
        name="kernel", role=Role.KERNEL, device_seconds=seconds, host_seconds=0.0, has_flops=is_product or has_flops,
        is_product=is_product,
    )  # fmt: skip


def played(*calls, phase=Phase.FORWARD, **more):
    clock = RankClock(calls, **more)
    for number in range(len(calls)):
        clock.play(number, phase)
        clock.is_held_up()
    clock.await_all()
    clock.is_held_up()
    return clock


@pytest.mark.parametrize(
    ("gather", "product", "end"),
    [
        (2.0, 8.0, 8.0),  # hidden: the last part of the product begins after the last part has come
        (8.0, 4.0, 9.0),  # the product waits: one part of it is left when all has come
        (7.0, 8.0, 9.0),
    ],
)
def test_a_gather_goes_beside_the_product_that_reads_it(gather, product, end):
    clock = played(exchange(gather, before_product=True), kernel(product, is_product=True))
    assert clock.device == pytest.approx(end)
    assert clock.busy["forward"] == product
    assert clock.busy["communication"] == pytest.approx(end - product)


def test_several_products_hide_one_gather_and_attention_needs_all_of_it():
    products = [kernel(2.0, is_product=True)] * 2
    assert played(exchange(4.0, before_product=True), *products, kernel(1.0, has_flops=True)).device == 6.0
    alone = played(exchange(4.0, before_product=True), kernel(1.0, has_flops=True))
    assert alone.device == 5.0, "nothing hides it"


@pytest.mark.parametrize(("scatter", "product", "end"), [(2.0, 8.0, 8.5), (8.0, 4.0, 9.0)])
def test_a_scatter_goes_beside_the_product_before_it(scatter, product, end):
    calls = kernel(product, is_product=True), exchange(scatter, before_product=False)
    assert played(*calls).device == pytest.approx(end)


def test_a_scatter_goes_beside_one_product_forward_and_beside_all_of_them_backward():
    calls = [kernel(2.0, is_product=True), kernel(2.0, is_product=True), exchange(4.0, before_product=False)]
    assert played(*calls).device == pytest.approx(4.0 + 4.0 - 1.5)
    assert played(*calls, phase=Phase.BACKWARD).device == pytest.approx(4.0 + 4.0 - 3.0)


def test_a_product_hides_what_it_hides_once():
    scatter = exchange(4.0, before_product=False)
    clock = played(kernel(4.0, is_product=True), scatter, scatter)
    assert clock.device == pytest.approx(5.0 + 4.0)


def test_products_are_as_fast_beside_parts_as_alone():
    calls = exchange(2.0, before_product=True), kernel(8.0, is_product=True)
    assert played(*calls, communication_share=0.25).busy["forward"] == 8.0


def test_with_ranks_that_are_played_it_is_waited_for_whole():
    class Meeting:
        def exchange(self, rank, call):
            return Exchange(call.device_seconds, is_shared=True)

    clock = played(exchange(2.0, before_product=True), kernel(8.0, is_product=True), board=Meeting())
    assert clock.device == 10.0
