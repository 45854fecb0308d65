"""Traces made in a process of their own where a CUDA device is here, so that this process can train on it.

PyTorch takes a renamed out-of-tree device for the accelerator of the whole process, before a CUDA device that is there
too, and nothing takes that back (`at::getAccelerator`, `aten/src/ATen/DeviceAccelerator.cpp`, 2.11 to 2.13). From then
on memory that is not pinned for CUDA by name cannot be pinned, and autograd follows no streams of CUDA. Seen on an H100
with PyTorch 2.11: `forerun run` stopped at the first batch that it trained on.

The other process sees no GPU. It lives as long as this one and makes one trace after the other.
"""

import atexit
import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from forerun.errors import ForerunError
from forerun.forecasting.shared_traces import watched_device
from forerun.forecasting.trace_file import read_trace, trace_bytes
from forerun.hardware.catalogue import Device
from forerun.noise import quieten_libraries
from forerun.trace import Trace

SERVE = "from forerun.forecasting.apart import serve; serve()"
LENGTH = struct.Struct("<Q")
_lock = threading.Lock()
_worker: subprocess.Popen[bytes] | None = None
_only_forecasts = False


def only_forecasts() -> None:
    """Nothing is trained in this process: traces are made here, which saves the start of another."""
    global _only_forecasts
    _only_forecasts = True


def torch_is_changed() -> bool:
    """Whether this process has switches of PyTorch that decide kernels otherwise than a fresh process has."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    cuda = torch.backends.cuda
    kernels = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return (
        not all((*kernels, cuda.cudnn_sdp_enabled()))
        or modes > 0
        or torch.get_default_dtype() is not torch.float32
        or torch.are_deterministic_algorithms_enabled()
    )


def is_needed() -> bool:
    """Whether this process may train on a CUDA device that is here, and has no virtual device yet."""
    if _only_forecasts or torch_is_changed():
        return False
    import torch

    from forerun.virtual.registration import is_registered

    return torch.cuda.is_available() and not is_registered()


def trace_apart(
    function: Callable[..., Any], device: Device, settings: Any, workload: Any, *more: Any, **options: Any
) -> Any:
    """`function(settings, workload, device, *more, **options)`, a function of `forerun.virtual` that returns traces.

    It is called here where that harms nothing, and where the other process cannot: the workload is of a class that it
    does not have, or it ended.

    Raises:
        ForerunError: what the function raises.
    """
    answer = None
    if device.__dict__["kind"] == "cuda" and is_needed():
        plain = Device.model_construct(**device.__dict__)  # asks for no fact: those asked for are noted
        question = _bytes_of((function, plain, settings, workload, more, options))
        answer = None if question is None else _answer_to(question)
    if answer is None:
        return function(settings, workload, device, *more, **options)
    error, questions, is_list, files = answer
    if error is not None:
        raise error
    for name in questions:  # who watches this device learns what the trace follows from
        getattr(device, name)
    traces = [None if file is None else read_trace(file) for file in files]
    return traces if is_list else traces[0]


class _WithoutTensors(pickle.Pickler):
    """Refuses tensors: a workload that holds a model (a Trainer's) is not sent with its weights."""

    def reducer_override(self, obj: Any) -> Any:
        torch: Any = sys.modules["torch"]
        if isinstance(obj, torch.Tensor):
            raise pickle.PicklingError("a tensor")
        return NotImplemented


def _bytes_of(question: Any) -> bytes | None:
    """None for what cannot be sent: a class of a notebook, an open file, a tensor."""
    file = io.BytesIO()
    try:
        _WithoutTensors(file, pickle.HIGHEST_PROTOCOL).dump(question)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return file.getvalue()


def _answer_to(question: bytes) -> Any:
    """The other process's answer; None where it has none."""
    global _worker
    with _lock:
        _worker = _worker or _start()
        answer = None
        try:
            _send(_worker.stdin, question)
            answer = _receive(_worker.stdout)
        except (BrokenPipeError, EOFError):
            pass
        finally:
            if answer is None:  # interrupted, or it is gone: an answer that comes later is to no later question
                _end()
    return None if answer is None else pickle.loads(answer)


def _start() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
    worker = subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}, start_new_session=True,
    )  # fmt: skip
    atexit.register(end)
    return worker


def end() -> None:
    """End the other process, where there is one: its memory is wanted for training."""
    with _lock:
        _end()


def _end() -> None:
    global _worker
    if _worker is not None:
        _worker.kill()
        with contextlib.suppress(BrokenPipeError):
            _worker.communicate()  # closes the pipes
        _worker = None


def _send(pipe: IO[bytes] | None, content: bytes) -> None:
    assert pipe is not None
    pipe.write(LENGTH.pack(len(content)) + content)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return pipe.read(LENGTH.unpack(head)[0])


def serve() -> None:
    """Answer questions from standard input until it ends: what the other process does."""
    quieten_libraries()
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        try:
            question = _receive(questions)
        except EOFError:
            return
        _send(answers, pickle.dumps(_answer(question)))


def _answer(question: bytes) -> Any:
    try:
        function, device, settings, workload, more, options = pickle.loads(question)
    except (pickle.UnpicklingError, AttributeError, ImportError):  # a class of the asking program's own
        return None
    watched, questions = watched_device(device)
    try:
        result = function(settings, workload, watched, *more, **options)
    except ForerunError as error:
        return error, set(), False, []
    traces: list[Trace | None] = result if isinstance(result, list) else [result]
    files = [None if trace is None else trace_bytes(trace) for trace in traces]
    return None, questions, isinstance(result, list), files
