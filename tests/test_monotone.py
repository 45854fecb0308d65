"""More never needs less, but for what an allocator does: the rules of `benchmarks.monotone` on settings by chance."""

import random
from dataclasses import replace

import pytest
from benchmarks.monotone import (
    MODELS,
    QUANTITIES,
    Case,
    Pair,
    allowance,
    cost_is_wrong,
    drawn,
    excess,
    faster_cards,
    pairs_of,
    quantity,
)
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as options
from hypothesis import strategies as st

QUICK = ("tiny-llama", "tiny-gpt2")


@pytest.fixture(scope="module", autouse=True)
def loaded():
    quantity(Case(model="tiny-llama", length=16), "tensors")


def hold(number, models, rules=None, **simple):
    """Ask about so many pairs; `simple` are fields that every case has alike."""

    @seed(26)
    @options(max_examples=number, database=None, deadline=None, phases=[Phase.generate],
             suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.integers(0, 2**32))
    def each(number):
        draw = random.Random(number)
        case = replace(drawn(draw, models), **simple)
        pair = draw.choice([pair for pair in pairs_of(case, draw) if rules is None or pair.rule in rules])
        for name in pair.quantities:
            beyond, (most, why) = excess(pair, name), allowance(pair, name)
            assert beyond <= most, f"{pair.rule}, {name}: {beyond:.2%} of {most:.2%} ({why})\n{pair.less}\n{pair.more}"
        assert not cost_is_wrong(case), case

    each()


def test_more_never_needs_less():
    rules = {"batch", "length", "layers", "checkpointing, memory", "card"}
    hold(3, QUICK, rules, layers=1, accumulation=1, parallel="none", cards=1, adapter="none")


@pytest.mark.medium
@pytest.mark.timeout(600)
def test_more_never_needs_less_over_all_rules():
    hold(12, tuple(MODELS))


def test_a_card_that_loses_in_one_number_is_not_compared():
    # an L4 has 300 GB/s and a T4 320: where a step waits for memory the older card is faster
    assert "l4" not in faster_cards("t4")
    assert "h100-80gb" in faster_cards("a100-40gb")
    assert "a100-40gb" not in faster_cards("h100-80gb")


def test_less_for_more_is_found():
    small, large = Case(model="tiny-llama", length=16), Case(model="tiny-llama", length=16, batch=64)
    assert excess(Pair("batch", large, small, QUANTITIES), "tensors") > 0.1
    assert excess(Pair("batch", small, large, QUANTITIES), "tensors") == 0
    assert quantity(small, "tensors") <= quantity(small, "allocated") <= quantity(small, "reserved")
    assert allowance(Pair("batch", small, large, QUANTITIES), "tensors")[0] == 0
    assert allowance(Pair("batch", small, large, QUANTITIES), "reserved")[0] > 0
