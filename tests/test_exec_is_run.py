"""What a script does on the virtual GPU is what it does on the CPU: operator by operator, with the same shapes.

The script runs for real on the CPU and by `forerun exec`; one warm step of each is compared. The optimizer and the norm
of gradients are left out: on the CPU they go tensor by tensor, on CUDA all at once (their parameters are compared).
Attention counts as one operator, whichever kernel the device has. Left out are T5, whose attention with a bias returns
another layout on each device, so that views become copies, and wav2vec2, where the gradient of the CTC loss does.
"""

import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.trace import OP
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parent / "scripts"
BOOKKEEPING = (
    "profiler.", "prim.", "aten.detach", "aten.expand", "aten.lift_fresh", "aten.alias", "aten._local_scalar_dense", "aten._to_copy", "aten.copy_",
)  # fmt: skip
"""Operators that cost nothing, and copies, which a move to another device adds."""
NORM = (
    "_foreach_norm",
    "linalg_vector_norm",
    "_foreach_mul_",
    "aten.stack",
    "aten.reciprocal",
    "aten.clamp",
    "aten.mul_",
    "aten.cat",
)
"""Operators of `clip_grad_norm_`, which has a path for each device."""
STEP = 2
"""The step that is compared: the first makes the optimizer's state."""


class StepStopped(Exception):
    """Enough steps ran."""


class OperatorsOfSteps(TorchDispatchMode):
    """Operators with the shapes of their tensors, one list for each step, without those of the optimizer."""

    def __init__(self):
        super().__init__()
        self.steps, self.is_outside = [[]], True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.is_outside:
            shapes = [tuple(t.shape) for t in torch.utils._pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            self.steps[-1].append((str(func), tuple(shapes)))
        return func(*args, **(kwargs or {}))

    def before_optimizer(self, *_):
        self.is_outside = False

    def after_optimizer(self, *_):
        self.is_outside = True
        self.steps.append([])
        if len(self.steps) > STEP + 1:
            raise StepStopped


def run_on_cpu(script, arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    recorder = OperatorsOfSteps()
    hooks = [
        register_optimizer_step_pre_hook(recorder.before_optimizer),
        register_optimizer_step_post_hook(recorder.after_optimizer),
    ]
    try:
        with recorder, pytest.raises(StepStopped):
            runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    finally:
        for hook in hooks:
            hook.remove()
    return recorder.steps[STEP]


def run_on_virtual_gpu(script, arguments):
    command = ["python", str(SCRIPTS / script), *arguments]
    _, result = forecast_program(parse_command(command), command, [device("a100-40gb")])
    assert result.error == ""
    trace, span = result.session.recorder.trace, result.watcher.spans[STEP]
    ops = [trace.ops[index] for kind, index in trace.events[span.begin : span.end] if kind == OP]
    calls = [trace.calls[op.call] for op in ops if op.phase.value != "optimizer"]
    return [(call.name, tuple(spec.shape for spec in call.inputs)) for call in calls]


def comparable(operators):
    """Counts of what both devices have to do."""
    counts = Counter()
    for name, shapes in operators:
        if name.startswith(BOOKKEEPING) or any(part in name for part in NORM):
            continue
        if "_scaled_dot_product" in name or "_attention_math" in name:
            name, shapes = "attention" + ("_backward" if "backward" in name else ""), shapes[:3]
        counts[name, shapes] += 1
    return counts


@pytest.mark.medium
@pytest.mark.parity
@pytest.mark.parametrize("kind", ["bert", "llama", "vit", "resnet", "clip"])
def test_operators_of_a_script_are_those_of_a_real_run(kind, monkeypatch):
    real = comparable(run_on_cpu("plain_loops.py", [kind], monkeypatch))
    virtual = comparable(run_on_virtual_gpu("plain_loops.py", [kind]))
    assert sum(real.values()) > 50
    assert virtual - real == real - virtual == Counter()
