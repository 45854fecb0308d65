"""Trained parameters, tokens and refusals of peft's other adapters, each by its own arithmetic."""

import pytest

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.virtual.trace_step import trace_step

WIDTH, INNER, LAYERS, HEADS, GROUPS, LENGTH, SIZE, TOKENS = 128, 256, 4, 4, 2, 64, 2, 10
HEAD = WIDTH // HEADS


def settings(kind, **changes):
    adapter = {"kind": kind, "virtual_tokens": TOKENS, "layers": 3, **changes.pop("adapter", {})}
    return settings_from({
        "name": "p", "workload": "causal-lm", "precision": "bf16-true", "adapter": adapter,
        "model": {"name": "tiny-llama", "config": {
            "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "head_dim": HEAD,
            "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        }},
        "batch": {"micro_batch_size": SIZE, "sequence_length": LENGTH}, "data": {"examples": 8}, **changes,
    })  # fmt: skip


def trace_of(given):
    return trace_step(given, generic_workload("causal-lm"), device("a100-40gb"), BatchShape(SIZE, LENGTH))


@pytest.mark.parametrize(
    ("kind", "trained"),
    [
        ("prompt", TOKENS * WIDTH),
        ("prefix", LAYERS * 2 * GROUPS * HEAD * TOKENS),
        ("llama-adapter", 3 * (TOKENS * WIDTH + 1)),  # a gate for each of the last blocks
        ("ia3", LAYERS * (2 * GROUPS * HEAD + INNER)),  # keys, values and the inner activation
    ],
)
def test_what_is_trained_follows_from_the_adapter(kind, trained):
    result = forecast(settings(kind), "a100-40gb")
    assert result.parameters.trainable == trained
    assert result.memory.breakdown.optimizer_state_bytes <= 8 * trained + 4 * 512 * 3 * LAYERS * 3


def test_a_prompt_makes_every_block_see_more_tokens():
    plain, prompted = (
        [c for op in t.ops if op.phase == "forward" for c in [t.calls[op.call]] if c.name == "aten.mm.default"]
        for t in (trace_of(settings("none")), trace_of(settings("prompt")))
    )
    assert len(plain) == len(prompted)
    assert {c.outputs[0].shape[0] for c in plain} == {SIZE * LENGTH}
    assert {c.outputs[0].shape[0] for c in prompted} == {SIZE * (LENGTH + TOKENS)}


def test_a_prefix_makes_keys_longer_but_not_queries():
    trace = trace_of(settings("prefix"))
    attention = [trace.calls[op.call] for op in trace.ops if "scaled_dot_product" in trace.calls[op.call].name]
    forward = [call for call in attention if "backward" not in call.name]
    assert {call.arguments[0].shape[2] for call in forward} == {LENGTH}
    assert {call.arguments[1].shape[2] for call in forward} == {LENGTH + TOKENS}


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("prefix", {"activation_checkpointing": "blocks"}, "checkpointing"),
        ("prompt", {"batch": {"micro_batch_size": 2, "sequence_length": 64, "padding": "packed"}}, "packed"),
        ("prompt", {"workload": "sequence-classification"}, "sequence-classification"),
        ("prompt", {"workload": "preference"}, "moves the places of answers"),
    ],
)
def test_what_has_no_place_is_refused_by_name(kind, changes, says):
    with pytest.raises(NotSupported, match=rf"adapter\.kind: {kind}") as refusal:
        forecast(settings(kind, **changes), "a100-40gb")
    assert says in str(refusal.value)


def test_more_blocks_than_the_model_has_is_an_error_of_the_settings():
    with pytest.raises(InvalidSettings, match=r"adapter\.kind: peft has no llama-adapter"):
        forecast(settings("llama-adapter", adapter={"layers": 5}), "a100-40gb")
    with pytest.raises(InvalidSettings, match="belong to lora"):
        settings("ia3", adapter={"dora": True})


def test_training_says_why_not():
    with pytest.raises(NotSupported, match="is forecast here, not trained"):
        build_step(settings("ia3", precision="fp32"), generic_workload("causal-lm"), "cpu", pretrained=False)


def test_experts_that_are_one_tensor_take_no_dora():
    mixtral = {"name": "e", "workload": "causal-lm", "model": {"name": "tiny-mixtral"}, "data": {"examples": 8},
               "batch": {"micro_batch_size": 2, "sequence_length": 16}}  # fmt: skip
    with pytest.raises(NotSupported, match=r"adapter\.dora: peft has no DoRA for experts .* linear modules: k_proj, "):
        forecast(settings_from({**mixtral, "adapter": {"kind": "lora", "dora": True}}), "a100-40gb")
    named = {"kind": "lora", "dora": True, "targets": ["q_proj", "v_proj"]}
    assert forecast(settings_from({**mixtral, "adapter": named}), "a100-40gb").fits
