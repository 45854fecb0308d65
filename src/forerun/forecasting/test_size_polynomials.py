"""A step that is worked out is the one that tracing gives, event by event; what is on no polynomial is not answered."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings, strategies

from forerun.data.plan import BatchShape
from forerun.forecasting.nearby import Proof, boxes_around, overlay_of
from forerun.forecasting.size_polynomials import ROUNDING, NotPolynomial, SizeBox, overlay, trace_at
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import ALLOCATE, OP, Call, Op, Phase, Storage, Trace
from forerun.virtual.trace_step import trace_step

A100 = device("a100-40gb")
LLAMA = {"workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed"}
RECIPES = {
    "lora": {**LLAMA, "adapter": {"kind": "lora", "rank": 4}, "batch": {"sequence_length": 256}},
    "full, accumulation": {**LLAMA, "batch": {"sequence_length": 72, "gradient_accumulation_steps": 3}},
    "checkpointing, eager": {
        **LLAMA, "model": {"name": "tiny-gpt2", "attention": "eager"}, "activation_checkpointing": "blocks",
        "batch": {"sequence_length": 128},
    },
    "qlora, fp32": {
        **LLAMA, "precision": "fp32", "adapter": {"kind": "lora"}, "quantization": "nf4",
        "batch": {"sequence_length": 384},
    },
    "encoder": {
        "workload": "sequence-classification", "model": {"name": "bert-base-uncased", "config": {"num_hidden_layers": 2}},
        "precision": "fp16-mixed", "batch": {"sequence_length": 37},
    },
}  # fmt: skip
FURTHER = ("full, accumulation", "qlora, fp32")
"""Of them, those that the gate has no time for."""


@cache
def recipe(name):
    """Traces of a recipe by size, and the overlay of its plane, or of its line where it has no plane."""
    content = settings_from({"name": "s", **RECIPES[name]})
    workload = generic_workload(content.workload)

    @cache
    def trace_of(batch, length):
        sizes = {"micro_batch_size": batch, "sequence_length": length}
        at = content.model_copy(update={"batch": content.batch.model_copy(update=sizes)})
        return trace_step(at, workload, A100, BatchShape(batch, length))

    own = BatchShape(4, content.batch.sequence_length)
    (kind, proofs) = list(boxes_around(content, own))[:2][-1]
    boxes = [(proof.box, file) for proof in proofs if (file := overlay_of(proof, trace_of)) is not None]
    assert boxes, f"{name}: no {kind}"
    return trace_of, *boxes[0]


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in FURTHER else name for name in RECIPES]
)
@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(data=strategies.data())
def test_what_is_worked_out_is_what_is_traced(name, data):
    trace_of, box, file = recipe(name)
    batch = data.draw(strategies.integers(box.batches[0], box.batches[-1]))
    length = data.draw(strategies.sampled_from(range(box.lengths[0], box.lengths[-1] + 1, ROUNDING)))
    assert box.holds(batch, length)
    assert trace_at(file, box, batch, length) == trace_of(batch, length)


@pytest.mark.medium
def test_lengths_of_another_remainder_are_no_points_of_it():
    trace_of, box, file = recipe("lora")
    assert not box.holds(3, 250)
    assert trace_at(file, box, 3, 250) != trace_of(3, 250), "a kernel rounds 250 rows up: the box has a reason"


BOX = SizeBox((2, 8), (16, 144, 272))
"""A plane of what follows, which no model made."""


def step_of(batch, length, number=lambda b, s: b * s * s, factor=lambda b, s: 1 / (b * s), more=0):
    """One operator and one storage."""
    call = Call("aten.mul.Tensor", (factor(batch, length),), (), (), (), number(batch, length), 0, 0)
    return Trace(
        calls=[call], ops=[Op(0, Phase.FORWARD, 0, "")] * (1 + more), storages=[Storage(4 * batch, Phase.FORWARD)],
        events=[(ALLOCATE, 0), *((OP, n) for n in range(1 + more))], micro_batch_size=batch, sequence_length=length,
    )  # fmt: skip


def overlay_of_steps(**how):
    return overlay([step_of(*corner, **how) for corner in BOX.corners])


@pytest.mark.parametrize("size", [(2, 16), (3, 16), (5, 144), (8, 272), (7, 272)])
def test_numbers_and_factors_are_carried_on(size):
    assert trace_at(overlay_of_steps(), BOX, *size) == step_of(*size)
    floats = {"factor": lambda b, s: float(s)}
    assert trace_at(overlay_of_steps(**floats), BOX, *size) == step_of(*size, **floats)


def test_what_differs_by_more_than_numbers_is_refused():
    steps = [step_of(*corner) for corner in BOX.corners]
    for other in (
        step_of(8, 272, more=1),
        step_of(8, 272, factor=lambda b, s: 0.3),
        step_of(8, 272, factor=lambda b, s: 0.0),
        step_of(8, 272, factor=lambda b, s: "none"),
        step_of(8, 272, factor=lambda b, s: (1, 2)),
        replace(step_of(8, 272), tf32=True),
        replace(step_of(8, 272), storages=[Storage(32, Phase.BACKWARD)]),
    ):
        with pytest.raises(NotPolynomial):
            overlay([*steps[:-1], other])


def test_a_number_that_is_not_whole_is_refused():
    def halves(b, s):
        return b // 2 if b == 2 else b // 2 + 1

    with pytest.raises(NotPolynomial, match="not whole"):
        trace_at(overlay_of_steps(number=halves), BOX, 3, 16)


def test_a_box_that_is_not_exact_is_not_proven():
    def trace_of(batch, length):
        return step_of(batch, length, number=lambda b, s: b**2)

    proof = Proof(BOX, ((3, 144), (5, 144)))
    assert overlay_of(proof, trace_of) is None
    assert overlay_of(proof, step_of) is not None


def test_calls_that_are_alike_at_one_size_are_one_call():
    def trace_of(batch, length):
        pair = [Call("aten.mul.Tensor", (number,), (), (), (), 0, 0, 0) for number in (length, 16 * batch)]
        return Trace(
            calls=list(dict.fromkeys(pair)), ops=[Op(n if len({*pair}) > 1 else 0, Phase.FORWARD, 0, "") for n in (0, 1)],
            events=[(OP, 0), (OP, 1)], micro_batch_size=batch, sequence_length=length,
        )  # fmt: skip

    file = overlay([trace_of(*corner) for corner in BOX.corners])
    assert len(trace_at(file, BOX, 3, 144).calls) == 2
    assert trace_at(file, BOX, 9, 144) == trace_of(9, 144)
    assert len(trace_of(9, 144).calls) == 1
