"""Costs from operators timed on the device at hand, with a fallback by bytes and FLOP for those that could not be."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.trace import Call


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds by distinct call, overhead per operator, and rates for calls that were not timed."""

    seconds: Mapping[Call, float]
    overhead_seconds: float
    bytes_per_second: float
    flops_per_second: float
    is_host: bool
    description: str = "operators timed on this device"
    evidence: str = "timed"
    missing: set[str] = field(default_factory=set)
    """Operators that had to fall back."""

    def host_seconds(self, call: Call) -> float:
        """Python and autograd around one operator; views are part of it."""
        return 0.0 if call.is_view else self.overhead_seconds

    def device_seconds(self, call: Call) -> float:
        """Timed seconds, else the larger of arithmetic and memory time at measured rates."""
        if call.is_view:
            return 0.0
        if call in self.seconds:
            return self.seconds[call]
        self.missing.add(call.name)
        return max(call.flops / self.flops_per_second, (call.bytes_read + call.bytes_written) / self.bytes_per_second)
