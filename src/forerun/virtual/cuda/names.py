"""What a program calls `cuda` is the virtual device, in every torch call; and it comes back as `cuda`.

A `TorchFunctionMode` sees the device arguments of all of torch's functions. `FakeTensor.device` is a Python property
and shadows `Tensor.device` (torch/_subclasses/fake_tensor.py, 2.13): it answers `cuda:0` to the program and the virtual
device to what runs below the dispatcher, so that PyTorch's own Python code takes its CUDA branches.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._pytree import tree_map_only

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda.cards import VIRTUAL, CardsInUse, in_use, name_of, numbered, present, seeing_cards
from forerun.virtual.cuda.operand_types import binary_cross_entropy
from forerun.virtual.cuda.shadow import host_copy, shadow_of
from forerun.virtual.cuda.sparse_tensors import new_sparse, parts_of
from forerun.virtual.cuda.tensor_classes import replace_data
from forerun.virtual.process_state import default_device

FIRST = torch.device("privateuseone", 0)
_OTHERS: list[Callable[[int], None]] = []
"""What is told of cards with another number than this rank's, innermost session last."""
FROM_PYTHON = (torch.tensor, torch.as_tensor, torch.asarray)
READS_ARRAY = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__reversed__)
AS_ARRAY = (torch.Tensor.numpy, torch.Tensor.__array__)
"""Of these, what PyTorch refuses for tensors of a card (torch/csrc/utils/tensor_numpy.cpp, 2.13)."""
_PINNED = "_forerun_pinned"
"""Attribute of a tensor of the host that a card would read directly."""
_BELOW = threading.local()


def is_virtual(value: Any) -> TypeGuard[FakeTensor]:
    """Whether a value is a tensor of the virtual device."""
    return isinstance(value, FakeTensor) and value.fake_device.type == DEVICE


AS_THEY_ARE = {int, float, bool, type(None), FakeTensor, torch.nn.Parameter, torch.dtype}
"""Types of values that name no device."""


def to_virtual(value: Any) -> Any:
    """The virtual device for `cuda` in any form, in containers too; anything else as it is.

    A bare number is the accelerator's device of that number to PyTorch's own parsers (`Module.to(rank)`): of a rank
    other than the first, a second virtual device. The first keeps its number, which Inductor asks for.
    """
    kind = type(value)
    if kind in AS_THEY_ARE:  # most of what is handed on
        return value
    if kind is torch.device:
        return _device_below(value)
    if isinstance(value, str):
        if value.startswith("cuda:"):
            return to_virtual(torch._C.device(value))
        return present() if value == "cuda" else value
    if kind is tuple or kind is list:
        return kind([to_virtual(each) for each in value])
    if kind is dict:
        return {name: to_virtual(each) for name, each in value.items()}
    return value


def _device_below(device: torch.device) -> torch.device:
    cards = in_use()
    if device.type == "cuda":
        if device.index is None:
            return present()
        if cards.are_driven or device.index != cards.own:
            _tell_of_other(device.index)
        return torch.device("privateuseone", device.index) if cards.are_driven else VIRTUAL
    return FIRST if device.type == DEVICE and device.index and not cards.are_driven else device


@contextlib.contextmanager
def below_dispatcher() -> Iterator[None]:
    """While an operator runs: tensors say which device they are really on."""
    _BELOW.depth = getattr(_BELOW, "depth", 0) + 1
    try:
        yield
    finally:
        _BELOW.depth -= 1


def _tell_of_other(index: int) -> None:
    if _OTHERS:
        _OTHERS[-1](index)


@contextlib.contextmanager
def answering_cuda(cards: CardsInUse, note: Callable[[str, Any], None] | None = None) -> Iterator[None]:
    """Tensors of the virtual device say that they are on `cuda:0`, or on another of the machine's cards.

    What is put on the card of another rank is on this rank's, and `note` is told; a number that no card has is an error
    as CUDA raises it.
    """

    def tell(index: int) -> None:
        if index >= cards.count:
            raise torch.AcceleratorError(
                f"CUDA error: invalid device ordinal\ncuda:{index} was asked for, and the machine has {cards.count} GPU"
                f"{'s' if cards.count > 1 else ''}: forerun exec --gpus says how many a process drives, "
                "--nproc-per-node how many ranks there are."
            )
        if note is not None and not cards.are_driven:
            note(f"a tensor on cuda:{index}", f"counted on cuda:{cards.own}, memory and time alike")

    _OTHERS.append(tell)
    original: Any = FakeTensor.device

    def device(tensor: FakeTensor) -> torch.device:
        real = original.fget(tensor)
        return real if real.type != DEVICE or getattr(_BELOW, "depth", 0) else name_of(real)

    wrap: Any = torch._C.TensorBase._make_wrapper_subclass  # type: ignore[attr-defined]

    def make_wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        """A tensor that wraps others and says their device, with its number: to autograd one of CUDA would be nothing.

        Gradients are refused whose device has another number than the parameter's.
        """
        kwargs = to_virtual(kwargs)
        if kwargs.get("device") == present():
            kwargs["device"] = numbered()
        return wrap(*args, **kwargs)

    FakeTensor.device = property(device)  # type: ignore[assignment]
    torch.Tensor._make_wrapper_subclass = staticmethod(make_wrapper)  # type: ignore[attr-defined]
    try:
        with seeing_cards(cards):
            yield
    finally:
        _OTHERS.pop()
        FakeTensor.device = original
        del torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]


class CudaNames(TorchFunctionMode):
    """Maps device arguments, and answers what tensors say of their device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call of the program to torch."""
        kwargs = kwargs or {}
        if func is torch.device:  # an object that the program compares and prints; of a bare number, the accelerator's
            device = func(*args, **kwargs)
            return torch.device("cuda", device.index) if _is_number(args) else device
        answer = _ANSWERS.get(func)
        if answer is not None and args and isinstance(args[0], torch.Tensor):
            return answer(func, *args, **kwargs)
        if func in READS_ARRAY and isinstance(args[0], FakeTensor):
            if func in AS_ARRAY and is_virtual(args[0]) and not kwargs.get("force"):
                raise TypeError(
                    f"can't convert {name_of(args[0].fake_device)} device type tensor to numpy. Use Tensor.cpu() to "
                    f"copy the tensor to host memory first."
                )
            return func(host_copy(args[0]), *args[1:], **kwargs)
        if func in FROM_PYTHON:
            return _from_python(func, args, kwargs)
        if isinstance(kwargs.get("device"), int):  # torch.empty(2, device=torch.cuda.current_device())
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], torch.device("cuda", args[1]), *args[2:])
        return func(*to_virtual(args), **to_virtual(kwargs))


def _is_number(args: Any) -> bool:
    return bool(args) and isinstance(args[0], int)


@contextlib.contextmanager
def naming_in_backward() -> Iterator[None]:
    """Keep the mode during backward passes: `Tensor.backward` is a call of torch, inside which its mode is off."""
    engine: Any = torch.autograd
    original = engine._engine_run_backward  # of torch/autograd/graph.py (2.13)

    def run(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(mode, CudaNames) for mode in _get_current_function_mode_stack()):
            return original(*args, **kwargs)
        with CudaNames():
            return original(*args, **kwargs)

    engine._engine_run_backward = run
    try:
        yield
    finally:
        engine._engine_run_backward = original


@contextlib.contextmanager
def comparing_devices_by_name() -> Iterator[None]:
    """Let activation checkpointing compare what was saved with what is computed again where either is a wrapper.

    A wrapper such as DTensor is made below the dispatcher or above it, and says its device in two ways.
    """
    checks: Any = checkpoint._allowed_determinism_checks_to_fns  # of torch/utils/checkpoint.py:1078 (2.13)
    original = checks["default"]

    def describe(tensor: torch.Tensor) -> dict[str, Any]:
        properties = original(tensor)
        where = properties["device"]
        return properties | {"device": name_of(where) if where.type == DEVICE else where}

    checks["default"] = describe
    try:
        yield
    finally:
        checks["default"] = original


def _from_python(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """A tensor from Python values: made on the host and copied.

    Below the fake mode `torch.tensor(…, device=…)` would reach the real storage of the device slot, without values.
    """
    args = tree_map_only(FakeTensor, host_copy, args) if args and isinstance(args[0], list | tuple) else args
    device = to_virtual(kwargs.get("device") or default_device())
    if device is None or torch.device(device).type != DEVICE:
        tensor = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
        return pin(tensor) if kwargs.get("pin_memory") else tensor
    if args and isinstance(args[0], torch.Tensor):
        return args[0].to(device, dtype=kwargs.get("dtype"))
    options = {name: value for name, value in kwargs.items() if name not in ("device", "requires_grad", "pin_memory")}
    with torch.device("cpu"):
        tensor = func(*args, **options)
    return tensor.to(device).requires_grad_(bool(kwargs.get("requires_grad", False)))


def _new_tensor(func: Any, tensor: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
    """A tensor from Python values, with the dtype and device of another where none is stated."""
    options = {"dtype": tensor.dtype, "device": tensor.device, **{k: v for k, v in options.items() if v is not None}}
    return _from_python(torch.tensor, (data,), options)


def _new(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of data a copy, else what PyTorch makes of sizes (torch/csrc/utils/tensor_new.cpp, legacy_tensor_new, 2.13)."""
    if parts_of(tensor) is not None and len(args) == 3:
        return new_sparse(*args)
    if args and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
        return _new_tensor(func, tensor, args[0], **kwargs)
    return func(tensor, *args, **to_virtual(kwargs))


def _device(func: Any, tensor: torch.Tensor) -> torch.device:
    """Device of a wrapper such as DTensor, which has no Python property of its own."""
    real = func(tensor)
    return real if real.type != DEVICE or getattr(_BELOW, "depth", 0) else name_of(real)


def _is_cuda(func: Any, tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cuda"


def _cuda(func: Any, tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
    where = to_virtual(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")
    return tensor.to(where, non_blocking=non_blocking)


def _pinned(func: Any, tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return pin(tensor)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, in memory that a card reads directly."""
    if not is_virtual(tensor):
        setattr(tensor, _PINNED, True)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a card reads the memory of a tensor of the host directly."""
    return getattr(tensor, _PINNED, False)


def _get_device(func: Any, tensor: torch.Tensor) -> int:
    return tensor.device.index if tensor.device.type == "cuda" else -1


def _type(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not args and not kwargs:
        kind = func(host_copy(tensor)) if isinstance(tensor, FakeTensor) else func(tensor)
        return kind.replace("torch.", "torch.cuda.") if tensor.device.type == "cuda" else kind
    name = args[0] if args else kwargs.get("dtype")
    if isinstance(name, type) and getattr(name, "is_cuda", False):  # torch.cuda.FloatTensor
        return tensor.to(_same_or_present(tensor), name.dtype)
    if isinstance(name, str) and name.startswith("torch.cuda."):
        dtype = func(torch.empty(0, device="cpu"), name.replace("torch.cuda.", "torch.")).dtype
        return tensor.to(_same_or_present(tensor), dtype)
    return func(tensor, *args, **kwargs)


def _same_or_present(tensor: torch.Tensor) -> torch.device:
    return to_virtual(tensor.device) if tensor.device.type == "cuda" else present()


def _format(func: Any, tensor: torch.Tensor, spec: str) -> str:
    if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
        return format(tensor.item(), spec)
    return func(tensor, spec)


def _ctc_loss(
    func: Any, log_probs: torch.Tensor, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """With lengths as they are on the host, and reduced here: of fake tensors PyTorch divides by lengths left there.

    Source: aten/src/ATen/native/LossCTC.cpp (`ctc_loss`, 2.13).
    """
    most = log_probs.shape[0], targets.shape[-1] if targets.dim() > 1 else log_probs.shape[0]
    lengths = [_lengths(*each) for each in zip((input_lengths, target_lengths), most, strict=True)]
    losses = func(log_probs, targets, *lengths, blank, "none", zero_infinity)
    if reduction != "mean":
        return losses.sum() if reduction == "sum" else losses
    divisors = torch.as_tensor(target_lengths).clamp_min(1).to(to_virtual(losses.device), losses.dtype)
    return (losses / divisors).mean()


def _lengths(values: Any, most: int) -> Any:
    """Lengths as whole numbers; those of the device that nobody knows are the longest that there can be."""
    if not isinstance(values, torch.Tensor):
        return values
    if isinstance(values, FakeTensor) and shadow_of(values) is None:
        return [most] * values.numel()
    return host_copy(values).tolist()


def _text(func: Any, tensor: torch.Tensor, **kwargs: Any) -> str:
    if not isinstance(tensor, FakeTensor):
        return func(tensor, **kwargs)
    where = f", device='{tensor.device}'" if tensor.device.type == "cuda" else ""
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype}{where})"


def _index(func: Any, tensor: torch.Tensor, index: Any, *value: Any) -> Any:
    """Positions in lists of single numbers of the device are read below Python; stacked they are one tensor."""
    if type(index) is tuple and any(type(each) in (list, tuple) for each in index):
        index = tuple(map(_stacked, index))
    return func(tensor, index, *to_virtual(value))


def _stacked(position: Any) -> Any:
    numbers = type(position) in (list, tuple) and len(position) > 0 and all(map(_is_single, position))
    return torch.stack(tuple(position)) if numbers else position


def _is_single(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.dim() == 0


_ANSWERS: dict[Any, Any] = {
    torch.Tensor.__getitem__: _index,
    torch.Tensor.__setitem__: _index,
    torch.Tensor.device.__get__: _device,  # type: ignore[attr-defined]
    torch.Tensor.data.__set__: lambda func, tensor, new: replace_data(tensor, new),  # type: ignore[attr-defined]
    torch.Tensor.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    torch.Tensor.cuda: _cuda,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.new: _new,
    torch.Tensor.pin_memory: _pinned,
    torch.Tensor.is_pinned: lambda func, tensor, *_, **__: is_pinned(tensor),
    torch.Tensor.get_device: _get_device,
    torch.Tensor.type: _type,
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.nn.functional.binary_cross_entropy: binary_cross_entropy,
    torch.Tensor.__format__: _format,
    torch.Tensor.__repr__: _text,
}
