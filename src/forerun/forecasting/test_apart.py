"""Traces of another process, as where a CUDA device is here; there is none, so that one is said to be."""

import json
import os
import subprocess
import sys

import pytest
import torch

import forerun
from forerun.forecasting import apart

SETTINGS = {
    "name": "apart", "workload": "causal-lm", "model": {"name": "tiny-llama"},
    "batch": {"micro_batch_size": 2, "sequence_length": 32}, "evaluation": {"examples": 8}, "data": {"examples": 8},
}  # fmt: skip
PROGRAM = """
import json, sys, torch
torch.cuda.is_available = lambda: True
import forerun
from forerun.forecasting import apart
from forerun.virtual.registration import is_registered, register
assert apart.is_needed()
answer = forerun.forecast(json.loads(sys.argv[1]), gpu="t4")
assert not is_registered() and apart._worker.poll() is None
apart.end()
register()
assert not apart.is_needed()
try:
    torch.ones(1).pin_memory()
except RuntimeError as error:  # of CUDA, which is not here: not of the virtual device, which has no such memory
    assert "CUDA" in str(error), error
    assert not isinstance(error, NotImplementedError), error
print(answer.model_dump_json(exclude={"detail"}))
"""


@pytest.mark.medium
def test_a_forecast_leaves_a_process_to_train_in(monkeypatch):
    monkeypatch.setenv("FORERUN_TRACES", "off")
    expected = forerun.forecast(SETTINGS, gpu="t4").model_dump_json(exclude={"detail"})
    result = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", PROGRAM, json.dumps(SETTINGS)], text=True,
        capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(result.stdout.splitlines()[-1]) == json.loads(expected)


@pytest.fixture
def needed(monkeypatch):
    monkeypatch.setenv("FORERUN_TRACES", "off")
    monkeypatch.setattr(apart, "is_needed", lambda: True)
    yield
    apart.end()


def test_errors_of_the_other_process_are_ours(needed):
    broken = SETTINGS | {"model": {"name": "tiny-llama", "config": {"hidden_size": 30}}}
    with pytest.raises(forerun.errors.ForerunError) as here:
        forerun.forecast(broken, gpu="t4")
    apart.end()
    assert "hidden_size=30" in str(here.value)


@pytest.mark.medium
def test_a_process_that_dies_is_replaced(needed):
    first = forerun.forecast(SETTINGS, gpu="t4")
    apart._worker.kill()
    apart._worker.wait()
    assert forerun.forecast(SETTINGS, gpu="t4") == first


def test_an_interrupt_leaves_no_answer_behind(needed, monkeypatch):
    first = forerun.forecast(SETTINGS, gpu="t4")
    monkeypatch.setattr(apart, "_receive", lambda pipe: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        forerun.forecast({**SETTINGS, "batch": {"micro_batch_size": 4, "sequence_length": 32}}, gpu="t4")
    assert apart._worker is None
    monkeypatch.undo()
    assert forerun.forecast(SETTINGS, gpu="t4") == first


def test_a_workload_that_cannot_be_sent_is_traced_here(needed, monkeypatch):
    class Local:
        pass

    asked = []
    monkeypatch.setattr(apart, "_answer_to", asked.append)
    device = forerun.hardware.catalogue.device("t4")
    assert apart.trace_apart(lambda settings, workload, device: workload, device, None, Local) is Local
    model = forerun.hardware.catalogue.Device  # a class of ours can be sent, what holds weights is not
    assert apart._bytes_of((model, {"a": 1})) is not None
    assert apart._bytes_of([torch.nn.Linear(2, 2)]) is None
    assert asked == []
