"""A trace moved to another layout exchanges what a trace of that layout exchanges."""

from collections import Counter

import pytest

from forerun.api import request_of
from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.plan.layouts import ClusterLayout, with_layout
from forerun.plan.regroup import regrouped
from forerun.settings.load import settings_from
from forerun.trace import BETWEEN_RANKS, GROUP_SIZE, MACHINES, RANKS
from forerun.virtual.trace_step import trace_step

RUN = {
    "name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "optimizer": {"max_gradient_norm": 1.0}, "data": {"examples": 999_999},
    "batch": {"micro_batch_size": 1, "gradient_accumulation_steps": 2, "sequence_length": 64},
}  # fmt: skip
LARGE = 10_000
"""Bytes above which a message counts: padding of small parts differs by the number of shards."""


MIXTURE = {"name": "mixtral-8x7b", "config": {
    "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 512,
}}  # fmt: skip


def trace_of(layout: ClusterLayout):
    settings = with_layout(settings_from(RUN | ({"model": MIXTURE} if layout.expert > 1 else {})), layout)
    request = request_of(settings, device("h100-80gb"), None)
    return trace_step(settings, request.workload, request.device, BatchShape(1, 64))


def exchanges(trace) -> Counter:
    rows = []
    for call in trace.calls:
        group = dict(call.keywords)
        largest = max([spec.bytes for spec in (*call.inputs, *call.outputs)], default=0)
        if call.name.startswith(BETWEEN_RANKS) and GROUP_SIZE in group and largest > LARGE:
            rows.append((call.name, group[GROUP_SIZE], group[MACHINES], group[RANKS]))
    return Counter(rows)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ClusterLayout("fsdp", 64), ClusterLayout("fsdp", 8)),
        (ClusterLayout("ddp", 8), ClusterLayout("ddp", 32)),
        (ClusterLayout("fsdp", 32, 4), ClusterLayout("fsdp", 64, 2)),
        (ClusterLayout("fsdp", 16, 2, 2, True), ClusterLayout("fsdp", 16, 4, 2, True)),
        (ClusterLayout("fsdp", 32, 4, context=2), ClusterLayout("fsdp", 16, 2, context=2)),
        (ClusterLayout("fsdp", 8, context=4), ClusterLayout("fsdp", 1, context=4)),
        (ClusterLayout("fsdp", 32, expert=4), ClusterLayout("fsdp", 16, expert=4)),
        (ClusterLayout("fsdp", 64, 2, expert=4), ClusterLayout("fsdp", 64, 4, expert=4)),
    ],
)
def test_groups_and_machines_are_those_of_the_other_layout(old, new):
    moved, there = regrouped(trace_of(old), old, new), trace_of(new)
    assert moved.world_size == there.world_size == new.gpus
    assert set(exchanges(moved)) == set(exchanges(there)) != set()


def test_sums_over_copies_carry_the_shard_of_the_other_layout():
    old, new = ClusterLayout("fsdp", 32, 4), ClusterLayout("fsdp", 16, 8)

    def largest(trace) -> int:
        sums = [c for c in trace.calls if c.name.startswith("c10d.allreduce") and dict(c.keywords)[RANKS][1:2] != (1,)]
        return max(spec.bytes for call in sums for spec in call.inputs)

    assert largest(regrouped(trace_of(old), old, new)) == pytest.approx(largest(trace_of(new)), rel=0.02)


def test_a_second_world_is_not_taken_for_the_first():
    """DTensor remembered groups of an equal mesh of an earlier world, by names that were gone."""
    for layout in (ClusterLayout("fsdp", 8, 1, 2, True), ClusterLayout("fsdp", 8, 2, 2, True)):
        assert trace_of(layout).world_size == 16
