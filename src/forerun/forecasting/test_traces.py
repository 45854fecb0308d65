"""What is kept answers exactly as what is traced, for every card that it may answer for; anything stale is traced anew."""

import json
import os
import subprocess
import sys

import pytest

import forerun
from forerun.api import compare_settings, find_device, forecast_settings, request_of, resolve
from forerun.data.plan import BatchShape
from forerun.forecasting import traces
from forerun.forecasting.shared_traces import watched_device
from forerun.forecasting.traces import step_trace
from forerun.hardware.catalogue import devices
from forerun.virtual import repeated_blocks, trace_evaluation

SHORT = {"sequence_length": 32}
CARDS = ("t4", "a100-40gb", "a100-80gb", "l4", "h100-80gb")
BERT = {"workload": "sequence-classification", "model": {"name": "tiny-bert"}, "precision": "fp16-mixed"}
LLAMA = {"workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "fp16-mixed"}
QUESTIONS = {
    "bert": BERT,
    "scored": {**BERT, "evaluation": {"examples": 10}, "batch": {"micro_batch_size": 4, **SHORT}},
    "lora": {**LLAMA, "adapter": {"kind": "lora"}, "evaluation": {"examples": 4, "new_tokens": 4}},
    "qlora": {**LLAMA, "adapter": {"kind": "lora"}, "quantization": "nf4"},
    "liger": {**LLAMA, "model": {"name": "tiny-llama", "kernels": "liger"}},
    "ddp": {**LLAMA, "parallel": {"kind": "ddp", "world_size": 2}},
    "compiled": {**BERT, "compile": "default"},
    "frozen": {**BERT, "schedule": {"frozen_encoder_epochs": 0.5}},
}


def question(content):
    return resolve({"name": "kept", "data": {"examples": 40}, "batch": SHORT, **content})


def asked(settings, gpu):
    """Everything that a forecast says."""
    return forecast_settings(settings, find_device(gpu)).model_dump(mode="json", by_alias=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FORERUN_TRACES", str(tmp_path / "traces"))
    return tmp_path / "traces"


@pytest.fixture
def no_tracing(monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("traced")

    def forbid():
        monkeypatch.setattr(repeated_blocks, "trace_step_by_blocks", refuse)
        monkeypatch.setattr(trace_evaluation, "trace_scoring", refuse)
        monkeypatch.setattr(trace_evaluation, "trace_generation", refuse)

    return forbid


@pytest.mark.parametrize(
    "name", [pytest.param(q, marks=pytest.mark.medium) if q in ("compiled", "lora") else q for q in QUESTIONS]
)
def test_kept_answers_are_those_that_are_traced(name, folder, no_tracing, monkeypatch):
    settings = question(QUESTIONS[name])
    cards = CARDS if name == "bert" else CARDS[:2]
    with monkeypatch.context() as off:
        off.setenv("FORERUN_TRACES", "off")
        traced = {card: asked(settings, card) for card in cards}
    assert {card: asked(settings, card) for card in cards} == traced
    no_tracing()
    assert {card: asked(settings, card) for card in reversed(cards)} == traced


def test_only_what_the_step_asks_of_a_card_tells_traces_apart(folder):
    for name, fields in (
        ("bert", {"kind", "compute_capability", "attention"}),
        ("liger", {"kind", "compute_capability", "attention", "sm_count"}),
    ):
        request = request_of(question(QUESTIONS[name]), find_device("a100-40gb"), None)
        step_trace(request, BatchShape(1, 32))
        hints = [json.loads(path.read_text()) for path in folder.glob("*/entry.json")]
        (own,) = [
            h
            for h in hints
            if h["facts"]["asks"] and h["key"]["settings"] == traces._content(request.settings)["settings"]
        ]
        assert set(own["facts"]["asks"]) == fields


def test_a_watched_device_is_the_same_and_notes_what_is_asked():
    for device in devices():
        watched, names = watched_device(device)
        assert (watched.has_bf16, watched.peak("float32")) == (device.has_bf16, device.peak("float32"))
        assert names == {"architecture", "peak_flops_per_second"} | (set() if device.is_amd else {"compute_capability"})


@pytest.mark.parametrize("change", ["code", "version", "damage", "settings", "length"])
def test_nothing_stale_answers(change, folder, no_tracing, monkeypatch):
    settings = question(BERT)
    asked(settings, "t4")
    if change == "code":
        monkeypatch.setattr(traces, "traced_with", lambda: {"code": "other"})
    elif change == "version":
        now = traces.traced_with()
        monkeypatch.setattr(traces, "traced_with", lambda: now | {"torch": "2.14"})
    elif change == "damage":
        (file,) = folder.glob("*/trace")
        file.write_bytes(file.read_bytes()[:-1])
    elif change == "settings":
        settings = question({**BERT, "activation_checkpointing": "blocks"})
    else:
        settings = question({**BERT, "batch": {"sequence_length": 64}})
    no_tracing()
    with pytest.raises(AssertionError, match="traced"):
        asked(settings, "t4")


def test_what_only_a_run_depends_on_is_answered(folder, no_tracing):
    asked(question(BERT), "t4")
    no_tracing()
    longer = {"schedule": {"epochs": 9}, "optimizer": {"learning_rate": 1e-3}, "checkpoints": {"every_steps": 7}}
    assert asked(question({**BERT, **longer}), "t4")["run"]["total_steps"] == 360


def test_switches_of_pytorch_and_other_workloads_are_traced(folder):
    import torch

    torch.backends.cuda.enable_flash_sdp(False)
    try:
        asked(question(BERT), "t4")
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_does_not_stop_a_forecast(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORERUN_TRACES", str(tmp_path / "file" / "traces"))
    assert asked(question(BERT), "t4")["fits"]


def test_kept_answers_need_no_pytorch(folder):
    content = {"name": "kept", "data": {"examples": 40}, "batch": SHORT, **BERT}
    expected = asked(question(BERT), "t4")["memory"]
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import json; from forerun.api import find_device, forecast_settings, resolve\n"
        "forecast = forecast_settings(resolve(json.loads(sys.argv[1])), find_device('t4'))\n"
        "print(forecast.memory.model_dump_json())"
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(forerun.__file__))}
    command = [sys.executable, "-c", code, json.dumps(content)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert json.loads(result.stdout or "{}") == expected, result.stderr


def test_a_kept_comparison_is_that_which_is_traced(folder, no_tracing, monkeypatch):
    settings, cards = question(BERT), [find_device("t4"), find_device("l4")]

    def compared(devices):
        return compare_settings(settings, devices).model_dump(exclude={"search_seconds"})

    with monkeypatch.context() as off:
        off.setenv("FORERUN_TRACES", "off")
        traced = compared(cards)
    assert compared(cards) == traced
    no_tracing()
    assert compared(cards) == traced
    dear = [card.model_copy(update={"price_per_hour": 100.0}) for card in cards]
    assert compared(dear)["rows"][0]["cost"] > 50 * traced["rows"][0]["cost"], "prices are no part of what is kept"
