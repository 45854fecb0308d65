"""What interrupts a run, and what it costs to go on."""

from typing import Annotated

from pydantic import Field

from forerun.settings.section import Section

Seconds = Annotated[float, Field(ge=0)]


class SpotSettings(Section):
    """Machines that are cheaper and may be taken away; both numbers are those of your provider."""

    interruptions_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Times that one machine is taken away in an hour, in the mean."""
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the price on demand that is saved."""
    wait_seconds: Seconds = 0.0
    """Until there are machines again, in the mean; nothing is paid meanwhile."""


class ReliabilitySettings(Section):
    """How often a run is interrupted and what that costs; no step depends on it."""

    failures: Annotated[float, Field(gt=0)] | str | None = None
    """Hours between failures of one GPU and what belongs to it, or the name of a published cluster (`llama-3-405b`);
    `null`: nothing fails."""
    restart_seconds: Seconds | None = None
    """From a failure until training goes on; `null` takes start-up, compiling and reading a checkpoint."""
    checkpoint_wait_seconds: Seconds | None = None
    """Seconds that training stands still for one checkpoint; `null` takes the forecast's."""
    checkpoint_write_seconds: Seconds | None = None
    """From a checkpoint's moment until it is durable; `null` takes the forecast's."""
    spot: SpotSettings = SpotSettings()
    """Machines that may be taken away."""
