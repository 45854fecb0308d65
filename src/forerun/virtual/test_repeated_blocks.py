"""A deep model's trace worked out from shallow ones is its trace, event by event."""

from dataclasses import fields

import pytest

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.trace import Trace
from forerun.virtual import repeated_blocks
from forerun.virtual.lengthen import Lengthened, NotRepeating
from forerun.virtual.repeated_blocks import TRACES, shallow_depths, trace_step_by_blocks
from forerun.virtual.trace_step import trace_step

BLOCKS = 7
TWO_KINDS = ["sliding_attention", "full_attention"] * 4
SHAPE = BatchShape(2, 16)
DETAILS = {
    "tiny-gemma2": {"num_hidden_layers": 8, "layer_types": TWO_KINDS},
    "tiny-modernbert": {
        "num_hidden_layers": 13,
        "layer_types": [("full" if n % 3 == 0 else "sliding") + "_attention" for n in range(13)],
    },
    "tiny-qwen2": {"layer_types": ["full_attention"] * BLOCKS},
    "tiny-longformer": {"attention_window": [4] * BLOCKS},
}
FIELDS = {"tiny-gpt2": "n_layer", "tiny-gpt-bigcode": "n_layer", "tiny-distilbert": "n_layers"}
HEADS = {"encoder": "sequence-classification", "causal-lm": "causal-lm"}
FAMILIES = [
    (row.name, HEADS[row.parameters_of])
    for row in architectures()
    if row.name.startswith("tiny-") and row.parameters_of in HEADS
]


def settings_of(name, workload, field="num_hidden_layers", **sections):
    sections = {"precision": "bf16-mixed", **sections}
    model = {"name": name, "config": {field: BLOCKS, **sections.pop("config", {})}}
    return settings_from({
        "name": name, "workload": workload, "model": model, "data": {"examples": 100},
        "batch": {"micro_batch_size": 2, "sequence_length": 16, **sections.pop("batch", {})}, **sections,
    })  # fmt: skip


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(repeated_blocks, "WORTH_IT", 0.1)


def both(settings, gpu="a100-80gb", **options):
    """The trace worked out, without falling back, and the one that was traced."""
    workload, here = generic_workload(settings.workload), device(gpu)
    depths = shallow_depths(settings)
    assert depths is not None
    shallow, more = depths
    traces = [trace_step(at, workload, here, SHAPE, **options) for at in shallow[:TRACES]]
    return Lengthened(*traces).at(more), trace_step(settings, workload, here, SHAPE, **options)


def require_equal(ours: Trace, theirs: Trace) -> None:
    """Everything but the numbering of calls, which is any order."""
    assert ours.events == theirs.events
    assert ours.storages == theirs.storages
    for a, b in zip(ours.ops, theirs.ops, strict=True):
        assert ours.calls[a.call] == theirs.calls[b.call]
        assert (a.phase, a.micro_step, a.module, a.recomputed) == (b.phase, b.micro_step, b.module, b.recomputed)
    for field in fields(Trace):
        if field.name not in ("calls", "ops"):
            assert getattr(ours, field.name) == getattr(theirs, field.name), field.name


@pytest.mark.parametrize(("name", "workload"), FAMILIES)
def test_families(name, workload):
    field = FIELDS.get(name, "num_hidden_layers")
    require_equal(*both(settings_of(name, workload, field, config=DETAILS.get(name, {}))))


LORA = {"kind": "lora", "rank": 4}


SETTINGS = [
    {"precision": "fp32"},
    {"adapter": LORA, "quantization": "nf4-double"},
    {"optimizer": {"implementation": "for-loop"}},
    {"optimizer": {"name": "adafactor"}},
    {"batch": {"padding": "packed"}},
]
MORE_SETTINGS = [
    {"activation_checkpointing": "blocks", "adapter": LORA, "batch": {"gradient_accumulation_steps": 2}},
    {"precision": "fp16-mixed"},
    {"precision": "bf16-true", "adapter": LORA, "batch": {"gradient_accumulation_steps": 3}},
    {"activation_checkpointing": "blocks"},
    {"activation_checkpointing": "selective"},
    {"adapter": LORA, "quantization": "int8"},
    {"optimizer": {"implementation": "fused"}},
    {"optimizer": {"name": "sgd"}},
    {"optimizer": {"name": "lion"}},
    {"optimizer": {"name": "adamw-8bit"}},
    {"cross_entropy": "chunked"},
]


@pytest.mark.parametrize("sections", SETTINGS, ids=str)
def test_settings(sections):
    require_equal(*both(settings_of("tiny-llama", "causal-lm", **sections)))


@pytest.mark.slow
@pytest.mark.parametrize("sections", MORE_SETTINGS, ids=str)
def test_more_settings(sections):
    require_equal(*both(settings_of("tiny-llama", "causal-lm", **sections)))


SHARDED = [
    {"shard": 8}, {"shard": 4, "tensor": 2, "sequence_parallel": True}, {"shard": 2, "tensor": 2},
    {"shard": 2, "replicate": 2}, {"shard": 2, "context": 2},
]  # fmt: skip
EXPERTS = [
    ("tiny-mixtral", {"shard": 4, "expert": 2}), ("tiny-mixtral", {"shard": 2}),
    ("tiny-mixtral", {"shard": 4, "expert": 4}),
    ("tiny-mixtral", {"shard": 2, "tensor": 2, "sequence_parallel": True, "expert": 4}),
]  # fmt: skip


@pytest.mark.medium
def test_shards_are_traced_shallow():
    require_equal(*both(settings_of("tiny-llama", "causal-lm", parallel={"shard": 8})))


@pytest.mark.medium
@pytest.mark.parametrize("parallel", SHARDED, ids=str)
@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
def test_one_of_several_ranks(parallel, checkpointing):
    batch = {"gradient_accumulation_steps": 2, "padding": "fixed"}
    sections = {"parallel": parallel, "activation_checkpointing": checkpointing, "batch": batch}
    require_equal(*both(settings_of("tiny-llama", "causal-lm", **sections)))


@pytest.mark.medium
@pytest.mark.parametrize("sections", [{"precision": "bf16-true"}, {"adapter": LORA}, {"precision": "fp32"}], ids=str)
def test_shards_of_other_steps(sections):
    require_equal(*both(settings_of("tiny-llama", "causal-lm", parallel={"shard": 4}, **sections)))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "parallel"), EXPERTS, ids=str)
def test_dealt_experts(name, parallel):
    require_equal(*both(settings_of(name, "causal-lm", parallel=parallel, batch={"padding": "fixed"})))


def test_lines_are_those_of_the_program():
    require_equal(*both(settings_of("tiny-llama", "causal-lm"), keep_lines=True))


def test_a_cpu_too():
    from forerun.api import find_device

    settings = settings_of("tiny-llama", "causal-lm", precision="fp32")
    workload, here = generic_workload("causal-lm"), find_device("cpu")
    require_equal(trace_step_by_blocks(settings, workload, here, SHAPE), trace_step(settings, workload, here, SHAPE))


def test_what_does_not_repeat_is_traced_as_it_is():
    settings = settings_of("tiny-llama", "causal-lm")
    workload, here = generic_workload("causal-lm"), device("a100-80gb")
    depths = shallow_depths(settings)
    assert depths is not None
    shallow, _ = depths
    one, two, four = (trace_step(at, workload, here, SHAPE) for at in (shallow[0], shallow[1], shallow[3]))
    with pytest.raises(NotRepeating):
        Lengthened(one, two, four).at(5)
    with pytest.raises(NotRepeating):
        Lengthened(one, one, one)


def test_models_that_are_traced_whole(monkeypatch):
    assert shallow_depths(settings_of("tiny-t5", "seq2seq-lm", "num_layers")) is None
    assert shallow_depths(settings_of("tiny-llama", "causal-lm", compile="default")) is None
    assert shallow_depths(settings_of("tiny-llama", "causal-lm", parallel={"kind": "ddp", "world_size": 2})) is None
    monkeypatch.setattr(repeated_blocks, "WORTH_IT", 1.5)
    assert shallow_depths(settings_of("tiny-llama", "causal-lm")) is None
    deep = shallow_depths(settings_of("tiny-llama", "causal-lm", config={"num_hidden_layers": 14}))
    assert deep is not None
    assert [at.model.config["num_hidden_layers"] for at in deep[0]] == [1, 2, 3, 4], "a decoder on one card"
    assert deep[1] == 13
    spread = {"kind": "fsdp", "world_size": 2}
    deep = shallow_depths(settings_of("tiny-llama", "causal-lm", config={"num_hidden_layers": 20}, parallel=spread))
    assert deep is not None
    assert [at.model.config["num_hidden_layers"] for at in deep[0]] == [3, 4, 5, 6]


def test_blocks_of_two_kinds_are_taken_in_pairs():
    depths = shallow_depths(settings_of("tiny-gemma2", "causal-lm", config=DETAILS["tiny-gemma2"]))
    assert depths is not None
    shallow, more = depths
    assert [at.model.config["num_hidden_layers"] for at in shallow] == [2, 4, 6, 8]
    assert [len(at.model.config["layer_types"]) for at in shallow] == [2, 4, 6, 8]
    assert more == 3
