"""One traced training step as plain data (no torch): operators, storages and the order in which they live.

A `Trace` is written by the virtual GPU and read by two replays: memory (allocator) and clock. `events` is the step in
order; each is a pair `(kind, index)` where kind is ALLOCATE or FREE (index into `storages`) or OP (index into `ops`).
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Part of a step in which something happened."""

    PREPARE = "prepare"
    """Placing parameters and creating optimizer state; before the warm step."""
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Category(StrEnum):
    """What a storage holds, in the order of the memory breakdown."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    OTHER = "other"


ALLOCATE, FREE, OP = "allocate", "free", "op"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of one tensor; `dtype` is torch's name without the prefix, such as `bfloat16`."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call. `micro_step` counts from 0; it is -1 outside micro-steps."""

    name: str
    phase: Phase
    micro_step: int
    module: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    is_view: bool = False
    """Launches no kernel: only shapes or strides change."""
    syncs: bool = False
    """The host waits for the device."""
    recomputed: bool = False
    """Runs a second time because of activation checkpointing."""


@dataclass(slots=True)
class Storage:
    """One allocation. `owner` is a category fixed when it was made; the replay derives the rest from lifetimes."""

    bytes: int
    phase: Phase
    owner: Category | None = None
    freed_in: Phase | None = None


@dataclass(slots=True)
class Trace:
    """One warm optimizer step and what was alive before it."""

    ops: list[Op] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    total_parameters: int = 0
    trainable_parameters: int = 0
    checkpoint_bytes: int = 0
    """Bytes of trainable parameters and optimizer state, what one checkpoint holds."""
    micro_batch_size: int = 0
    sequence_length: int = 0
    micro_steps: int = 1
    """Micro-steps traced: the first, and one more that stands for all later ones."""
    accumulation: int = 1
    compute_dtype: str = "float32"
    """Dtype of the step's matrix products, whose peak mfu is measured against."""
    assumed_values: list[str] = field(default_factory=list)
    """Reads of tensor values that the trace had to answer itself."""
