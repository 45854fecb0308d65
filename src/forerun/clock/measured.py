"""Costs from operators timed on the device at hand, with a fallback by bytes and FLOP for those that could not be."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from forerun.trace import RANDOM_ELEMENTS, Call


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds by distinct call, overhead per operator, and rates for calls that were not timed."""

    seconds: Mapping[Call, float]
    overhead_seconds: float
    copy_bytes_per_second: Mapping[int, float]
    """Bytes read and written per second by a copy, by the bytes of the copied tensor: caches are faster."""
    flops_per_second: float
    is_host: bool
    random_seconds: float = 0.0
    """Seconds of a random number in a compiled kernel."""
    description: str = "operators timed on this device"
    evidence: str = "timed"
    missing: set[str] = field(default_factory=set)
    """Names of operators that were not timed and had to fall back."""

    def host_seconds(self, call: Call) -> float:
        """Seconds of Python and autograd around one operator; views are counted with the operators beside them."""
        return 0.0 if call.is_view else self.overhead_seconds

    def device_seconds(self, call: Call) -> float:
        """Timed seconds, else the larger of arithmetic and memory time at measured rates."""
        if call.is_view:
            return 0.0
        if call in self.seconds:
            return self.seconds[call]
        self.missing.add(call.name)
        random_seconds = dict(call.keywords).get(RANDOM_ELEMENTS, 0) * self.random_seconds
        return random_seconds + max(
            call.flops / self.flops_per_second, self._copy_seconds(call.bytes_read + call.bytes_written)
        )

    def _copy_seconds(self, moved_bytes: int) -> float:
        """Seconds to read and write so many bytes, at the speed of a copy of that size."""
        sizes = sorted(self.copy_bytes_per_second)
        speed = np.interp(
            np.log(max(1, moved_bytes / 2)), np.log(sizes), [self.copy_bytes_per_second[s] for s in sizes]
        )
        return moved_bytes / float(speed)
