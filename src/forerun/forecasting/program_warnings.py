"""What the forecast of a program warns of: what was assumed, what was not seen, and what slows it without need."""

from forerun.clock.priors import PriorCosts
from forerun.forecasting.allocator_warnings import allocator_warnings
from forerun.forecasting.before_steps import NO_TIME, NO_TRAINING
from forerun.forecasting.card_warnings import card_warnings
from forerun.forecasting.compiling import seconds_of_kernels
from forerun.forecasting.host_warnings import UPDATE, host_update_warnings
from forerun.forecasting.kernel_warnings import kernel_warnings
from forerun.forecasting.program_run import last_step, steps_from
from forerun.forecasting.rank_warnings import rank_warnings
from forerun.hardware.catalogue import Device
from forerun.trace import Issuer, Trace
from forerun.units import format_seconds
from forerun.virtual.cuda.loop_rests import IS_BEST
from forerun.virtual.cuda.run import ProgramRun
from forerun.virtual.cuda.token_loops import GOES_ON
from forerun.virtual.cuda.trainer_lengths import AT_MOST, ProgramLength
from forerun.virtual.cuda.unknown import TRUTH, Assumption

ON_HOST = (
    "The steps run nothing on the GPU: model and batches are on the host, whose own time is not forecast. Move both "
    "there (model.cuda(), .to(device)) to see what training on the GPU takes."
)
TURNS_DECIDED = 20
"""Unknown truth values that one line reads in a step, from which on a loop is taken to end by them."""


def compile_seconds(run: ProgramRun, device: Device) -> float:
    """Time in which the program's graphs are compiled."""
    calls = run.session.compiling
    return seconds_of_kernels(calls.kernels, device) if calls.graphs else 0.0


def _uses_card(step: Trace) -> bool:
    """Whether anything of a step is the card's own work."""
    calls = (call for call, _ in step.warm_calls() if not call.is_view and not call.name.startswith(UPDATE))
    return any(call.issuer != Issuer.HOST for call in calls)


def program_warnings(
    run: ProgramRun, device: Device, costs: PriorCosts, length: ProgramLength | None, *, has_steps: bool,
    has_time: bool = False,
) -> list[str]:  # fmt: skip
    """Sentences on a program's forecast for one device, which `has_time` where it does not train."""
    trace = run.session.recorder.trace
    warnings = [f"Time: {costs.description}."]
    if not has_steps:
        warnings.append(NO_TRAINING if has_time else NO_TIME)
        if started := run.session.own_processes:
            warnings.append(
                f"The program starts processes of its own ({started[0]}), which are not seen here. Where they are "
                f"ranks, --nproc-per-node {len(started)} runs one of them."
            )
    elif run.updates_nothing:
        warnings.append(
            "The program updates no weights: a step here is one backward pass with the forward pass before it, and run "
            "and cost are of those seen."
        )
    elif length is None:
        warnings.append(
            "The length of the whole run is not known, so run and cost are of the steps seen. Give --total-steps."
        )
    elif length.clock is not None and length.clock.line in length.source:
        warnings.append(
            f"The loop at {length.clock.line} ends by the clock: {length.steps:,} steps are as many as this card makes "
            "in that time, and a forecast that misses the step misses them by as much."
        )
    elif AT_MOST in length.source:
        warnings.append(
            f"Run and cost are of {length.steps:,} steps, by {length.source}; --total-steps says it better."
        )
    if run.between_failures is not None:
        times = "once" if len(trace.failures) == 1 else f"{len(trace.failures)} times"
        warnings.append(
            f"The program ran out of memory {times} and went on; memory is that of the last training that went through."
        )
    warnings += run.session.not_followed
    warnings += [*card_warnings(device), *allocator_warnings(trace.allocator, device)]
    warnings += rank_warnings(last_step(trace, run.watcher), costs)
    warnings += _of_compiling(run, device)
    warnings += _of_steps(run, costs, has_steps=has_steps)
    step_count = max(1, len(run.watcher.spans))
    ended = [each for each in run.assumptions if each.loop is not None]
    warnings += [_of_convergence(each, trace, costs, step_count) for each in ended]
    lines = {each.line for each in ended}
    warnings += [SENTENCES[each.what](each) for each in run.assumptions if each.what in SENTENCES]
    files = {_file_of(each) for each in run.assumptions if each.what == GOES_ON}  # its own lines ask
    others = [each for each in run.assumptions if each.line not in lines and _file_of(each) not in files]
    warnings += [_of_loop(each, step_count) for each in others if _decides_a_loop(each, step_count)]
    if run.assumptions:
        first = run.assumptions[0]
        count = "One line reads" if len(run.assumptions) == 1 else f"{len(run.assumptions)} lines read"
        warnings.append(
            f"{count} what nobody can know here; {first.line}: {first.what}, answered with {first.value[:60]}."
        )
    return warnings


def _of_steps(run: ProgramRun, costs: PriorCosts, *, has_steps: bool) -> list[str]:
    """Of the last step's kernels, and of what is done on the host."""
    trace = run.session.recorder.trace
    steps = steps_from(trace, run.watcher.loop, run.watcher.loop.warm_from)
    if not has_steps or not steps:
        return kernel_warnings(steps[-1] if steps else trace, costs)
    on_host = [] if _uses_card(steps[-1]) else [ON_HOST]
    return [*kernel_warnings(steps[-1], costs), *host_update_warnings(steps[-1], costs), *on_host]


def speed_warnings(mfu: float, trace: Trace) -> list[str]:
    """That a step is faster than it can be: what was taken for a step is not all of it."""
    is_narrow = any(spec.dtype.startswith("float8") for call in trace.calls if call.flops for spec in call.inputs)
    if mfu <= (2.0 if is_narrow else 1.0):  # the peak of products in 8 bits is twice as high
        return []
    return [
        f"Not to be trusted: products at {mfu:.0%} of the card's peak would be needed, so what was taken for a step is "
        f"not all of one. Seconds, run and cost are too low. Please report the program."
    ]


def _decides_a_loop(assumption: Assumption, steps: int) -> bool:
    """Whether a line asks again and again: checks that all is well, which ask once for each number, get a yes."""
    return (assumption.what, assumption.value) == (TRUTH, "False") and assumption.times >= TURNS_DECIDED * steps


def _of_loop(assumption: Assumption, steps: int) -> str:
    return (
        f"{assumption.line} asks {assumption.times // steps:,} times a step for a truth value that nobody can know, "
        "and gets no: a loop that ends by it takes as many turns as it may, and a step may be shorter."
    )


def _file_of(assumption: Assumption) -> str:
    """Where it was asked, but for the number of the line."""
    return assumption.line.rpartition(":")[0]


def _of_generation(assumption: Assumption) -> str:
    return (
        f"{assumption.line} generates {assumption.value}, as many as it may: nobody can know where an answer ends. "
        "Where all of a batch end earlier, it takes less time, about in proportion."
    )


def _of_best(assumption: Assumption) -> str:
    return (
        f"{assumption.line} keeps the best so far. Nobody can know how often something better is found: it is taken to "
        "be each time, so the run is as long, and checkpoints are as many, as can be."
    )


SENTENCES = {GOES_ON: _of_generation, IS_BEST: _of_best}


def _of_convergence(assumption: Assumption, trace: Trace, costs: PriorCosts, steps: int) -> str:
    """A loop that goes on until it has converged, and what a turn more or less of it is worth."""
    end = assumption.loop
    assert end is not None
    calls = [trace.calls[op.call] for op in trace.ops[slice(*end.ops)]]
    device = sum(costs.device_seconds(call) * call.times for call in calls)
    seconds = max(device, sum(costs.host_seconds(call) * call.times for call in calls)) / max(1, end.turns - 1)
    loops = max(1, round(assumption.times / steps))
    return (
        f"{assumption.line} ends a loop by a value that nobody can know; {end.turns} turns are assumed. Each turn more "
        f"or less is {format_seconds(seconds * loops)} a step."
    )


def _of_compiling(run: ProgramRun, device: Device) -> list[str]:
    calls = run.session.compiling
    warnings = [f"torch.compile of {name} is forecast as eager code: {reason}." for name, reason in calls.eager.items()]
    warnings += [f"A graph breaks, and what follows is issued anew: {reason}." for reason in calls.breaks]
    if calls.graphs:
        duration = format_seconds(compile_seconds(run, device))
        figures = f"{len(calls.graphs)} graphs of {calls.kernels} kernels, at the pace of PyTorch's published figures"
        warnings.append(f"Compiling is taken as {duration}: {figures}.")
    return warnings
