"""What a call of a module returns, without its tensors: enough to return the same again with new ones."""

import io
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import empty
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from forerun.virtual.cuda.call_keys import PLAIN
from forerun.virtual.cuda.names import is_virtual
from forerun.virtual.cuda.shadow import forget, shadow_of
from forerun.virtual.cuda.unknown import assume_numbers
from forerun.virtual.recorder import Recorder

CANNOT_BE_WRITTEN = (pickle.PicklingError, TypeError, AttributeError, NotImplementedError, RuntimeError, ValueError)
"""What pickling raises for objects that hold more than data: open files, locks, local functions."""


@dataclass(frozen=True)
class ResultTensor:
    """One new tensor of a call: where it lies in its storage, and whether gradients flow through it."""

    storage: int
    """Index in the trace."""
    storage_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    requires_grad: bool

    @property
    def fills_its_storage(self) -> bool:
        """Whether the storage holds nothing else."""
        extent = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)) + 1
        return not self.offset and 0 not in self.shape and extent * self.dtype.itemsize == self.storage_bytes


@dataclass(frozen=True)
class CallResults:
    """The results of a call: its new tensors, and everything around them."""

    tensors: tuple[ResultTensor, ...]
    pickled: bytes
    """The results as pickled, with the numbers of new tensors and of arguments in their places."""
    shared: tuple[torch.nn.Module, ...]

    @classmethod
    def of(
        cls, output: Any, arguments: list[Any], fresh: set[int], recorder: Recorder
    ) -> "tuple[CallResults, list[torch.Tensor]] | None":
        """The results and their tensors; None where they cannot be made again.

        `fresh` are the storages that the call made and that are still there.
        """
        stream = io.BytesIO()
        writer = _Writer(stream, arguments)
        try:
            writer.dump(output)
        except CANNOT_BE_WRITTEN:
            return None
        tensors = [_described(tensor, fresh, recorder) for tensor in writer.tensors]
        described = tuple(tensor for tensor in tensors if tensor is not None)
        if len(described) < len(tensors):
            return None
        return cls(described, stream.getvalue(), tuple(writer.modules)), writer.tensors

    def tensors_again(self, places: dict[int, int], recorder: Recorder) -> list[torch.Tensor]:
        """New tensors like those of the call, with values that nobody knows, in the storages `places` of the trace."""
        shared = Counter(each.storage for each in self.tensors)
        tensors: list[torch.Tensor] = []
        bases: dict[int, torch.Tensor] = {}
        with recorder.muted():
            for each in self.tensors:
                if each.fills_its_storage and shared[each.storage] == 1:  # no view: programs change losses in place
                    tensor = bases[each.storage] = _empty(each, tensors[0] if tensors else None)
                else:
                    whole = empty(each.storage_bytes, dtype=torch.uint8, device="cuda")
                    base = bases.setdefault(each.storage, whole)
                    tensor = base.view(each.dtype).as_strided(each.shape, each.stride, each.offset)
                tensors.append(tensor)
        for storage, base in bases.items():
            recorder.adopt(places[storage], base)
        for tensor in tensors:
            forget(tensor)
            assume_numbers([tensor])
        return tensors

    def around(self, tensors: list[torch.Tensor], arguments: list[Any]) -> Any:
        """The results with these tensors in them."""
        return _Reader(io.BytesIO(self.pickled), tensors, arguments, self.shared).load()


class _Writer(pickle.Pickler):
    """Pickles results; tensors and modules stay outside."""

    def __init__(self, stream: io.BytesIO, arguments: list[Any]):
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._arguments = {id(each): number for number, each in enumerate(arguments) if type(each) not in PLAIN}
        self._numbers: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []
        self.modules: list[torch.nn.Module] = []

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        """Where something that is not pickled comes from."""
        if id(obj) in self._arguments:
            return "argument", self._arguments[id(obj)]
        if isinstance(obj, torch.Tensor):
            if id(obj) not in self._numbers:
                self._numbers[id(obj)] = len(self.tensors)
                self.tensors.append(obj)
            return "tensor", self._numbers[id(obj)]
        if isinstance(obj, torch.nn.Module):
            self.modules.append(obj)
            return "module", len(self.modules) - 1
        return None


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote a moment ago in this process."""

    def __init__(self, stream: io.BytesIO, tensors: list[Any], arguments: list[Any], modules: tuple[Any, ...]):
        super().__init__(stream)
        self._places = {"tensor": tensors, "argument": arguments, "module": modules}

    def persistent_load(self, pid: tuple[str, int]) -> Any:
        """The object at a place."""
        return self._places[pid[0]][pid[1]]


def _empty(result: ResultTensor, example: torch.Tensor | None) -> torch.Tensor:
    """A tensor of its own storage; on the card of an example, where there is one, which takes a tenth of the time."""
    if not isinstance(example, FakeTensor):
        return torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="cuda")
    mode = example.fake_mode
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), in_kernel_invocation_manager(mode):
        bare = torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device="meta")
    return FakeTensor(mode, bare, example.fake_device)


def _described(tensor: torch.Tensor, fresh: set[int], recorder: Recorder) -> ResultTensor | None:
    """How to make a tensor again; None for what the call did not make, and for known counts and masks."""
    if not is_virtual(tensor) or type(tensor).__name__ != "FakeTensor":
        return None
    shadow, storage = shadow_of(tensor), recorder.storage_of(tensor)
    decides = shadow is not None and not shadow.is_assumed and not tensor.is_floating_point()
    if storage is None or storage not in fresh or decides:
        return None
    size = tensor.untyped_storage().nbytes()
    place = tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
    return ResultTensor(storage, size, *place, tensor.dtype, tensor.requires_grad)
