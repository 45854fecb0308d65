"""Tensors that are large at the peak of memory and need not be there: attention matrices and logits."""

import math
from collections.abc import Callable
from typing import Literal

from forerun.memory.replay import MemoryReplay
from forerun.records import Record
from forerun.trace import ALLOCATE, FREE, OP, Call, TensorSpec, Trace
from forerun.units import format_bytes, format_percent

ATTENTION_SHARE, LOGITS_SHARE = 0.2, 0.4
"""Of the peak: below these another remedy comes first."""
LEAST_LENGTH, LEAST_VOCABULARY = 128, 8192
"""Positions of an attention matrix (windows are smaller) and classes of logits that are worth a word."""


class ProgramFinding(Record):
    """One thing about a program that its author may want to change."""

    kind: Literal[
        "grows", "no-gradient", "fp32-product", "fp64-product", "emulated-bf16", "host-sync", "waits-for-data",
        "attention-held", "logits-held", "accumulation-not-divided", "missing-sampler", "host-work",
        "fragmentation", "empties-cache",
    ]  # fmt: skip
    line: str
    bytes: int | None = None
    seconds: float | None = None
    text: str


def find_held_tensors(trace: Trace, memory: MemoryReplay) -> list[ProgramFinding]:
    """Findings about what is alive at the peak of `memory`."""
    matrices = {
        call.outputs[0].shape for call in trace.calls
        if "_softmax" in call.name and "log_softmax" not in call.name and _is_over_keys(call)
    }  # fmt: skip
    matrices |= {(math.prod(shape[:-2]), *shape[-2:]) for shape in matrices}  # as products take them
    classes = {shape[-1] for shape in _outputs_of(trace, "_log_softmax") if shape[-1] >= LEAST_VOCABULARY}
    alive = _alive(trace, memory.peak_event)
    findings = [
        _finding(
            "attention-held", alive, lambda shape: shape in matrices, ATTENTION_SHARE, memory,
            "attention matrices of every query and key; scaled_dot_product_attention (attn_implementation=\"sdpa\") or "
            "FlashAttention never stores them",
        ),
        _finding(
            "logits-held", alive, lambda shape: len(shape) >= 2 and shape[-1] in classes, LOGITS_SHARE, memory,
            "logits of the whole vocabulary and their gradients; a loss computed in chunks, such as Liger's fused "
            "linear cross-entropy, needs a fraction",
        ),
    ]  # fmt: skip
    return [each for each in findings if each is not None]


def _outputs_of(trace: Trace, part: str) -> set[tuple[int, ...]]:
    return {spec.shape for call in trace.calls for spec in call.outputs if part in call.name}


def _is_over_keys(call: Call) -> bool:
    """Whether a softmax is one of attention: over the last of at least three dimensions, between many positions."""
    shape = call.outputs[0].shape if call.outputs else ()
    return len(shape) >= 3 and call.arguments[1] in (-1, len(shape) - 1) and min(shape[-2:]) >= LEAST_LENGTH


def _alive(trace: Trace, end: int) -> list[tuple[TensorSpec, str]]:
    """Shape and line of each storage without an owner that is alive after the event `end`."""
    dead = {index for kind, index in trace.events[: end + 1] if kind == FREE}
    alive: list[tuple[TensorSpec, str]] = []
    births: list[int] = []
    for kind, index in trace.events[: end + 1]:
        if kind == ALLOCATE:
            births.append(index)
        elif kind == OP:  # storages are born before their operator is noted
            specs = {spec.bytes: spec for spec in trace.calls[trace.ops[index].call].outputs}
            for storage in births:
                spec = specs.get(trace.storages[storage].bytes)
                if spec is not None and storage not in dead and trace.storages[storage].owner is None:
                    alive.append((spec, trace.lines.get(index, "")))
            births = []
    return alive


def _finding(
    kind: Literal["attention-held", "logits-held"], alive: list[tuple[TensorSpec, str]],
    is_meant: Callable[[tuple[int, ...]], bool], share: float, memory: MemoryReplay, what: str,
) -> ProgramFinding | None:  # fmt: skip
    candidates = [(spec.bytes, line) for spec, line in alive if is_meant(spec.shape)]
    total = sum(size for size, _ in candidates)
    if total < share * memory.peak_allocated_bytes or not total:
        return None
    line = max(candidates)[1]
    part = format_percent(total / memory.peak_allocated_bytes)
    text = f"{format_bytes(total)} of the peak ({part}) are {what}. The largest was made at {line or 'no known line'}."
    return ProgramFinding(kind=kind, line=line, bytes=total, text=text)
