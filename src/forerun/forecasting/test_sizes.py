"""Steps at sizes that were not traced are those that tracing gives, to the byte."""

import pytest

from forerun.data.plan import BatchShape
from forerun.forecasting.sizes import LARGEST, TracedSizes, largest_that_fits, line
from forerun.hardware.catalogue import device
from forerun.memory.card import replay_on_card
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import ALLOCATE, FREE, Storage, Trace
from forerun.units import GIB
from forerun.virtual.trace_step import trace_step

A100 = device("a100-40gb")


def tracer(name, **changes):
    workload = "sequence-classification" if "bert" in name else "causal-lm"
    settings = settings_from(
        {
            "name": "s",
            "workload": workload,
            "model": {"name": name},
            "batch": {"micro_batch_size": 2, "sequence_length": 64},
            **changes,
        }
    )
    return lambda size: trace_step(settings, generic_workload(workload), A100, BatchShape(size, 64))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tiny-bert", {}),
        ("tiny-llama", {"precision": "bf16-mixed"}),
        ("tiny-gpt2", {"precision": "bf16-true", "activation_checkpointing": "blocks"}),
        ("tiny-llama", {"precision": "bf16-true", "quantization": "nf4", "adapter": {"kind": "lora", "rank": 4}}),
    ],
)
def test_sizes_between_are_exact(name, changes):
    trace = tracer(name, **changes)
    sizes = TracedSizes(trace, 24)
    assert sizes.is_exact
    for size in (5, 16):
        extrapolated, traced = sizes.at(size), trace(size)
        assert size not in sizes.traced
        assert [s.bytes for s in extrapolated.storages] == [s.bytes for s in traced.storages]
        for a, b in zip(extrapolated.ops, traced.ops, strict=True):
            ours, theirs = extrapolated.calls[a.call], traced.calls[b.call]
            assert (ours.name, ours.inputs, ours.outputs) == (theirs.name, theirs.inputs, theirs.outputs)
            assert (ours.flops, ours.bytes_read) == (theirs.flops, theirs.bytes_read)
        assert replay_on_card(extrapolated, A100) == replay_on_card(traced, A100)


def step_of(size, shape=lambda n: GIB * n):
    """One allocation of `shape(size)` bytes that lives through the step."""
    return Trace(
        storages=[Storage(shape(size), "forward", freed_in="backward")], events=[(ALLOCATE, 0), (FREE, 0)],
        micro_batch_size=size,
    )  # fmt: skip


def test_what_is_not_linear_is_traced():
    sizes = TracedSizes(lambda n: step_of(n, lambda n: n * n), 10)
    assert not sizes.is_exact
    assert sizes.at(7).storages[0].bytes == 49


def test_a_line_carries_every_number_on():
    assert line(step_of(2), step_of(3), 4).storages[0].bytes == 6 * GIB


@pytest.mark.parametrize("shape", [lambda n: GIB * n, lambda n: GIB * n * n // 8])
def test_the_largest_that_fits_is_found(shape):
    calls = []

    def trace(size):
        calls.append(size)
        return step_of(size, shape)

    largest = largest_that_fits(trace, A100)
    assert replay_on_card(step_of(largest, shape), A100).fits
    assert not replay_on_card(step_of(largest + 1, shape), A100).fits


def test_none_and_all():
    assert largest_that_fits(lambda n: step_of(n, lambda n: 64 * GIB * n), A100) == 0
    assert largest_that_fits(lambda n: step_of(n, lambda n: 512 * n), A100) == LARGEST
