"""What crosses the link to the host in a step, and what is updated there: bytes, seconds, and what they rest on."""

from collections.abc import Iterable
from dataclasses import replace

from forerun.clock.costs import Costs
from forerun.clock.priors import HOST_LINK_SHARE, HOST_MEMORY_BYTES_PER_SECOND
from forerun.trace import BESIDE_HOST, HOST_BYTES, OP, Call, Issuer, Phase, Trace
from forerun.units import GIB, format_bytes, format_bytes_per_second, format_seconds

WORTH_SAYING_BYTES = GIB
"""Bytes a step below which a copy is a batch, not an offload; a choice."""


def host_warnings(trace: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast; none where next to nothing crosses."""
    calls = list(_warm_calls(trace))
    updates = [call for call in calls if call.name.startswith("forerun.update_on_host_")]
    copies = [call for call in calls if call not in updates and _carried(call)]
    carried = sum(_carried(call) for call in copies)
    warnings = []
    if carried > WORTH_SAYING_BYTES:
        seconds = sum(costs.device_seconds(call) for call in copies)
        warnings.append(
            f"{format_bytes(carried)} a step cross the link to the host in {format_seconds(seconds)}, at "
            f"{HOST_LINK_SHARE:.0%} of its stated rate: pinned memory is taken, and one device on the link."
        )
    if updates:
        seconds = sum(costs.device_seconds(call) for call in updates)
        warnings.append(
            f"The host's update takes {format_seconds(seconds)} a step with host memory at "
            f"{format_bytes_per_second(HOST_MEMORY_BYTES_PER_SECOND)}, which is stated, not known of your machine."
        )
    return warnings


def without_host_work(trace: Trace) -> Trace:
    """A trace in which what the host computes itself takes no time."""
    idle = {"keywords": (), "bytes_read": 0, "bytes_written": 0}
    calls = [replace(call, **idle) if call.issuer == Issuer.HOST else call for call in trace.calls]
    return replace(trace, calls=calls)


def _warm_calls(trace: Trace) -> Iterable[Call]:
    """Calls of one optimizer step; a traced second micro-step stands for all later ones."""
    for kind, index in trace.events[trace.warm_from :]:
        if kind == OP and trace.ops[index].phase is not Phase.PREPARE:
            op = trace.ops[index]
            yield from [trace.calls[op.call]] * trace.repeats(op.micro_step)


def _carried(call: Call) -> int:
    if call.name.startswith(BESIDE_HOST):
        return sum(spec.bytes for spec in call.inputs)
    return dict(call.keywords).get(HOST_BYTES, 0)
