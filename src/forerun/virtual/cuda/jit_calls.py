"""`torch.jit.trace`: what it returns runs the same operators, so that the module itself stands for it.

PyTorch's tracer turns sizes into tensors, of which a fake tensor can make nothing (symbolic_shapes.py, 2.13). It runs
the module once. `torch.jit.script` compiles Python, and its result runs here as it is, operator by operator; that a
card's fuser joins some of them is told. ONNX's exporter traces, too.
"""

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from forerun.virtual.put_back import replaced

FUSED = (
    "The program compiles a module with TorchScript, whose fuser joins pointwise operators on the card. It is forecast "
    "operator by operator: a step may be shorter, by at most what those operators take, and memory lower."
)
DRAWS_GRAPH = "torch.utils.tensorboard._pytorch_graph"
"""Asks for the graph alone, of a file that is thrown away."""


def _exported(model: Any, args: Any = (), f: Any = None, *_: Any, kwargs: Any = None, **__: Any) -> Any:
    """What ONNX's exporter does that costs: it runs the model once and writes its weights."""
    inputs, named = (args if isinstance(args, tuple) else (args,)), kwargs or {}
    if inputs and isinstance(inputs[-1], dict):
        inputs, named = inputs[:-1], {**inputs[-1], **named}
    with torch.no_grad():
        model(*inputs, **named)
    program = types.SimpleNamespace(save=functools.partial(_save, model), model=model)
    if f is not None:
        program.save(f)
    return program


def _save(traced: Any, file: Any, **_: Any) -> None:
    """The weights alone, which are nearly all that a file of TorchScript has."""
    torch.save(traced.state_dict() if isinstance(traced, torch.nn.Module) else {}, file)


@contextlib.contextmanager
def tracing_nothing(tell: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """While it is active, tracing runs what is traced once and returns it; `tell` hears of a fuser."""
    original, compile_python = torch.jit.trace, torch.jit.script

    def trace(func: Any, example_inputs: Any = None, *_: Any, example_kwarg_inputs: Any = None, **__: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == DRAWS_GRAPH:
            return original(torch.nn.Identity(), torch.zeros(1, device="cpu"))
        note(func)
        inputs = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
        with torch.no_grad():
            func(*(inputs if example_kwarg_inputs is None else ()), **(example_kwarg_inputs or {}))
        if not hasattr(func, "save"):
            func.__dict__["save"] = types.MethodType(_save, func)
        return func

    def script(obj: Any, *args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        note(obj)
        return compile_python(obj, *args, _frames_up=_frames_up + 1, **kwargs)  # names are looked up where it is called

    def note(func: Any) -> None:
        if isinstance(func, torch.nn.Module):  # libraries compile functions of a few operators as they are imported
            tell(FUSED)

    with (
        replaced(torch.jit, "trace", trace), replaced(torch.jit, "script", script),
        replaced(torch.onnx, "export", _exported),
    ):  # fmt: skip
        yield
