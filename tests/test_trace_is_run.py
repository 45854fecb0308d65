"""The step that is traced is the step that is run: on the CPU, op by op, and byte by byte at the peak.

The same settings and workload are traced on fake tensors and run on real ones under a plain recorder. A library that
takes another path when it sees fake tensors shows here.
"""

from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.data.plan import BatchShape
from forerun.hardware.detect import detect_cpu
from forerun.memory.replay import replay_memory
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.measure import run_measuring_allocations
from forerun.virtual.trace_step import trace_step

HEADS = {"encoder": "sequence-classification", "causal-lm": "causal-lm", "seq2seq-lm": "seq2seq-lm"}
TWINS = {row.name: HEADS[row.parameters_of] for row in architectures() if row.name.startswith("tiny-")}
KNOWN = {
    "tiny-mixtral": "the CPU has no grouped product kernel in every dtype: transformers loops over experts there",
    "tiny-longformer": "pads by a number of tokens that it reads from the batch",
}
UNSEEN = (
    "profiler._record_function_enter_new.default",
    "profiler._record_function_exit._RecordFunction",
    "aten.detach.default",
    "aten.lift_fresh.default",
    "aten._local_scalar_dense.default",
    "prim.device.default",
)
"""Bookkeeping that costs nothing and that fake and real tensors need a different number of times."""


class OpNames(TorchDispatchMode):
    """Counts aten calls."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def settings_of(name, workload, **sections):
    return settings_from(
        {
            "name": name,
            "workload": workload,
            "model": {"name": name},
            "batch": {"micro_batch_size": 4, "sequence_length": 48},
            **sections,
        }
    )


def real_step(settings, workload):
    """A step after one that made the optimizer state, and a batch with padding."""
    torch.manual_seed(0)
    step = build_step(settings, workload, "cpu", pretrained=False)
    shape = settings.batch
    batch = workload.example_batch(settings, shape.micro_batch_size, shape.sequence_length)
    for key in ("input_ids", "decoder_input_ids"):
        if key in batch:
            batch[key] = torch.randint(3, 400, batch[key].shape)
    if "attention_mask" in batch:
        batch["attention_mask"][0, -5:] = 0
    step.run([batch], StepObserver())
    return step, batch


def assert_same_operators(trace, names):
    """Those of the traced step are those that ran, each as often; bookkeeping apart."""
    traced = Counter(trace.calls[op.call].name for op in trace.ops if op.phase.value != "prepare")
    for counts in (traced, names):
        # while a dispatch mode watches, autograd sums gradients into new tensors (`isTensorSubclassLike`), else in place
        counts["aten.add.Tensor"] += counts.pop("aten.add_.Tensor", 0)
        for unseen in UNSEEN:
            counts.pop(unseen, None)
    assert traced - names == names - traced == Counter()


AUTOCAST = ("tiny-bert", "tiny-deberta-v2", "tiny-gpt2", "tiny-llama", "tiny-t5")


@pytest.mark.parity
@pytest.mark.parametrize("name", AUTOCAST)
def test_a_step_under_autocast_is_that_of_a_real_one(name):
    """Operators and peak in bf16-mixed, as below; attention computes in fp32 inside, whatever autocast says."""
    settings = settings_of(name, TWINS[name], precision="bf16-mixed")
    workload = generic_workload(TWINS[name])
    step, batch = real_step(settings, workload)
    with OpNames() as real:
        step.run([batch], StepObserver())
    _, measured = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    trace = trace_step(settings, workload, detect_cpu().device, BatchShape(4, 48))
    assert_same_operators(trace, real.names)
    forecast = replay_memory(trace, is_host=True).peak_allocated_bytes
    assert abs(forecast - measured) <= 0.01 * measured + 4096


@pytest.mark.parity
@pytest.mark.parametrize("name", [n for n in TWINS if n not in KNOWN])
def test_operators_are_those_of_a_real_step(name):
    settings, workload = settings_of(name, TWINS[name]), generic_workload(TWINS[name])
    step, batch = real_step(settings, workload)
    with OpNames() as real:
        step.run([batch], StepObserver())
    trace = trace_step(settings, workload, detect_cpu().device, BatchShape(4, 48))
    assert_same_operators(trace, real.names)


@pytest.mark.parity
@pytest.mark.parametrize("name", [n for n in TWINS if n not in KNOWN])
def test_gradients_are_summed_in_place_where_a_real_step_does(name):
    """PyTorch's profiler watches without a dispatch mode."""
    settings, workload = settings_of(name, TWINS[name]), generic_workload(TWINS[name])
    step, batch = real_step(settings, workload)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step.run([batch], StepObserver())
    real = Counter(
        event.name for event in profiled.events() if event.name in ("aten::add", "aten::add_") and in_the_engine(event)
    )
    trace = trace_step(settings, workload, detect_cpu().device, BatchShape(4, 48))
    names = Counter(trace.calls[op.call].name for op in trace.ops if op.phase.value == "backward")
    assert real == +Counter({"aten::add": names["aten.add.Tensor"], "aten::add_": names["aten.add_.Tensor"]})


def in_the_engine(event):
    """Whether an operator of a profile was run by autograd."""
    while event is not None and not event.name.startswith("autograd::engine"):
        event = event.cpu_parent
    return event is not None


@pytest.mark.parity
@pytest.mark.parametrize("name", [n for n in TWINS if n not in KNOWN])
def test_peak_memory_is_that_of_a_real_step(name):
    """Within 1 % and 4 KiB: the C++ allocator rounds no sizes, the replay rounds to its alignment of 64 bytes."""
    settings, workload = settings_of(name, TWINS[name]), generic_workload(TWINS[name])
    step, batch = real_step(settings, workload)
    _, measured = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    trace = trace_step(settings, workload, detect_cpu().device, BatchShape(4, 48))
    forecast = replay_memory(trace, is_host=True).peak_allocated_bytes
    assert abs(forecast - measured) <= 0.01 * measured + 4096
