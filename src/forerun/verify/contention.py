"""Others' load: how much of the processors other processes used while a run trained, and how much longer it took so.

A run loses the time in which a thread of it is ready and has no processor: threads of one operator wait for each other,
so their waits add up. Beside busy loops on two cores one thread took 1.74, 2.65 and 3.68 times as long, and its waits
say 1.58, 2.36 and 3.29; two threads took 9 to 250 times as long, and their waits were longer than the run (docs/log.md,
2026-11-23).
"""

from forerun.records import Forecast, Measurement

MOST_LOST = 0.98
"""Share of a run's time that is taken as lost to others at most."""


def contention(forecast: Forecast, measurement: Measurement) -> float:
    """Share of all processor time that others used while a run trained on the CPU; 0 on a GPU or where unknown."""
    evidence = measurement.evidence
    return (evidence.other_processes_share or 0) + (evidence.stolen_share or 0) if forecast.gpu == "cpu" else 0.0


def slowdown(forecast: Forecast, measurement: Measurement) -> float:
    """How many times as long others may have made a run; by their share of the processors where no wait was counted."""
    evidence = measurement.evidence
    lost = contention(forecast, measurement)
    if evidence.waiting_share is not None and forecast.gpu == "cpu":
        lost = evidence.waiting_share + (evidence.stolen_share or 0)
    return 1 / (1 - min(MOST_LOST, lost))
