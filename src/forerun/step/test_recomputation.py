"""Selective checkpointing repeats what its rule says: every second product of a block, and never attention."""

from collections import Counter

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import Phase
from forerun.virtual.trace_step import trace_step

LAYERS, PRODUCTS_OF_A_BLOCK = 2, 7


def repeated(checkpointing):
    """Operators of the backward pass that were run before, by name."""
    settings = settings_from(
        {
            "name": "r", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-true",
            "batch": {"micro_batch_size": 2, "sequence_length": 64}, "data": {"examples": 8},
            "activation_checkpointing": checkpointing,
        }
    )  # fmt: skip
    trace = trace_step(settings, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(2, 64))
    assert sum(op.phase is Phase.FORWARD for op in trace.ops)
    return Counter(trace.calls[op.call].name for op in trace.ops if op.recomputed)


def test_every_second_product_of_a_block_is_repeated():
    """q, k, v, o, gate, up, down: the first, third, fifth and seventh are kept, k, o and up are computed again."""
    counted = repeated("selective")
    assert counted["aten.mm.default"] == LAYERS * (PRODUCTS_OF_A_BLOCK // 2)
    assert not any("attention" in name for name in counted)
    assert counted["aten.silu.default"] == LAYERS


def test_whole_blocks_are_repeated_up_to_their_last_product():
    counted = repeated("blocks")
    assert counted["aten.mm.default"] >= LAYERS * (PRODUCTS_OF_A_BLOCK - 1)
    assert any("attention" in name for name in counted)
    assert not repeated("none")
