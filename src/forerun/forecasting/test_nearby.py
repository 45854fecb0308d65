"""Sizes around a question are proven once, and answer without tracing; whatever is not proven is traced."""

import json

import pytest

from forerun.api import find_device, forecast_settings, request_of, resolve
from forerun.data.plan import BatchShape
from forerun.forecasting import nearby
from forerun.forecasting.nearby import boxes_around, is_sized, trace_nearby
from forerun.forecasting.trace_file import read_trace, trace_bytes
from forerun.step.heads import generic_workload
from forerun.virtual import repeated_blocks

LORA = {
    "workload": "causal-lm",
    "model": {"name": "tiny-llama"},
    "precision": "bf16-mixed",
    "adapter": {"kind": "lora"},
}


def question(batch, length, **more):
    sizes = {"micro_batch_size": batch, "sequence_length": length}
    return resolve({"name": "near", "data": {"examples": 400}, **LORA, "batch": sizes, **more})


def answered(settings):
    """Everything that a forecast says."""
    return forecast_settings(settings, find_device("a100-40gb")).model_dump(mode="json", by_alias=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_TRACES", str(tmp_path / "traces"))
    return tmp_path / "traces"


@pytest.fixture
def no_tracing(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("traced")

    return lambda: monkeypatch.setattr(repeated_blocks, "trace_step_by_blocks", refuse)


@pytest.mark.medium
def test_other_batches_and_lengths_answer_as_if_they_were_traced(folder, no_tracing, monkeypatch):
    sizes = ((9, 256), (60, 640), (256, 2048), (1, 1024))
    with monkeypatch.context() as off:
        off.setenv("FORERUN_TRACES", "off")
        expected = {size: answered(question(*size)) for size in sizes}
    request = request_of(question(4, 256), find_device("a100-40gb"), None)
    assert trace_nearby(request) == ["length 256", "remainder 0", "remainder 0, one sample"]
    assert trace_nearby(request) == [], "once"
    no_tracing()
    assert {size: answered(question(*size)) for size in sizes} == expected
    for batch, length in ((9, 250), (1, 250), (300, 256), (9, 2176)):
        with pytest.raises(AssertionError, match="traced"):
            answered(question(batch, length))
    with pytest.raises(AssertionError, match="traced"):
        answered(question(9, 640, activation_checkpointing="blocks"))


def test_what_is_no_polynomial_is_traced_and_not_tried_again(folder, monkeypatch):
    made = []

    def bent(settings, workload, device, shape, **keywords):
        made.append((shape.size, shape.length))
        trace = read_trace(trace_bytes(STEP))
        trace.storages[0].bytes, trace.micro_batch_size = shape.size**2, shape.size
        return trace

    STEP = repeated_blocks.trace_step_by_blocks(
        question(2, 32), generic_workload("causal-lm"), find_device("a100-40gb"), BatchShape(2, 32)
    )
    monkeypatch.setattr(repeated_blocks, "trace_step_by_blocks", bent)
    monkeypatch.setattr(nearby, "boxes_around", lambda *a: list(boxes_around(*a))[:1])
    request = request_of(question(4, 32), find_device("a100-40gb"), None)
    assert trace_nearby(request) == []
    assert made[:3] == [(4, 32), (2, 32), (256, 32)]
    number = len(made)
    assert trace_nearby(request) == []
    assert len(made) == number
    answered(question(8, 32))
    assert made[-1] == (8, 32)
    kept = [json.loads(path.read_text()) for path in folder.glob("*/entry.json")]
    assert any(entry["facts"].get("box") == "null" and "polynomials" in entry["key"] for entry in kept)


def test_boxes_lie_around_the_question_and_within_the_model():
    roberta = {"workload": "masked-lm", "model": {"name": "roberta-base"}}
    for settings in (question(4, 256), question(300, 100), question(2, 1000), question(4, 384, **roberta)):
        own = BatchShape(settings.batch.micro_batch_size, settings.batch.sequence_length)
        (_, (line,)), *planes = boxes_around(settings, own)
        assert line.box.holds(own.size, own.length)
        assert len(planes) == 2
        for batch, (_, proofs) in zip((own.size, 1), planes, strict=False):
            for proof in proofs:
                assert proof.box.lengths == tuple(sorted(set(proof.box.lengths)))
                assert proof.box.holds(batch, own.length)
                assert all(proof.box.holds(*size) for size in proof.tests)
                assert not {length for _, length in proof.tests} & set(proof.box.lengths)
                assert proof.box.lengths[-1] <= 2048
    assert [name for name, _ in boxes_around(question(4, 5), BatchShape(4, 5))] == [
        "length 5",
        "remainder 5",
        "remainder 5, one sample",
    ]


@pytest.mark.parametrize(
    "more", [{"compile": "default"}, {"parallel": {"kind": "ddp", "world_size": 2}}, {"model": {"name": "a/b"}}]
)
def test_what_is_not_covered_is_not_tried(more):
    assert is_sized(question(4, 256))
    assert not is_sized(question(4, 256, **more))
