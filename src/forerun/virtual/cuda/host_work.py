"""What a program computes on the host between its kernels: random batches, large passes, copies to the card.

Each becomes a call that the host issues to itself (`Issuer.HOST`) and that launches nothing. Batches of data loaders
are left out: they are timed as a whole (`loaders.py`). So are updates of weights that live on the host
(`trained_parameters.py`).
"""

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

from forerun.trace import RANDOM_ELEMENTS, Call, Issuer, Phase
from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.names import is_pinned, is_virtual
from forerun.virtual.cuda.shadow import tensors_in
from forerun.virtual.describe import COPIES, GATHERS, SCATTERS, bytes_of
from forerun.virtual.recorder import Recorder

aten = torch.ops.aten
LEAST_RANDOM, LEAST_BYTES = 2**11, 2**18
"""Random numbers and bytes below which an operator costs the host no more than any other."""
MAKE_NOTHING = {
    aten.empty, aten.empty_like, aten.empty_strided, aten.detach, aten.lift_fresh, aten.set_, aten._unsafe_view,
}  # fmt: skip
WRITE_PARTS = SCATTERS | {aten.index_put_, aten.scatter_, aten.scatter_add_, aten.index_fill_, aten.masked_fill_}
"""Operators that touch as much of what they are handed first as they are given for it, or as the rest of it tells."""
STAGED = "host.staged_copy.default"
"""Name of the copy of pageable memory to where a card reads it, which is made before `cudaMemcpyAsync` returns (CUDA
driver API, "API synchronization behavior")."""
_apart: ContextVar[bool] = ContextVar("_apart", default=False)


@contextlib.contextmanager
def timed_apart() -> Iterator[None]:
    """Note nothing: somebody takes the time of the whole."""
    token = _apart.set(True)
    try:
        yield
    finally:
        _apart.reset(token)


def note_work(recorder: Recorder, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
    """Record an operator on tensors of the host alone, if it costs something."""
    results = out if isinstance(out, tuple | list) else (out,)
    if not any(isinstance(each, torch.Tensor) and each.numel() >= LEAST_RANDOM for each in (*results, *args)):
        return  # nearly all: this is asked of every operator of the host
    makes_nothing = func.is_view or func.namespace != "aten" or func._overloadpacket in MAKE_NOTHING
    if makes_nothing or not _is_followed(recorder):
        return
    outputs, inputs = list(tensors_in((out,))), list(tensors_in((args, kwargs)))
    if not outputs or any(map(is_virtual, (*outputs, *inputs))):
        return
    elements = sum(int(tensor.numel()) for tensor in outputs)
    is_random = torch.Tag.nondeterministic_seeded in func.tags and elements >= LEAST_RANDOM
    if func._overloadpacket in WRITE_PARTS:
        bytes_in = bytes_out = sum(map(bytes_of, inputs[1:]))
    else:  # rows of a table are read, not the table
        reads = inputs[1:] + outputs if func._overloadpacket in GATHERS else inputs
        bytes_in, bytes_out = sum(map(bytes_of, reads)), sum(map(bytes_of, outputs))
    if is_random or bytes_in + bytes_out >= LEAST_BYTES:
        _append(recorder, f"host.{func}", bytes_in, bytes_out, elements if is_random else 0)


def note_staging(recorder: Recorder, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Record the copy of pageable memory that comes before one to the card."""
    if func._overloadpacket not in COPIES or not _is_followed(recorder):
        return
    source = args[1] if func._overloadpacket is aten.copy_ else args[0]
    device = args[0].device if func._overloadpacket is aten.copy_ else kwargs.get("device")
    goes = device is not None and torch.device(device).type == DEVICE and not is_virtual(source)
    if goes and not is_pinned(source) and bytes_of(source) >= LEAST_BYTES:
        _append(recorder, STAGED, bytes_of(source), bytes_of(source), 0)


def _is_followed(recorder: Recorder) -> bool:
    here = threading.current_thread() is threading.main_thread() and recorder.current_phase is not Phase.OPTIMIZER
    return here and not recorder.is_muted and not recorder.is_closed and not _apart.get()


def _append(recorder: Recorder, name: str, bytes_in: int, bytes_out: int, random_elements: int) -> None:
    keywords = ((RANDOM_ELEMENTS, random_elements),) if random_elements else ()
    call = Call(name, (), keywords, (), (), 0, bytes_in, bytes_out, is_view=True, issuer=Issuer.HOST)
    recorder.append(call, lambda: call)
