"""safetensors files of which shapes matter and values seldom do.

A file begins with the length of its header and the header, JSON with dtype, shape and place of each tensor (safetensors
0.6, README, section Format). Files that a program saves have no place for tensors whose values nobody knows.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import torch
from torch import empty, zeros
from torch._subclasses.fake_tensor import FakeTensor

from forerun.virtual.cuda.dispatch import LARGE_BYTES
from forerun.virtual.cuda.shadow import shadow_of

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "C64": torch.complex64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
"""A safetensors file begins with the length of its header in bytes."""


class HeaderFile:
    """A safetensors file of which the header is read, and small tensors; `safetensors.safe_open` as loaders call it."""

    def __init__(self, source: Any, framework: str = "pt", device: Any = "cpu", **_: Any):
        self._source, self._device = source, device
        with self._open() as file:
            length = LENGTH.unpack(file.read(LENGTH.size))[0]
            header = json.loads(file.read(length))
        self._data_at = LENGTH.size + length
        self._metadata = header.pop("__metadata__", None)
        self._entries: dict[str, Any] = header

    def _open(self) -> BinaryIO:
        if hasattr(self._source, "read"):
            self._source.seek(0)
            return _LeftOpen(self._source)  # type: ignore[return-value]
        return open(self._source, "rb")

    def __enter__(self) -> "HeaderFile":
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to close."""

    def keys(self) -> list[str]:
        """Names of the tensors."""
        return list(self._entries)

    offset_keys = keys

    def metadata(self) -> Any:
        """What the writer noted."""
        return self._metadata

    def get_slice(self, name: str) -> "HeaderSlice":
        """A tensor that is made when it is indexed."""
        return HeaderSlice(self, name, self._entries[name])

    def get_tensor(self, name: str) -> torch.Tensor:
        """A tensor of the right shape; with values where it is small."""
        return self.get_slice(name)[...]

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors."""
        return ((name, self.get_tensor(name)) for name in self._entries)

    def read(self, name: str) -> torch.Tensor:
        """A tensor with its values, on the host."""
        entry = self._entries[name]
        begin, end = entry["data_offsets"]
        with self._open() as file:
            file.seek(self._data_at + begin)
            content = bytearray(file.read(end - begin))
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(content, dtype=dtype) if content else empty(0, dtype=dtype, device="cpu")
        return flat.reshape(entry["shape"])

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device that the file was opened for."""
        return tensor.to(self._device)


class _LeftOpen:
    """A buffer that a `with` leaves open."""

    def __init__(self, buffer: BinaryIO):
        self._buffer = buffer

    def __enter__(self) -> BinaryIO:
        return self._buffer

    def __exit__(self, *exception: object) -> None:
        """The buffer is its owner's."""


class HeaderSlice:
    """One tensor of a `HeaderFile`."""

    def __init__(self, file: HeaderFile, name: str, entry: Mapping[str, Any]):
        self._file, self._name, self._entry = file, name, entry

    def get_shape(self) -> list[int]:
        """Lengths of its dimensions."""
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        """The header's name of its dtype."""
        return self._entry["dtype"]

    def __getitem__(self, index: Any) -> torch.Tensor:
        dtype, shape = DTYPES[self.get_dtype()], self.get_shape()
        if dtype.is_floating_point and math.prod(shape) * dtype.itemsize >= LARGE_BYTES:
            return self._file.place(empty(shape, dtype=dtype, device="cpu")[index])
        has_values = self._entry["data_offsets"] is not None
        whole = self._file.read(self._name) if has_values else zeros(shape, dtype=dtype, device="cpu")
        return self._file.place(whole[index])


def load_tensors(filename: Any, device: Any = "cpu", **_: Any) -> dict[str, torch.Tensor]:
    """`safetensors.torch.load_file`: every tensor of a file, on a device."""
    return dict(HeaderFile(filename, device=device).items())


def tensor_file(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None, dtype: torch.dtype | None = None
) -> bytes:
    """The content of a safetensors file: all shapes, and the values that are known; `dtype` replaces that of floats."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = bytearray()
    for name, tensor in tensors.items():
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        values = _values(tensor)
        offsets = None
        if values is not None:
            content = values.to(kind).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            offsets = [len(data), len(data) + len(content)]
            data += content
        entries[name] = {"dtype": NAMES[kind], "shape": list(tensor.shape), "data_offsets": offsets}
    header = json.dumps(entries).encode()
    return LENGTH.pack(len(header)) + header + bytes(data)


def _values(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's values on the host, where they are known and worth their bytes."""
    if tensor.is_meta:
        return None
    shadow = shadow_of(tensor)
    if shadow is not None:
        return shadow.value.detach()
    is_here = not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"
    return tensor.detach() if is_here and tensor.numel() * tensor.element_size() < LARGE_BYTES else None
