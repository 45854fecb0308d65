"""The time of a whole job from the steps of its ranks: what a rank alone does not know of is how long it waits."""

from collections.abc import Mapping

from forerun.clock.job_step import JobStep, RankStep, job_step
from forerun.records import Range, RunForecast, StepForecast, StepPhases


class JobTime:
    """The step of a job, played by one rank of each kind.

    Raises:
        UnmatchedExchange: the ranks do not exchange the same things.
    """

    def __init__(self, steps: Mapping[int, RankStep]):
        self.job: JobStep = job_step(list(steps.values()))
        self._alone = {rank: job_step([step]).seconds for rank, step in steps.items()}

    def factor(self, rank: int) -> float:
        """What the job's step is of the one that `rank` would have if nobody were late."""
        return self.job.seconds / self._alone[rank] if self._alone[rank] else 1.0

    def step(self, rank: int, own: StepForecast, samples_and_tokens: tuple[float, float]) -> StepForecast:
        """The step of the job as `rank` spends it, from its own; `samples_and_tokens` are of all ranks in one step."""
        factor, busy = self.factor(rank), self.job.ranks[rank].busy
        seconds = _scaled(own.seconds, factor)
        scale = seconds.expected / self.job.seconds if self.job.seconds else 0.0
        samples, tokens = samples_and_tokens
        return own.model_copy(
            update={
                "seconds": seconds,
                "phases": StepPhases(**{f"{name}_seconds": value * scale for name, value in busy.items()}),
                "mfu": own.mfu / factor,
                "samples_per_second": samples / seconds.expected,
                "tokens_per_second": tokens / seconds.expected,
            }
        )

    def run(self, rank: int, own: RunForecast) -> RunForecast:
        """The run of the job, from that which `rank` would have alone."""
        training = own.phases.training_seconds * self.factor(rank)
        phases = own.phases.model_copy(update={"training_seconds": training})
        total = sum(own.phases.model_dump().values())
        factor = sum(phases.model_dump().values()) / total if total else 1.0
        cost = None if own.cost is None else own.cost * factor
        return own.model_copy(update={"phases": phases, "seconds": _scaled(own.seconds, factor), "cost": cost})


def _scaled(seconds: Range, factor: float) -> Range:
    return Range(**{name: value * factor for name, value in seconds.model_dump().items()})
