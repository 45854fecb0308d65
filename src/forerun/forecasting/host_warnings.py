"""What crosses the link to the host in a step, and what is updated there: bytes, seconds, and what they rest on."""

from dataclasses import replace

from forerun.clock.costs import Costs
from forerun.clock.priors import HOST_LINK_SHARE, HOST_MEMORY_BYTES_PER_SECOND, elements_of
from forerun.trace import ADAM_PASSES, ADAM_TENSORS, BESIDE_HOST, HOST_BYTES, Call, Issuer, Trace
from forerun.units import GIB, format_bytes, format_bytes_per_second, format_seconds

UPDATE = "forerun.update_on_host_"
"""How operators begin that update weights on the host."""
WORTH_SAYING_BYTES = GIB
"""Bytes a step below which a copy is a batch, not an offload; a choice."""


def host_warnings(trace: Trace, costs: Costs) -> list[str]:
    """Sentences for the reader of a forecast; none where next to nothing crosses."""
    copies = [each for each in trace.warm_calls() if not each[0].name.startswith(UPDATE) and _carried(each[0])]
    carried = sum(times * _carried(call) for call, times in copies)
    warnings = []
    if carried > WORTH_SAYING_BYTES:
        seconds = sum(times * costs.device_seconds(call) for call, times in copies)
        warnings.append(
            f"{format_bytes(carried)} a step cross the link to the host in {format_seconds(seconds)}, at "
            f"{HOST_LINK_SHARE:.0%} of its stated rate: pinned memory is taken, and one device on the link."
        )
    return warnings + host_update_warnings(trace, costs)


def host_update_warnings(trace: Trace, costs: Costs) -> list[str]:
    """The same of what the host updates alone."""
    updates = [each for each in trace.warm_calls() if each[0].name.startswith(UPDATE)]
    warnings = []
    if updates:
        seconds = sum(times * costs.device_seconds(call) for call, times in updates)
        warnings.append(
            f"The host's update takes {format_seconds(seconds)} a step with host memory at "
            f"{format_bytes_per_second(HOST_MEMORY_BYTES_PER_SECOND)}, which is stated, not known of your machine."
        )
        passed = sum(times * elements_of(call.arguments[0]) * call.arguments[1] for call, times in updates)
        own, ranks = passed / ADAM_PASSES * ADAM_TENSORS, min(trace.world_size, trace.gpus_per_machine)
        machine = f", {format_bytes(own * ranks)} for the {ranks} of a machine" if ranks > 1 else ""
        warnings.append(
            f"Weights, gradients and moments that are updated there take at least {format_bytes(own)} of the host's "
            f"memory for each GPU{machine}, beside what the program itself needs."
        )
    return warnings


def without_host_work(trace: Trace) -> Trace:
    """A trace in which what the host computes itself takes no time."""
    idle = {"keywords": (), "bytes_read": 0, "bytes_written": 0}
    calls = [replace(call, **idle) if call.issuer == Issuer.HOST else call for call in trace.calls]
    return replace(trace, calls=calls)


def _carried(call: Call) -> int:
    if call.name.startswith(BESIDE_HOST):
        return sum(spec.bytes for spec in call.inputs)
    return dict(call.keywords).get(HOST_BYTES, 0)
