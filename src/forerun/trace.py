"""One traced training step as plain data (no torch): operators, storages and the order in which they live.

A `Trace` is written by the virtual GPU and read by two replays: memory (allocator) and clock. `events` is the step in
order; each is a pair `(kind, index)` where kind is ALLOCATE or FREE (index into `storages`) or OP (index into `ops`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """Part of a step in which something happened."""

    PREPARE = "prepare"
    """Placing parameters and creating optimizer state; before the warm step."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Issuer:
    """Who launches an operator: plain words, so that a trace that was stored is equal to one that was made."""

    EAGER = "eager"
    UPDATE = "update"
    """Eager code of an optimizer, which leaves no graph."""
    COMPILED = "compiled"
    MODULES = "modules"
    """Eager code of Megatron-Core's blocks."""
    EXPERTS = "experts"
    """Megatron-Core's dispatcher and grouped layers."""
    GRAPH = "graph"
    """A recorded CUDA graph."""
    HOST = "host"
    """Nobody: the host computes it itself. It launches nothing; bytes and random numbers are of host tensors."""


class Category(StrEnum):
    """What a storage holds, in the order of the memory breakdown."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    OTHER = "other"


RANDOM_ELEMENTS = "random_elements"
"""Keyword of a fused kernel: how many random numbers it draws."""
BETWEEN_RANKS = ("c10d.", "_c10d_functional.")
"""Prefixes of the names of operators that other ranks take part in."""
AWAITED = "_c10d_functional."
"""Prefix of those that the device waits for at once: what follows reads their results (tensor parallelism)."""
ROUTING = "Assumed: "
"""How an assumed value begins that says how rows reach experts: a sentence for the reader of a forecast."""
GROUP_SIZE, MACHINES = "group_size", "machines"
"""Keywords of such an operator: how many ranks take part, and in how many machines they are."""
RANKS, PEER, STREAM = "ranks", "peer", "stream"
"""More of them: the ranks that take part, by their numbers in the job; of `send` and `recv_` the other rank; the stream
that it was issued to, where that is not the default one."""
MESSAGES = ("c10d.send", "c10d.recv_")
"""Beginnings of the names of operators between two ranks."""
HOST_BYTES = "host_bytes"
"""Keyword of an operator: bytes that it carries between host and device."""
BYTES_READ, BYTES_WRITTEN, FACTORS = "bytes_read", "bytes_written", "factors"
"""Keywords of an operator whose work is stated: bytes, and the dtype of the factors of its products ("" without)."""
CARD, CARD_BYTES = "card", "card_bytes"
"""Keywords of an operator where one process drives several cards: the number of its card, if it is not the first; and
of a copy from another card, which both wait for, that card's number and the bytes."""
BESIDE_HOST = ("forerun.copy_to_host", "forerun.copy_from_host_", "forerun.update_on_host_")
"""Operators that move or update what lives on the host, beside the device's own work."""
ADAM_TENSORS, ADAM_PASSES = 4, 7
"""What an update on the host has of each parameter: gradient, weight, two moments. All are read, three are written."""
EMPTY_CACHE = "forerun.empty_cache.default"
"""`torch.cuda.empty_cache()`, as an operator without work: the allocator gives back what no tensor uses."""
ALLOCATE, FREE, OP = "allocate", "free", "op"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, stride (elements) and dtype of one tensor; `dtype` is torch's name without prefix, such as `bfloat16`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Named:
    """A torch constant among the arguments of a call, such as ("dtype", "float32") or ("device", "cpu")."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One distinct operator call: what costs time and bytes. Steps repeat few of them many times."""

    name: str
    """The aten overload, such as `aten.mm.default`."""
    arguments: tuple[Any, ...]
    """Positional arguments; keyword arguments are (name, value) pairs in `keywords`. Tensors are `TensorSpec`s."""
    keywords: tuple[tuple[str, Any], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    is_view: bool = False
    """Launches no kernel: only shapes or strides change."""
    syncs: bool = False
    """The host waits for the device."""
    issuer: str = Issuer.EAGER
    """One of `Issuer`."""
    times: int = 1
    """How many like it run in its place, as of tokens that are generated one after another; the rest is of one."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operator as it ran. `micro_step` counts from 0; it is -1 outside micro-steps."""

    call: int
    """Index into `Trace.calls`."""
    phase: Phase
    micro_step: int
    module: str
    recomputed: bool = False
    """Whether it runs a second time because of activation checkpointing."""


PARTIAL_BYTES = 4
"""Of one partial result of a reduction: sums of 16- and 32-bit numbers are made in float32."""


@dataclass(slots=True)
class Storage:
    """One allocation. `owner` is a category fixed when it was made; the replay derives the rest from lifetimes.

    `freed_in` is None where nothing frees it, and of what a forward pass made where one behind a backward pass does.
    """

    bytes: int
    phase: Phase
    owner: Category | None = None
    freed_in: Phase | None = None
    name: str = ""
    """Name in the model, of a parameter; empty otherwise."""
    stream: int = 0
    """Number of the stream that it was made on; the allocator keeps a pool for each."""
    card: int = 0
    """Number of the card that it is on, where one process drives several."""
    reduces: int = 0
    """Not 0: it is for partial results of a reduction of so many inputs to each output, `bytes` are those of one set of
    outputs, and the card says how many sets there are (`memory/reductions.py`)."""


@dataclass(slots=True)
class Trace:
    """One warm optimizer step and what was alive before it."""

    calls: list[Call] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    total_parameters: int = 0
    trainable_parameters: int = 0
    checkpoint_bytes: int = 0
    """Bytes of trainable parameters and optimizer state, what one checkpoint holds."""
    world_size: int = 1
    """Ranks, of which the trace shows one."""
    cards: int = 1
    """Cards that the process drives by itself, all of which the trace shows."""
    gpus_per_machine: int = 8
    network: str | Mapping[str, Any] | None = None
    """What joins the machines, as `forerun.clock.between_ranks.job_of` takes it; None where nobody said."""
    async_tensor: bool = False
    """What ranks of split layers exchange goes in parts beside the products next to it."""
    expert_overlap: bool = False
    """What goes to experts and back goes beside the computation of another micro-batch."""
    documents: str = ""
    """How packed documents are kept apart, in words; empty where nothing is packed."""
    paged_bytes: int = 0
    """Optimizer state in managed memory, outside PyTorch's allocator."""
    unpacked_expert_bytes: int = 0
    """Weights of experts that quantization left as they are: they are no linear layers."""
    narrow_bytes: int = 0
    """16-bit weights of a quantised model that are not packed."""
    unseen_parameters: int = 0
    """Of parts for images and sound, in a step that reads neither."""
    positions: int = 0
    """Tokens that a language model was made for, where it can be given longer sequences; 0 where it has no limit."""
    looped_tokens: int = 0
    """Tokens that a loop in Python goes through in each block, in a model that has one (RWKV)."""
    micro_batch_size: int = 0
    sequence_length: int = 0
    micro_steps: int = 1
    """Micro-steps traced: the first, one more that stands for all later ones, and the last where it does more."""
    accumulation: int = 1
    compute_dtype: str = "float32"
    """Dtype of the step's matrix products, whose peak mfu is measured against."""
    tf32: bool = False
    """fp32 matrix products may run on TF32 tensor cores: `torch.backends.cuda.matmul.allow_tf32`."""
    tf32_convolutions: bool = True
    """fp32 convolutions may: `torch.backends.cudnn.allow_tf32`."""
    is_deterministic: bool = False
    """`torch.use_deterministic_algorithms` is on."""
    allocator: str = ""
    """How the caching allocator is set, as `PYTORCH_ALLOC_CONF` has it; empty for PyTorch's defaults."""
    blocks_launches: bool = False
    """The host waits for every kernel: `CUDA_LAUNCH_BLOCKING=1`."""
    memory_fraction: float = 1.0
    """Share of the card that the process takes at most: `torch.cuda.set_per_process_memory_fraction`."""
    tries_algorithms: bool = False
    """`torch.backends.cudnn.benchmark` is on."""
    warm_from: int = 0
    """Index into `events` where the warm step begins; what is before only prepares it."""
    lines: dict[int, str] = field(default_factory=dict)
    """Index into `ops` → file and line of the program that called it; only where it was asked for."""
    math_attention: list[str] = field(default_factory=list)
    """Why attention fell back to plain arithmetic, each reason once."""
    assumed_values: list[str] = field(default_factory=list)
    """Reads of tensor values that the trace had to answer itself."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Where the default stream waits for what other ranks take part in: index into `events`, and index into `ops`."""
    failures: list[tuple[int, int]] = field(default_factory=list)
    """Requests that the card could not serve: index into `events` where each was made, and its bytes."""
    recovered_at: int = 0
    """Where a program that ran out of memory went on, as an index into `events`: what is before need not fit."""

    def repeats(self, micro_step: int) -> int:
        """How often a step runs what was traced of a micro-step, or of none (-1)."""
        is_last_apart = self.micro_steps > 2
        return self.accumulation - 1 - is_last_apart if micro_step == 1 else 1

    def warm_calls(self) -> Iterator[tuple[Call, int]]:
        """Calls of one optimizer step in order, each with how often a step makes it there."""
        for kind, index in self.events[self.warm_from :]:
            if kind == OP and self.ops[index].phase is not Phase.PREPARE:
                op = self.ops[index]
                yield self.calls[op.call], self.repeats(op.micro_step) * self.calls[op.call].times

    def part(self, begin: int, end: int) -> "Trace":
        """What happened in `events[begin:end]`, as a trace of its own, with what it waits for at its end."""
        events, inside = self.events[begin:end], {op for place, op in self.waits if place == end}
        if inside:  # else what was issued before is waited for, by what comes next
            inside.intersection_update([index for kind, index in events if kind == OP])
        waits = [(place - begin, op) for place, op in self.waits if begin <= place < end + (op in inside)]
        return replace(self, events=events, waits=waits, warm_from=0)

    def on_card(self, number: int) -> "Trace":
        """The same events with the memory of one card alone; storages of the others have no bytes."""
        storages = [each if each.card == number else replace(each, bytes=0) for each in self.storages]
        return self if self.cards == 1 else replace(self, storages=storages)
