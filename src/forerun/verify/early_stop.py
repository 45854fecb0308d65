"""What a forecast says of a run that stopped early: its time up to the step where it stopped.

A step and memory are as forecast. Training and the evaluations between epochs are those of so many steps; start-up and
the scoring after the last step are whole; of checkpoints as many count as were written.
"""

from forerun.records import Forecast, Measurement, Range, Verdict


def early_stop_sentence(verdict: Verdict) -> str:
    """That a run stopped early, and why; empty where it did not."""
    return f"The run {verdict.stopped_early}. Its time is compared up to there." if verdict.stopped_early else ""


def until_it_stopped(forecast: Forecast, measurement: Measurement) -> Forecast:
    """The forecast of the steps that were made, where the run stopped early; else the forecast itself."""
    planned, steps = forecast.run, measurement.run.total_steps
    if not measurement.run.stopped_early or not planned.total_steps:
        return forecast
    share, phases = steps / planned.total_steps, planned.phases
    after = min(forecast.detail.final_evaluation_seconds, phases.evaluation_seconds)
    written_share = measurement.run.checkpoints_written / max(1, planned.checkpoints_written)
    own = phases.model_copy(
        update={
            "training_seconds": phases.training_seconds * share,
            "evaluation_seconds": after + (phases.evaluation_seconds - after) * share,
            "checkpoint_seconds": phases.checkpoint_seconds * min(1.0, written_share),
        }
    )
    factor = sum(own.model_dump().values()) / (sum(phases.model_dump().values()) or 1.0)
    seconds = Range(**{name: value * factor for name, value in planned.seconds.model_dump().items()})
    cost = None if planned.cost is None else planned.cost * factor
    update = {"total_steps": steps, "seconds": seconds, "phases": own, "cost": cost}
    return forecast.model_copy(update={"run": planned.model_copy(update=update)})
