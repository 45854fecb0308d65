"""Operator by operator: host tensors are real, tensors of the virtual device are fake and recorded.

The fake mode is active only while one operator runs, never around the program: tokenisers, collators, metrics and data
loaders work on real tensors. Large floating host tensors are fake from their birth, so that a model of 70 billion
parameters needs no memory before it moves to the device. Factories of tensors are bound here and in the modules beside
this one as they were imported: DeepSpeed's ZeRO-3 replaces PyTorch's while a model is made.
"""

import contextlib
import math
import re
import threading
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import empty
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from forerun.virtual.backend import DEVICE
from forerun.virtual.cuda import host_work
from forerun.virtual.cuda.cards import VIRTUAL, by_program_names, in_use
from forerun.virtual.cuda.names import below_dispatcher, is_pinned, is_virtual, pin, to_virtual
from forerun.virtual.cuda.operand_types import require_types
from forerun.virtual.cuda.peers import Peers, exchange
from forerun.virtual.cuda.shadow import (
    CHANCE,
    KEEPS_FIRST,
    as_if_alone,
    computed_here,
    forget,
    host_copy,
    know_filled,
    set_shadow,
    shadow_of,
    spread_shadows,
    tensors_in,
)
from forerun.virtual.cuda.sparse_tensors import is_sparse_work, run_sparse
from forerun.virtual.cuda.tensor_classes import bare_operands
from forerun.virtual.cuda.token_loops import loop_asks_for_its_end
from forerun.virtual.cuda.unknown import CONVERGED, READ, Assumptions, assume_values, assumed_results, results_on_host
from forerun.virtual.describe import device_of_fake, is_wrapper
from forerun.virtual.recorder import Recorder

aten = torch.ops.aten
FACTORIES = {aten.empty, aten.zeros, aten.ones, aten.randn, aten.rand, aten.full, aten.empty_strided, aten.normal}
COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of operators; the first returns a handle beside its results."""
LARGE_BYTES = 2**20
"""A floating host tensor of this size has no values: its memory would be that of the model's weights."""


class CudaDispatch(TorchDispatchMode):
    """Sends each operator to the host or to the virtual device; one lock, since a fake mode serves one thread."""

    lock = threading.RLock()

    def __init__(self, recorder: Recorder, fake: FakeTensorMode, assumptions: Assumptions, peers: Peers | None = None):
        super().__init__()
        self.recorder, self.fake, self.assumptions, self.peers = recorder, fake, assumptions, peers

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo may capture graphs while this mode is active."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator."""
        if any(map(is_wrapper, types)):  # its parts come back here
            return NotImplemented
        if func is torch.ops.prim.device.default and (device := device_of_fake(args[0])) is not None:
            return device
        with self.lock, below_dispatcher():
            with bare_operands(args, kwargs or {}) as (bare_args, bare_kwargs):
                result = self.run(func, bare_args, bare_kwargs)
            if func.namespace == "c10d":
                for tensor, values in exchange(self.peers, func, args, _known_values):
                    if isinstance(tensor, FakeTensor):
                        set_shadow(tensor, values, is_assumed=False)
                    else:
                        tensor.copy_(values)
            return result

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operator, from the host or from the device."""
        kwargs = to_virtual(kwargs)
        # operators of the compiler take the device by position: torch/_inductor/inductor_prims.py:71 (2.13)
        device = kwargs.get("device", next((each for each in args if isinstance(each, torch.device)), None))
        kind = "" if device is None else torch.device(device).type
        if kind != DEVICE and not any(isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            return self._on_host(func, args, kwargs, kind)
        require_types(func, args)
        if kwargs.get("generator") is not None:  # one of the host, which the device's operators do not take
            kwargs = {**kwargs, "generator": None}
        if is_sparse_work(func, args, kwargs):
            return run_sparse(self, func, args, kwargs)
        special = _SPECIAL.get(func._overloadpacket)
        host_work.note_staging(self.recorder, func, args, kwargs)
        result = NotImplemented if special is None else special(self, func, args, kwargs)
        if result is NotImplemented:
            result = self.on_device(func, args, kwargs)
        host_work.note_work(self.recorder, func, args, kwargs, result)
        return result

    def _on_host(self, func: Any, args: Any, kwargs: dict[str, Any], kind: str) -> Any:
        """Run an operator on tensors of the host; large ones are fake, too, and none is pinned in fact."""
        if func._overloadpacket is aten.is_pinned:  # DDP's reducer insists on it (reducer.cpp:792, 2.13)
            return is_pinned(args[0])
        pins = kwargs.get("pin_memory")
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        is_large = kind in ("", "cpu") and _is_large(func, args, kwargs)
        if func._overloadpacket is aten.multinomial and not args[0].any():  # copied from the device, without values
            args = (torch.ones_like(args[0]), *args[1:])
        with self.fake if is_large else contextlib.nullcontext():
            output = func(*args, **kwargs)
        if is_large:
            know_filled(func, args, kwargs, output)
        host_work.note_work(self.recorder, func, args, kwargs, output)
        return pin(output) if pins else output

    def on_device(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator on fake tensors, record it, and follow the values that are known."""
        values = computed_here(func, args, kwargs)
        try:
            with self.fake, self.recorder:
                outputs = func(*self._without_constants(func, args), **kwargs)
        except DynamicOutputShapeException:
            return self._of_unknown_size(func, args, kwargs, values)
        except (UnsupportedOperatorException, NotImplementedError):  # no fake kernel
            return self._like_the_host(func, args, kwargs)
        except RuntimeError as error:
            if (words := _of_two_devices(error)) is None:
                raise
            raise RuntimeError(by_program_names(words)) from None
        for tensor in tensors_in((outputs,)):
            if isinstance(tensor, FakeTensor) and tensor.constant is not None and is_virtual(tensor):
                tensor.constant = None  # would be computed on its device, which computes nothing
        if values is not None:
            spread_shadows(outputs, values[0], is_assumed=values[1])
        elif func.namespace in COLLECTIVES and (as_if_alone(func, args, outputs) or func.namespace == "c10d"):
            pass
        elif func._overloadpacket not in KEEPS_FIRST:
            if func._schema.is_mutable:
                for tensor, argument in zip(args, func._schema.arguments, strict=False):
                    if argument.is_write:
                        for each in tensors_in(tensor):
                            forget(each)
            know_filled(func, args, kwargs, outputs)
            assume_values(func, args, kwargs, outputs)
        return outputs

    def _without_constants(self, func: Any, args: Any) -> Any:
        """A single number on its way to one of several cards as a fake tensor.

        Else the fake mode copies it in fact (`may_turn_const`), and there is one device in fact.
        """
        if not in_use().are_driven or func._overloadpacket is not aten._to_copy or isinstance(args[0], FakeTensor):
            return args
        return self.fake.from_tensor(args[0]), *args[1:]

    def _of_unknown_size(self, func: Any, args: Any, kwargs: dict[str, Any], values: tuple[Any, bool] | None) -> Any:
        """Results whose size depends on values: the right size where these are known, else as many as there can be."""
        results, is_assumed = assumed_results(func, args, kwargs) if values is None else values
        if is_assumed:
            count = next(tensors_in(args)).numel()
            masks = list(tensors_in(args[1:])) or list(tensors_in(args))
            follows = values is not None or all(shadow_of(mask) is not None for mask in masks)
            answer = "as many as the values assumed before give" if follows else "all of them"
            self.assumptions.note(f"{func._overloadpacket} of {count} values", answer)
        outputs = self._recorded(func, args, kwargs, results)
        if not any(each.is_meta for each in tensors_in((results,))):
            spread_shadows(outputs, results, is_assumed=is_assumed)
        return outputs

    def _like_the_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Results of an operator without a fake kernel: what it changes in place, or the shapes that the host finds."""
        if func.namespace == "c10d" and len(func._schema.returns) == 1:  # `…_coalesced_`: it fills what it is handed
            # only the operator itself hands out a `Work` that the dispatcher takes
            without_values = pytree.tree_map_only(
                torch.Tensor, lambda each: empty(0, dtype=each.dtype, device="cpu"), args
            )
            work = func(*without_values, **kwargs)
            self.recorder.record(func, args, kwargs, work)
            as_if_alone(func, args, None)
            return work
        if not func._schema.is_mutable:
            outputs = self._recorded(func, args, kwargs, results_on_host(func, args, kwargs)[0])
        else:
            changed = [a for a, p in zip(args, func._schema.arguments, strict=False) if p.is_write]
            outputs = (changed[0] if len(changed) == 1 else tuple(changed)) if func._schema.returns else None
            self.recorder.record(func, args, kwargs, outputs)
            for tensor in tensors_in(changed):
                forget(tensor)
        assume_values(func, args, kwargs, outputs)
        return outputs

    def _recorded(self, func: Any, args: Any, kwargs: dict[str, Any], results: Any) -> Any:
        """Tensors of the device like `results`, as made by an operator."""
        place = next((each.fake_device for each in tensors_in((args, kwargs)) if is_virtual(each)), VIRTUAL)
        with self.fake, self.recorder.muted():
            outputs = pytree.tree_map_only(
                torch.Tensor, lambda each: empty(each.shape, dtype=each.dtype, device=place), results
            )
        self.recorder.record(func, args, kwargs, outputs)
        return outputs

    def _to_copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        device, source = kwargs.get("device"), args[0]
        if device is None or torch.device(device).type != "cpu":
            return NotImplemented
        with self.fake, self.recorder:
            copy = func(*args, **kwargs)
        if copy.is_floating_point() and copy.numel() * copy.element_size() >= LARGE_BYTES:
            return copy
        shadow = shadow_of(source)
        if is_virtual(source) and (shadow is None or shadow.is_assumed):
            chance = getattr(source, CHANCE, 0)
            value = f"{chance:.3g} each" if chance else "zeros" if shadow is None else shadow.value.tolist()
            self.assumptions.note(_copied(source), value)
        return host_copy(source, copy.dtype)

    def _copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        if isinstance(target, FakeTensor):
            shadow = shadow_of(source)
            if shadow is None or shadow_of(target) is not None or shadow.value.numel() > 1024:
                return NotImplemented
            result = self.on_device(func, args, kwargs)
            set_shadow(target, shadow.value.expand(target.shape).to(target.dtype, copy=True), is_assumed=False)
            return result
        if shadow_of(source) is None:
            self.assumptions.note(_copied(source), "the values before")
            return target
        return func(target, host_copy(source), *args[2:], **kwargs)

    def _local_scalar(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        shadow = shadow_of(tensor)
        with self.fake, self.recorder, self.recorder.answering(False):
            answer = self.recorder.__torch_dispatch__(func, (), args, kwargs) if is_virtual(tensor) else 0
        if shadow is None or shadow.is_assumed:
            answer = answer if shadow is None else shadow.value.item()
            if loop_asks_for_its_end():
                return answer
            is_truth = tensor.dtype == torch.bool and self.assumptions.truth is not None
            answer = self.assumptions.truth if is_truth else answer
            if end := self.assumptions.loops.end(answer, len(self.recorder.trace.ops)):
                if end.turns:
                    self.assumptions.note(CONVERGED, f"after {end.turns} turns", end)
                return end.answer
            answer = self.assumptions.progress.answer(answer)
            if is_truth and self.assumptions.truth_is_stated:
                return answer
            self.assumptions.note(READ.format(str(tensor.dtype).removeprefix("torch.")), answer)
            return answer
        return shadow.value.item()

    def _is_nonzero(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """`bool(tensor)` where PyTorch does not take it apart itself, as DTensor's random numbers ask it."""
        return bool(self._local_scalar(aten._local_scalar_dense.default, args, kwargs))

    def _equal(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        values = computed_here(func, args, kwargs)
        if values is not None:
            return values[0]
        self.assumptions.note("torch.equal of device tensors", True)
        return args[0].shape == args[1].shape

    def _allclose(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """The kernels that it consists of, and the read of their result."""
        with self:
            return bool(torch.isclose(*args, **kwargs).all())


_SPECIAL: dict[Any, Any] = {
    aten._to_copy: CudaDispatch._to_copy,
    aten.copy_: CudaDispatch._copy,
    aten._local_scalar_dense: CudaDispatch._local_scalar,
    aten.is_nonzero: CudaDispatch._is_nonzero,
    aten.equal: CudaDispatch._equal,
    aten.allclose: CudaDispatch._allclose,
}


def _of_two_devices(error: RuntimeError) -> str | None:
    """CUDA's words for an operator whose tensors are on two devices; None for another error."""
    message = str(error)
    if old := re.search(r"found two different devices (\S+), (\S+)", message):  # PyTorch 2.11
        first, second = old.groups()
        return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    return message if "found at least two devices" in message else None


def _known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    shadow = shadow_of(tensor)
    return None if shadow is None else shadow.value


def _copied(source: torch.Tensor) -> str:
    return f"{str(source.dtype).removeprefix('torch.')} values copied to the host"


def _is_large(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    if func._overloadpacket not in FACTORIES or not args or not isinstance(args[0], list | tuple):
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return dtype.is_floating_point and math.prod(map(int, args[0])) * dtype.itemsize >= LARGE_BYTES
