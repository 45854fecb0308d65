"""The forecast of a job of several ranks: one rank of each kind is run, and the worst decides.

Rank 0 is run here. What it exchanges messages with is run beside it, each rank in a process of its own and each once:
those that were started because rank 0 waited for their shapes go on to their end. Ranks that exchange no messages with
others are taken as alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.clock.between_ranks import job_of_trace
from forerun.clock.job_step import RankStep, rank_step
from forerun.clock.priors import PriorCosts
from forerun.errors import NotSupported, UnmatchedExchange
from forerun.forecasting.job_time import JobTime
from forerun.forecasting.kinds import MOST_STAGES, StepContent, as_text, content_of, kinds_of, ranks_by_stage
from forerun.forecasting.program import ProgramForecast, forecast_program
from forerun.forecasting.program_run import WAITS_FOR_STAGES, last_step
from forerun.hardware.catalogue import Device, device
from forerun.records import Record
from forerun.virtual.cuda.file_layer import WrittenFiles
from forerun.virtual.cuda.launchers import Program
from forerun.virtual.cuda.peers import Peers, peers_of
from forerun.virtual.cuda.run import ProgramRun


class RankResult(Record):
    """What one rank hands to the one that the user asked for, on one card."""

    forecast: ProgramForecast
    content: StepContent
    step: RankStep


class RankResults(Record):
    """The same on each card that was asked for."""

    cards: list[RankResult]


@dataclass(frozen=True)
class JobRequest:
    """What is forecast of a job, besides the program."""

    devices: Sequence[Device]
    most_steps: int | None = None
    total_steps: int | None = None
    price_per_hour: float | None = None
    files: WrittenFiles = WrittenFiles.LAYER

    def words(self) -> list[str]:
        """Options of the command line that ask a further rank for the same."""
        numbers = {"--steps": self.most_steps, "--total-steps": self.total_steps, "--price": self.price_per_hour}
        words = [word for name, value in numbers.items() if value is not None for word in (name, str(value))]
        return ["--gpu", ",".join(each.name for each in self.devices), *words]


def forecast_rank(
    program: Program, command: Sequence[str], request: JobRequest, rank: int, peers: Peers | None
) -> tuple[list[ProgramForecast], ProgramRun]:
    """Run one rank and forecast it on each card."""
    return forecast_program(
        program, command, request.devices, most_steps=request.most_steps, total_steps=request.total_steps,
        price_per_hour=request.price_per_hour, files=request.files, rank=rank, peers=peers,
    )  # fmt: skip


def forecast_job(
    program: Program, command: Sequence[str], request: JobRequest
) -> tuple[list[ProgramForecast], ProgramRun]:
    """Forecasts of the whole job on each card, and the run of rank 0.

    Raises:
        MissingPeak: no card has the peaks that the program needs.
        NotSupported: another rank fails, or the pipeline has more stages than are run.
    """
    with peers_of(program, command, request.words(), 0) as peers:
        forecasts, run = forecast_rank(program, command, request, 0, peers)
        if peers is None or run.exit_code or not run.watcher.spans:
            return forecasts, run
        results = {0: results_of(forecasts, run)}
        while missing := _missing(results):
            results |= {rank: _read(peers.result(rank), rank) for rank in peers.finish(missing)}
    members = ranks_by_stage(sorted(results), run.session.groups, program.world_size)
    by_card = [
        {rank: each for rank in sorted(results) for each in results[rank].cards if each.forecast.gpu == first.gpu}
        for first in forecasts
    ]
    return [_whole(card, members, program.world_size) for card in by_card], run


def results_of(forecasts: Sequence[ProgramForecast], run: ProgramRun) -> RankResults:
    """What a rank that was run hands on."""
    trace, step = run.session.recorder.trace, last_step(run.session.recorder.trace, run.watcher)
    cards = []
    for forecast in forecasts:
        card = device(forecast.gpu)
        costs = PriorCosts.of(trace, card, world_size=forecast.world_size, job=job_of_trace(card, trace))
        content = content_of(forecast.rank, step, trace)
        cards.append(RankResult(forecast=forecast, content=content, step=rank_step(forecast.rank, step, costs)))
    return RankResults(cards=cards)


def _missing(results: Mapping[int, RankResults]) -> list[int]:
    """Ranks that those that were run exchange messages with, and that were not run."""
    peers = {peer for each in results.values() for peer in each.cards[0].content.peers}
    missing = sorted(peers - results.keys())
    if len(results) + len(missing) > MOST_STAGES:
        raise NotSupported(
            f"exec: messages join more than {MOST_STAGES} ranks, each of which would be run. Name those to run: "
            "--rank first,middle,last."
        )
    return missing


def _read(path: Path, rank: int) -> RankResults:
    results = RankResults.model_validate_json(path.read_text(encoding="utf-8"))
    code = results.cards[0].forecast.script.exit_code
    if code and results.cards[0].forecast.out_of_memory is None:
        raise NotSupported(f"exec: rank {rank} failed by itself (exit code {code}); see it alone: --rank {rank}.")
    return results


def _whole(results: Mapping[int, RankResult], members: Mapping[int, Sequence[int]], world_size: int) -> ProgramForecast:
    """The forecast of the rank that needs most memory, with what the others say of the job."""
    forecasts = {rank: each.forecast for rank, each in results.items()}
    largest = max(forecasts.values(), key=lambda each: each.memory.device_bytes.expected)
    warnings, listed = list(largest.warnings), list(largest.not_modelled)
    step, run, time = largest.step, largest.run, None
    of_step = {
        name: max(getattr(each.step, name) * each.step.seconds.expected for each in forecasts.values())
        for name in ("samples_per_second", "tokens_per_second")
    }
    if len(results) > 1 and step.seconds.expected:
        try:
            time = JobTime({rank: each.step for rank, each in results.items()})
            step = time.step(largest.rank, step, (of_step["samples_per_second"], of_step["tokens_per_second"]))
            run = time.run(largest.rank, run)
            listed = [text for text in listed if text != WAITS_FOR_STAGES]
        except UnmatchedExchange as error:
            warnings.append(f"The step is that of a rank whose stages are never late, so a lower bound. {error}")
    if time is None and step.seconds.expected:
        step = step.model_copy(update={name: value / step.seconds.expected for name, value in of_step.items()})
    contents, steps = [each.content for each in results.values()], {rank: each.step for rank, each in results.items()}
    kinds = kinds_of(forecasts, contents, members, steps, {} if time is None else time.job.ranks)
    unknown = set(range(world_size)) - {rank for ranks in members.values() for rank in ranks}
    if unknown:
        ranks = as_text(sorted(unknown))
        warnings.append(f"The groups of the program do not say what kind ranks {ranks} are of; they are in no kind.")
    if world_size > 1:
        listed.append("differences among ranks of one pipeline stage")
    return largest.model_copy(
        update={
            "kinds": kinds, "fits": all(each.fits for each in forecasts.values()), "warnings": warnings,
            "not_modelled": listed, "step": step, "run": run,
        }
    )  # fmt: skip
