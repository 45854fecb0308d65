"""Traces of models that loop over tokens in Python, from three with few turns of the loop.

Question: what a step with T turns of RWKV's recurrence issues and allocates, in the time of twelve turns. Each turn
issues the same operators on the same sizes, whichever token it reads, so three traces with one turn more each are made
with every other tensor in its full length, proven to differ by the same parts twice (`lengthen.py`), and played on. One
index stands for all, as turns differ by it alone. Exact: a test compares the result with a loop of T turns.

Path: the loop of transformers (`rwkv_linear_attention_cpu`, 5.24, modeling_rwkv.py), which CUDA cards run too unless
the packages `kernels` and `ninja` are installed.

Not covered: the CUDA kernel that runs with them (kernels-community/rwkv); other loops over tokens (Mamba 1), whose
results are stacked and so must be as many as the tokens.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import Device
from forerun.models.build import config_of
from forerun.models.token_loops import TOKEN_BY_TOKEN
from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload
from forerun.step.workload import Workload
from forerun.trace import Trace
from forerun.virtual.lengthen import Lengthened, NotRepeating
from forerun.virtual.put_back import replaced
from forerun.virtual.trace_evaluation import trace_scoring

FEWEST = 3
"""Turns of the shortest trace: a first one, whose state needs no gradient, a last one, whose state nobody reads, and
one between."""
TRACES = 3
WINDOWS = (96,)
"""Events that must agree after a repeated turn; fewer would let the first turn, which does a little less, pass for one
of the others."""


def trace_by_tokens(settings: Settings, workload: Workload, length: int, trace: Callable[[], Trace]) -> Trace:
    """What `trace` gives of the model of `settings` for sequences of `length` tokens, worked out from few turns."""
    if not isinstance(workload, HeadWorkload):  # a recipe's own model
        return trace()
    function = TOKEN_BY_TOKEN.get(config_of(settings).model_type)
    if function is None or length <= FEWEST + TRACES:
        return trace()
    traces: list[Trace] = []
    for most in range(FEWEST, FEWEST + TRACES):
        with turns(function, most):
            traces.append(trace())
    try:
        return Lengthened(*traces, windows=WINDOWS).at(length - FEWEST)
    except NotRepeating:
        return trace()


def trace_scoring_by_tokens(settings: Settings, workload: Workload, device: Device, shape: BatchShape) -> Trace:
    """What `trace_scoring` gives."""
    return trace_by_tokens(settings, workload, shape.length, lambda: trace_scoring(settings, workload, device, shape))


@contextlib.contextmanager
def turns(function: tuple[str, str], most: int) -> Iterator[None]:
    """The loop of a function of transformers ends after `most` turns, which all read the first token."""
    module: Any = importlib.import_module(function[0])
    original = getattr(module, function[1])

    def few(stop: int) -> Sequence[int]:
        return [0] * min(stop, most)

    names = {**original.__globals__, "range": few}
    short = FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    with replaced(module, function[1], short):
        yield
