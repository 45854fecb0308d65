"""What PyTorch holds for a whole process and a program sets for itself: read by its names, and put back behind it."""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import backends

TF32 = "tf32"
cudnn: Any = backends.cudnn
"""Its parts are made when it is asked for them."""


class _State(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def convolutions_use_tf32() -> bool:
    """Whether convolutions of fp32 may run on TF32 tensor cores: they may, unless a program says otherwise.

    The older `torch.backends.cudnn.allow_tf32` refuses to answer once both ways of setting it were used.
    """
    return cudnn.conv.fp32_precision == TF32 and _libraries_may()


def products_use_tf32() -> bool:
    """Whether matrix products of fp32 may run on TF32 tensor cores: a program has to ask for it."""
    return backends.cuda.matmul.fp32_precision == TF32 and _libraries_may()


def _libraries_may() -> bool:
    """NVIDIA's libraries take no TF32 where `NVIDIA_TF32_OVERRIDE` is 0, whatever a program asks for (cuBLAS 13)."""
    return os.environ.get("NVIDIA_TF32_OVERRIDE", "").strip() != "0"


def default_device() -> torch.device | None:
    """What `torch.set_default_device` was given; to ask PyTorch for it would make a tensor there."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


@contextlib.contextmanager
def process_state_put_back() -> Iterator[None]:
    """Switches, default type and device, threads and random numbers are those of before, whatever is done meanwhile."""
    before = []
    for state in _states():
        with contextlib.suppress(RuntimeError):  # an older name that refuses to answer
            before.append((state.write, state.read()))
    shared = {name: dict(state) for name, state in _shared_by_accelerate().items()}
    try:
        yield
    finally:
        for write, value in before:
            write(value)
        for name, state in _shared_by_accelerate().items():
            state.clear()
            state.update(shared.get(name, {}))


def forget_accelerators() -> None:
    """A program of its own finds nothing that accelerators of this process share, such as their device."""
    for state in _shared_by_accelerate().values():
        state.clear()


def _shared_by_accelerate() -> dict[str, dict[str, Any]]:
    """What all of accelerate's accelerators have in common, which a second program would take for its own."""
    module = sys.modules.get("accelerate.state")
    names = ("PartialState", "AcceleratorState", "GradientState")
    return {} if module is None else {name: getattr(module, name)._shared_state for name in names}


def _states() -> Iterator[_State]:
    cuda, matmul = backends.cuda, backends.cuda.matmul
    yield _attribute(cudnn, "allow_tf32")  # to set an older name sets newer ones, which come behind it
    yield _State(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
    yield from (_attribute(part, "fp32_precision") for part in (backends, cudnn, matmul, cudnn.conv, cudnn.rnn))
    yield from (_attribute(cudnn, name) for name in ("benchmark", "deterministic"))
    yield from (_attribute(matmul, f"allow_{name}_reduced_precision_reduction") for name in ("fp16", "bf16"))
    yield _State(cuda.flash_sdp_enabled, cuda.enable_flash_sdp)
    yield _State(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp)
    yield _State(cuda.math_sdp_enabled, cuda.enable_math_sdp)
    yield _State(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp)
    yield _State(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode)
    yield _State(torch.is_grad_enabled, torch.set_grad_enabled)
    yield _State(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly)
    yield _State(torch.get_default_dtype, torch.set_default_dtype)
    yield _State(default_device, torch.set_default_device)
    yield _State(torch.get_num_threads, torch.set_num_threads)
    yield _State(torch.get_rng_state, torch.set_rng_state)
    yield _State(random.getstate, random.setstate)
    if "numpy" in sys.modules:
        import numpy

        yield _State(numpy.random.get_state, numpy.random.set_state)


def _attribute(owner: Any, name: str) -> _State:
    return _State(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
