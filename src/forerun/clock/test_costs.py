"""Costs around others answer as those inside, and change what a subclass says."""

from dataclasses import dataclass

from forerun.clock.costs import CostsAround
from forerun.clock.test_timeline import FORWARD, FixedCosts, trace_of
from forerun.clock.timeline import replay_clock

CALL = trace_of().calls[0]


@dataclass(frozen=True)
class TwiceAsSlow(CostsAround):
    """A device of half the speed."""

    def device_seconds(self, call):
        """Twice the seconds."""
        return 2 * self.costs.device_seconds(call)


def test_what_is_not_changed_is_as_inside():
    inside = FixedCosts(host=0.25, device=3.0, is_host=True)
    inside.evidence = "measured"
    around = CostsAround(inside)
    assert (around.description, around.evidence, around.is_host) == ("fixed", "measured", True)
    assert (around.device_seconds(CALL), around.host_seconds(CALL)) == (3.0, 0.25)


def test_what_is_changed_is_what_a_step_takes():
    slow = TwiceAsSlow(FixedCosts(host=0.0, device=3.0))
    assert replay_clock(trace_of((*FORWARD, 0), (*FORWARD, 0)), slow).seconds == 12.0
