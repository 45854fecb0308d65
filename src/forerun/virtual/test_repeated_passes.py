"""Stages of a pipeline whose micro-batches are played from a record are what running all of them gives, event by event."""

import re

import pytest
from transformers import AutoConfig

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.pipeline_stages import stages_like
from forerun.step.test_pipeline_stages import CLOSELY, LATENT, SIZES
from forerun.trace import ALLOCATE, FREE, OP, PEER
from forerun.virtual import trace_step as module
from forerun.virtual.trace_step import trace_stages, trace_step

SHAPE = BatchShape(1, 64)
CARD = device("h100-80gb")
WORKLOAD = generic_workload("causal-lm")
OF_THE_PROCESS = re.compile(
    r"\('stream', \d+\)|Named\(kind='process.?group'[^)]*\)|'(?:sum|avg)', '\d+'|, \d+, '\d+'\)"
)
"""Numbers of streams and groups, which go on from one session to the next."""


def settings(
    micro_batches=6,
    blocks=8,
    model="tiny-llama",
    checkpointing="none",
    precision="bf16-mixed",
    compiled=False,
    **parallel,
):
    return settings_from({
        "name": "a", "workload": "causal-lm", "precision": precision, "activation_checkpointing": checkpointing,
        "model": {"name": model, "config": {"num_hidden_layers": blocks, "tie_word_embeddings": False}},
        "data": {"examples": 960}, "optimizer": {"name": "adamw", "implementation": "fused"},
        "batch": {"micro_batch_size": 1, "sequence_length": 64, "padding": "fixed",
                  "gradient_accumulation_steps": micro_batches},
        "parallel": {"pipeline": 4, "shard": 2, **parallel},
        **({"compile": "default", "compile_unit": "blocks"} if compiled else {}),
    })  # fmt: skip


def events_of(trace, begin=0):
    """Events from `begin` on, with what they name; storages from before by what they hold."""
    waits, born, first = {}, {}, None
    for place, op in trace.waits:
        waits.setdefault(place, []).append(op)
    events = []
    for place, (kind, index) in enumerate(trace.events):
        storage = None if kind == OP else trace.storages[index]
        if kind == ALLOCATE:
            born[index] = place - begin
        if place < begin:
            continue
        if kind == OP and first is None:
            first = index
        events += [("wait", op - first) for op in waits.get(place, ())] if first is not None else []
        if kind == ALLOCATE:
            events.append((kind, storage.bytes, storage.phase, storage.owner, storage.freed_in, storage.name))
        elif kind == FREE:
            events.append((kind, born[index] if born[index] >= 0 else (storage.bytes, storage.name)))
        else:
            op = trace.ops[index]
            call = OF_THE_PROCESS.sub("…", str(trace.calls[op.call]))
            events.append((kind, call, op.phase, op.micro_step, op.module, op.recomputed))
    return events


def alive(trace):
    """What is there when the step begins."""
    storages = set()
    for kind, index in trace.events[: trace.warm_from]:
        storages.add(index) if kind == ALLOCATE else storages.discard(index) if kind == FREE else None
    return sorted((trace.storages[index].bytes, trace.storages[index].name) for index in storages)


def is_same(asked, stages):
    """Whether traces of `stages` by the record are those that run every micro-batch, and there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "trace_step", None)  # what stands in where a pass cannot be played
        traces = trace_stages(asked, WORKLOAD, CARD, SHAPE, stages)
    for stage, played in zip(stages, traces, strict=True):
        run = trace_step(asked, WORKLOAD, CARD, SHAPE, stage=stage)
        assert events_of(played, played.warm_from) == events_of(run, run.warm_from)
        assert alive(played) == alive(run)
        if len(stages) == 1:
            assert events_of(played) == events_of(run)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_one_stage(stage):
    is_same(settings(), [stage])


@pytest.mark.medium
@pytest.mark.parametrize("layout", [{}, {"tensor": 2, "context": 2, "schedule": "interleaved", "virtual_stages": 2}])
def test_compiled_stages(layout):
    is_same(settings(8, compiled=True, **layout), [1])


@pytest.mark.medium
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_runs_several_numbers_of_micro_batches(compiled):
    stages, counts = [1, 2], (6, 9)
    traces = iter(
        trace_stages(settings(blocks=12, pipeline=4, shard=4, compiled=compiled), WORKLOAD, CARD, SHAPE, stages, counts)
    )
    for count in counts:
        for stage in stages:
            own = settings(count, blocks=12, pipeline=4, shard=4, compiled=compiled)
            trace, run = next(traces), trace_step(own, WORKLOAD, CARD, SHAPE, stage=stage)
            assert events_of(trace, trace.warm_from) == events_of(run, run.warm_from)
            assert alive(trace) == alive(run)
            assert (trace.micro_steps, trace.accumulation) == (count, count)


@pytest.mark.medium
def test_stages_that_are_alike_share_a_model():
    asked = settings(7, blocks=12, pipeline=6, shard=8)
    assert [stages_like(asked, stage) for stage in (0, 1, 5)] == [[0], [1, 2, 3, 4], [5]]
    is_same(asked, [1, 2, 3, 4])
    halves = settings(7, blocks=12, pipeline=6, shard=4)
    assert stages_like(halves, 2) == [2, 4]
    is_same(halves, [2, 4])
    parts = settings(8, blocks=16, pipeline=4, shard=8, schedule="interleaved", virtual_stages=2)
    assert stages_like(parts, 1) == [1, 2]
    is_same(parts, [1, 2])


@pytest.mark.medium
@pytest.mark.parametrize(
    "asked",
    [
        settings(checkpointing="blocks"), settings(checkpointing="selective", tensor=2, sequence_parallel=True),
        pytest.param(settings(tensor=2), marks=pytest.mark.slow), settings(schedule="gpipe"), settings(8, schedule="interleaved", virtual_stages=2),
        settings(shard=1, precision="bf16-true"), settings(shard=2, replicate=2), settings(precision="fp32"),
        settings(schedule="zero-bubble", virtual_stages=2),
    ],
)  # fmt: skip
def test_every_way_of_running(asked):
    for stage in (0, 1, 3):  # the second and the third are alike
        is_same(asked, [stage])


def folder_of(family, path):
    """A small model of a family, as settings name it."""
    sizes = {**SIZES, "num_hidden_layers": 4, **(LATENT if family.startswith("deepseek") else {})}
    AutoConfig.for_model(family, **sizes).save_pretrained(path)
    return str(path)


@pytest.mark.medium
@pytest.mark.parametrize("family", [*CLOSELY[1:], "cohere", "gemma3_text", "gpt_neox", "gpt_oss"])
def test_every_family(family, tmp_path):
    model = folder_of(family, tmp_path)
    for stage in (0, 3):
        is_same(settings(model=model, blocks=4), [stage])


@pytest.mark.medium
@pytest.mark.parametrize(("family", "stage"), [("mixtral", 3), ("qwen3_moe", 1), ("deepseek_v3", 0)])
def test_dealt_experts(family, stage, tmp_path):
    """The first stage of DeepSeek has no experts."""
    is_same(settings(model=folder_of(family, tmp_path), blocks=4, expert=2), [stage])


def test_what_cannot_be_played_is_run(monkeypatch):
    """A stage that keeps memory of a micro-batch for good has no record that holds."""
    finish = module.RepeatedPasses._finish
    monkeypatch.setattr(module.RepeatedPasses, "_finish", lambda self, *args: (finish(self, *args), self._refuse()))
    asked = settings()
    (trace,) = trace_stages(asked, WORKLOAD, CARD, SHAPE, [1])
    assert events_of(trace) == events_of(trace_step(asked, generic_workload("causal-lm"), CARD, SHAPE, stage=1))


@pytest.mark.medium
def test_stages_send_the_part_of_a_sequence_that_they_have():
    def sent(**parallel):
        trace = trace_step(settings(4, blocks=4, tensor=2, **parallel), WORKLOAD, CARD, SHAPE, stage=1)
        return {spec.shape for call in trace.calls if PEER in dict(call.keywords) for spec in call.inputs}

    assert {shape[1] for shape in sent()} == {64}
    assert {shape[1] for shape in sent(sequence_parallel=True)} == {32}
