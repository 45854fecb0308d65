"""Steps on other hosts than the assumed one: whose processor feeds a GPU is seen when it is rented, not before."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.clock.costs import Costs, CostsAround
from forerun.clock.timeline import StepTime, replay_clock
from forerun.trace import Call, Trace

FAST_HOST, SLOW_HOST = 0.65, 1.6
"""Host time of an operator, as shares of the assumed one. Of three machines that launch-bound steps tell of, it was
fitted to two (`OPERATOR_HOST_SECONDS`); beside an H100 of 2026 the steps of twelve programs wanted 1.2 to 2.3 times as
much, in the median 1.5 (benchmarks/truth, docs/log.md), while lists of tensors had no price of their own; not fitted
anew since. The fast end, of a desktop processor, is stated."""
MEASURED_HOST = 0.9, 1.3
"""The same where the host's own time was measured: 23 us beside that H100, where the median program's steps say 31."""
LITTLE, FAR_AHEAD = 0.01, 0.7
"""Shares of a step: of waiting for the host, below which it is not looked at, and of all that the host does, below
which a slow one is still ahead."""


@dataclass(frozen=True)
class OtherHost(CostsAround):
    """The costs of a GPU whose host takes `factor` times as long for everything."""

    factor: float

    @property
    def communication_share(self) -> float:
        """As of the costs inside."""
        return getattr(self.costs, "communication_share", 0.0)

    def host_seconds(self, call: Call) -> float:
        """Time in which that host issues it."""
        return self.costs.host_seconds(call) * self.factor


def host_shares(steps: Iterable[tuple[Trace, StepTime]], costs: Costs) -> tuple[float, float]:
    """Seconds of all `steps` together on a fast and on a slow host, as shares of those on the assumed one.

    1 and 1 where the host is the device, and where it is far ahead of the GPU on any host.
    """
    steps = [(trace, time) for trace, time in steps if time.seconds]
    if costs.is_host or not steps:
        return 1.0, 1.0
    ends = MEASURED_HOST if getattr(costs, "calibration", None) else (FAST_HOST, SLOW_HOST)
    whole = sum(time.seconds for _, time in steps)
    fast, slow = (sum(_seconds(trace, time, OtherHost(costs, end)) for trace, time in steps) for end in ends)
    return min(1.0, fast / whole), max(1.0, slow / whole)


def _seconds(trace: Trace, assumed: StepTime, costs: OtherHost) -> float:
    """Seconds of a step with other costs of the host; those `assumed` where the host does not matter."""
    waits = assumed.phases.host_seconds > LITTLE * assumed.seconds
    counts = Counter(op.call for op in trace.ops).items()
    issuing = sum(n * costs.host_seconds(trace.calls[i]) * trace.calls[i].times for i, n in counts)
    return replay_clock(trace, costs).seconds if waits or issuing > FAR_AHEAD * assumed.seconds else assumed.seconds
