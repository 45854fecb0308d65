"""On a CUDA device: the forecast's peak against the allocator's own counter, for the step that is really run."""

import gc

import pytest
import torch

from forerun.data.plan import BatchShape
from forerun.hardware.detect import detect
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.virtual.trace_step import trace_step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CASES = [("bert-base-uncased", "sequence-classification", "fp16-mixed"), ("gpt2", "causal-lm", "fp32")]


@pytest.mark.parametrize(("model", "workload", "precision"), CASES)
def test_peak_allocated_is_forecast(model, workload, precision):
    """Within 3 %: the goal's 95th percentile before any run on a machine."""
    batch = {"micro_batch_size": 8, "sequence_length": 128}
    settings = settings_from(
        {"name": "gpu", "workload": workload, "model": {"name": model}, "precision": precision, "batch": batch}
    )
    device, head = detect().device, generic_workload(workload)
    step = build_step(settings, head, "cuda", pretrained=False)
    with torch.device("cuda"):
        example = head.example_batch(settings, 8, 128)
    step.run([example], StepObserver())
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step.run([example], StepObserver())
    measured = torch.cuda.max_memory_allocated()
    trace = trace_step(settings, head, device, BatchShape(8, 128))
    forecast = replay_memory(trace, workspace_bytes=workspace_bytes(device)).peak_allocated_bytes
    assert forecast == pytest.approx(measured, rel=0.03)
