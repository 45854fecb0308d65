"""A trace as the bytes of a file, and back: compressed JSON, no pickle.

Equal records are written once and referred to by their place: a step repeats few of them many times. What comes back
is equal to what was written, but for arguments that are objects of PyTorch's (process groups), which no replay looks
at: of those the type's name is kept.
"""

import json
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from forerun.trace import ALLOCATE, FREE, OP, Call, Category, Named, Op, Phase, Storage, TensorSpec, Trace

EVENTS = {ALLOCATE: "a", FREE: "f", OP: "o"}
SPEC, NAMED, TUPLE, OBJECT = "s", "n", "t", "object"
COLUMNS = ("calls", "ops", "storages", "events", "waits", "failures", "lines")
"""Fields of a trace that are not written as they are."""
STORAGE, OPERATOR = (attrgetter(*(field.name for field in fields(record))) for record in (Storage, Op))
"""Their fields as a row; a step has 10,000 of them, and `dataclasses.asdict` copies every field."""
PLAIN = {field.name for field in fields(Trace)} - set(COLUMNS)


class Varying:
    """A number of traces that are laid over each other: its value in each (`size_polynomials.py`)."""

    KEY, KIND = "values", "kind"

    def __init__(self, values: Sequence[int], kind: str | None = None) -> None:
        self.values, self.kind = tuple(values), kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Varying) and (self.values, self.kind) == (other.values, other.kind)

    def __hash__(self) -> int:
        return hash((self.values, self.kind))

    def document(self) -> dict[str, Any]:
        """As it is written to a file."""
        return {self.KEY: self.values} | ({} if self.kind is None else {self.KIND: self.kind})


class _Table:
    """Distinct values in the order in which they came, and the place of each."""

    def __init__(self) -> None:
        self.places: dict[Hashable, int] = {}

    def place(self, value: Hashable) -> int:
        return self.places.setdefault(value, len(self.places))


def trace_bytes(trace: Trace) -> bytes:
    """The trace as a file."""
    specs, ops, storages = _Table(), _Table(), _Table()
    content = {name: getattr(trace, name) for name in sorted(PLAIN)}
    content["calls"] = [_call(call, specs) for call in trace.calls]
    content["op_places"] = [ops.place(op) for op in trace.ops]
    content["storage_places"] = [storages.place(STORAGE(each)) for each in trace.storages]
    content["ops"] = [OPERATOR(op) for op in ops.places]
    content["storages"] = list(storages.places)
    content["specs"] = [[spec.shape, spec.stride, spec.dtype, spec.bytes] for spec in specs.places]  # type: ignore[attr-defined]
    content["events"] = ["".join(EVENTS[kind] for kind, _ in trace.events), [index for _, index in trace.events]]
    content["waits"], content["failures"], content["lines"] = trace.waits, trace.failures, list(trace.lines.items())
    return zlib.compress(json.dumps(content, separators=(",", ":"), default=Varying.document).encode(), 1)


def read_trace(file: bytes, decode: Callable[[dict[str, Any]], Any] | None = None) -> Trace:
    """The trace of such a file; `decode` gives each number that was `Varying` its value, and leaves other objects."""
    content = json.loads(zlib.decompress(file), object_hook=decode)
    specs = [TensorSpec(tuple(shape), tuple(stride), dtype, size) for shape, stride, dtype, size in content["specs"]]
    phases, kinds = {phase.value: phase for phase in Phase}, {letter: kind for kind, letter in EVENTS.items()}
    ops = [Op(call, phases[phase], *rest) for call, phase, *rest in content["ops"]]
    owners = {category.value: category for category in Category} | {None: None}
    rows = [
        (size, phases[born], owners[owner], None if freed is None else phases[freed], *rest)
        for size, born, owner, freed, *rest in content["storages"]
    ]
    letters, indices = content["events"]
    return Trace(
        calls=[_read_call(call, specs) for call in content["calls"]],
        ops=[ops[place] for place in content["op_places"]],
        storages=[Storage(*rows[place]) for place in content["storage_places"]],
        events=[(kinds[letter], index) for letter, index in zip(letters, indices, strict=True)],
        waits=[(place, op) for place, op in content["waits"]],
        failures=[(place, size) for place, size in content["failures"]],
        lines={op: line for op, line in content["lines"]},
        **{name: content[name] for name in PLAIN},
    )


def _call(call: Call, specs: _Table) -> list[Any]:
    return [
        call.name, _plain(call.arguments, specs), _plain(call.keywords, specs),
        [specs.place(spec) for spec in call.inputs], [specs.place(spec) for spec in call.outputs],
        call.flops, call.bytes_read, call.bytes_written, call.is_view, call.syncs, call.issuer, call.times,
    ]  # fmt: skip


def _read_call(row: list[Any], specs: list[TensorSpec]) -> Call:
    name, arguments, keywords, inputs, outputs, *rest = row
    return Call(
        name, _read(arguments, specs), _read(keywords, specs),
        tuple(specs[place] for place in inputs), tuple(specs[place] for place in outputs), *rest,
    )  # fmt: skip


def _plain(value: Any, specs: _Table) -> Any:
    if value is None or isinstance(value, bool | int | float | str | Varying):
        return value
    if isinstance(value, TensorSpec):
        return {SPEC: specs.place(value)}
    if isinstance(value, Named):
        return {NAMED: [value.kind, value.name]}
    if isinstance(value, tuple):
        return {TUPLE: [_plain(item, specs) for item in value]}
    if isinstance(value, list):
        return [_plain(item, specs) for item in value]
    return {NAMED: [OBJECT, type(value).__name__]}


def _read(value: Any, specs: list[TensorSpec]) -> Any:
    if isinstance(value, Mapping):
        ((kind, content),) = value.items()
        if kind == SPEC:
            return specs[content]
        return Named(*content) if kind == NAMED else tuple(_read(item, specs) for item in content)
    return [_read(item, specs) for item in value] if isinstance(value, list) else value
