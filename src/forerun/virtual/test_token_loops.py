"""A loop over tokens worked out from few turns is the loop, operator by operator and storage by storage."""

import pytest

from forerun.api import forecast
from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.models.build import config_of
from forerun.models.token_loops import TOKEN_BY_TOKEN
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.virtual.repeated_blocks import trace_step_by_blocks
from forerun.virtual.token_loops import trace_scoring_by_tokens, turns
from forerun.virtual.trace_evaluation import trace_scoring
from forerun.virtual.trace_step import trace_step

LENGTH = 12


def settings_of(layers=2, length=LENGTH, **sections):
    sizes = {"hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 64, "vocab_size": 100}
    model = {"name": "rwkv-4-169m-pile", "config": {"num_hidden_layers": layers, **sizes}}
    batch = {"micro_batch_size": 2, "sequence_length": length, **sections.pop("batch", {})}
    return settings_from({
        "name": "loop", "workload": "causal-lm", "model": model, "data": {"examples": 100}, "batch": batch,
        "precision": "bf16-mixed", **sections,
    })  # fmt: skip


def facts(trace):
    """Everything of a trace that a forecast reads."""
    ops = [(trace.calls[op.call], op.phase, op.micro_step, op.module, op.recomputed) for op in trace.ops]
    return [trace.events, trace.storages, ops, trace.total_parameters, trace.warm_from, trace.looped_tokens]


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, id="bf16"),
        pytest.param({"precision": "fp32"}, id="fp32"),
        pytest.param({"layers": 6}, id="deep", marks=pytest.mark.medium),
        pytest.param({"activation_checkpointing": "blocks"}, id="recomputed", marks=pytest.mark.medium),
        pytest.param({"batch": {"gradient_accumulation_steps": 4}}, id="accumulated", marks=pytest.mark.medium),
        pytest.param({"parallel": {"kind": "ddp", "world_size": 2}}, id="copies", marks=pytest.mark.medium),
        pytest.param({"parallel": {"kind": "fsdp", "world_size": 2}}, id="shards", marks=pytest.mark.medium),
    ],
)
def test_a_loop_worked_out_is_the_loop(sections):
    settings, here, shape = settings_of(**sections), device("h100-80gb"), BatchShape(2, LENGTH)
    workload = generic_workload("causal-lm")
    made = trace_step_by_blocks(settings, workload, here, shape)
    with turns(TOKEN_BY_TOKEN["rwkv"], LENGTH):
        assert facts(made) == facts(trace_step(settings, workload, here, shape))
    assert made.looped_tokens == LENGTH


def test_scoring_worked_out_is_the_loop():
    settings, here, shape = settings_of(), device("h100-80gb"), BatchShape(2, LENGTH)
    made = trace_scoring_by_tokens(settings, generic_workload("causal-lm"), here, shape)
    with turns(TOKEN_BY_TOKEN["rwkv"], LENGTH):
        assert facts(made) == facts(trace_scoring(settings, generic_workload("causal-lm"), here, shape))


def test_turns_differ_by_the_token_alone():
    """What makes one index stand for all: operators, sizes and order of the loop that runs are the same."""
    settings, here, shape = settings_of(), device("h100-80gb"), BatchShape(2, LENGTH)
    workload = generic_workload("causal-lm")
    run = trace_step(settings, workload, here, shape)
    with turns(TOKEN_BY_TOKEN["rwkv"], LENGTH):
        alike = trace_step(settings, workload, here, shape)
    assert run.events == alike.events
    assert run.storages == alike.storages
    names = [[trace.calls[op.call].name for op in trace.ops] for trace in (run, alike)]
    assert names[0] == names[1]
    written = [[trace.calls[op.call].bytes_written for op in trace.ops] for trace in (run, alike)]
    assert written[0] == written[1]


@pytest.mark.medium
def test_a_forecast_says_which_path_it_assumes_and_grows_with_the_tokens():
    short, long = (forecast(settings_of(length=length), "h100-80gb") for length in (64, 512))
    (said,) = [warning for warning in long.warnings if "loop over its 512 tokens in Python" in warning]
    assert "unless the packages kernels and ninja are installed" in said
    assert 7 < long.step.seconds.expected / short.step.seconds.expected < 9


def test_loops_too_long_to_trace_are_refused_with_what_fits():
    config_of(settings_of(layers=24, length=1024))
    with pytest.raises(InvalidSettings, match=r"token by token, 48 times .* found 1024 .* Set it to 682 or less\.$"):
        config_of(settings_of(layers=24, length=1024, batch={"gradient_accumulation_steps": 2}))
    config_of(settings_of(length=64, compile="default"))
    with pytest.raises(InvalidSettings, match="compiled or in a pipeline; .* Set it to 64 or less, or compile to none"):
        config_of(settings_of(length=65, compile="default"))


def test_generation_from_a_state_is_refused_before_tracing():
    with pytest.raises(InvalidSettings, match=r"evaluation.new_tokens: .* a state of its own .* Set it to 0\.$"):
        config_of(settings_of(evaluation={"examples": 8, "new_tokens": 16}))
