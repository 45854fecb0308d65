"""Claims about counts and schedules: batches, steps, warm-up, checkpoints, passes over the data, learning rates."""

import math
from typing import Literal

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding, verdict_of
from forerun.audit.quantities import Duration, Number, Size, compare_quantities, show_bytes, show_number, show_seconds
from forerun.settings.schema import Count
from forerun.units import format_percent

WARMUP_SHARE = 0.10
"""Share of the updates above which warm-up leaves the rest of the schedule no room; stated (R07)."""
PASSES = 4.0
"""Passes over the same tokens that are worth nearly as much as new ones (Muennighoff et al. 2023, arXiv 2305.16264)."""
TOKENS_PER_PARAMETER = 1.0
"""Unique tokens a parameter, below which a model with random weights can learn its data by heart; stated (R10)."""
ADAM_BYTES = 12.0
"""Bytes of a parameter in a checkpoint with Adam's state: the fp32 parameter and its two moments."""


class GlobalBatch(Check):
    """Samples per optimizer update."""

    kind: Literal["global-batch"]
    claimed: Number
    in_batch_negatives: bool = False
    """Whether the loss takes its negatives from the batch."""


def check_global_batch(claim: GlobalBatch, context: Context) -> Finding:
    """R03: micro-batch x accumulation x devices."""
    batch, world = context.run.batch, context.run.parallel.data_ranks
    right = context.run.global_batch_size
    formula = f"{batch.micro_batch_size} x {batch.gradient_accumulation_steps}" + (f" x {world}" if world > 1 else "")
    agreement = compare_quantities(claim.claimed, right, share=0.0)
    remark = "" if agreement == "agree" else f"not {claim.claimed.text}"
    # Each micro-batch has a backward pass of its own, so its loss never sees the samples of another.
    if claim.in_batch_negatives and batch.gradient_accumulation_steps > 1 and not remark:
        remark = f"a loss over the batch still sees {batch.micro_batch_size} samples: accumulation adds no negatives"
    return finding("R03", verdict_of(agreement), right=f"{right:,}", formula=formula, remark=remark)


class Steps(Check):
    """A number of steps, by what is counted."""

    kind: Literal["steps"]
    claimed: Number
    counts: Literal["micro-steps", "updates", "evaluation-batches", "samples"] = "updates"
    per: Literal["epoch", "run"] = "run"
    over: Count | None = None
    """Examples, where not the training ones; for `samples` the updates that they are of."""


def check_steps(claim: Steps, context: Context) -> Finding:
    """R07: the number of steps that follows from the settings."""
    right, formula = _steps(claim, context)
    agreement = compare_quantities(claim.claimed, right, share=None if claim.claimed.about else 0.0)
    remark = "" if agreement == "agree" else f"not {claim.claimed.text}"
    return finding("R07", verdict_of(agreement), right=f"{right:,} {claim.counts}", formula=formula, remark=remark)


def _steps(claim: Steps, context: Context) -> tuple[int, str]:
    run, rounds = context.run, "floor" if context.drop_last else "ceil"
    if claim.counts == "samples":
        updates = claim.over or context.updates
        return updates * run.global_batch_size, f"{updates:,} updates x {run.global_batch_size}"
    if claim.counts == "evaluation-batches":
        examples, size = claim.over or run.evaluation.examples, run.batch.micro_batch_size
        return math.ceil(examples / size), f"ceil({examples:,} / {size})"
    epochs = run.schedule.epochs if claim.per == "run" else 1
    size = run.batch.micro_batch_size
    micro = f"{rounds}({context.examples:,} / {size})"
    if claim.counts == "micro-steps":
        return math.ceil(epochs * context.micro_steps_per_epoch), micro if epochs == 1 else f"{epochs:g} x {micro}"
    one = f"ceil({micro} / {run.batch.gradient_accumulation_steps})"
    if claim.per == "epoch":
        return context.updates_per_epoch, one
    return context.updates, f"{epochs:g} x {one}"


class ScheduleUnit(Check):
    """A number called steps in a program whose loop counts something else."""

    kind: Literal["schedule-unit"]
    claimed: Number
    """Steps that are announced."""
    counted: Literal["micro-steps", "updates"]
    """Unit that the program counts in."""
    source: str
    """Place in the program that shows it."""


def check_schedule_unit(claim: ScheduleUnit, context: Context) -> Finding:
    """R07: updates = micro-steps / accumulation."""
    accumulation = context.run.batch.gradient_accumulation_steps if claim.counted == "micro-steps" else 1
    updates = claim.claimed.middle / accumulation
    formula = f"{claim.claimed.text} / {accumulation}"
    right = f"{updates:,.0f} updates"
    if accumulation == 1:
        return finding("R07", "consistent", right=right, formula=formula, source=claim.source)
    remark = "they are micro-steps, and a schedule sized in them never completes"
    return finding("R07", "wrong", right=right, formula=formula, remark=remark, source=claim.source)


class Warmup(Check):
    """Steps of warm-up, and the share of the run that they are said to be."""

    kind: Literal["warmup"]
    steps: Number
    share: Number | None = None


def check_warmup(claim: Warmup, context: Context) -> Finding:
    """R07: warm-up as a share of the optimizer updates, at most 10 %."""
    share = claim.steps.middle / context.updates
    right, formula = format_percent(share), f"{claim.steps.text} / {context.updates:,} updates"
    if share > WARMUP_SHARE:
        remark = f"more than {format_percent(WARMUP_SHARE)} of all updates warm up"
        return finding("R07", "wrong", right=right, formula=formula, remark=remark)
    agreement = "agree" if claim.share is None else compare_quantities(claim.share, share)
    remark = "" if agreement == "agree" or claim.share is None else f"not {claim.share.text}"
    return finding("R07", verdict_of(agreement), right=right, formula=formula, remark=remark)


class Saves(Check):
    """Checkpoints that a run writes, one each so many updates and one at the end."""

    kind: Literal["saves"]
    every: Count
    claimed: Number | None = None
    keep: Count | None = None
    """Checkpoints that stay on disk; the finding adds the space that they take."""


def check_saves(claim: Saves, context: Context) -> Finding:
    """R23: floor(updates / every), and a last one where that does not fall on the end."""
    regular, rest = divmod(context.updates, claim.every)
    right = regular + (1 if rest else 0)
    each = ADAM_BYTES * _trainable(context)
    disk_note = (
        f"; {min(claim.keep, right)} kept take {show_bytes(min(claim.keep, right) * each)}" if claim.keep else ""
    )
    formula = f"{context.updates:,} / {claim.every}: {regular}" + (" and a last one" if rest else "")
    agreement = "agree" if claim.claimed is None else compare_quantities(claim.claimed, right, share=0.0)
    remark = (
        f"writes {show_bytes(right * each)} in all"
        if agreement == "agree"
        else f"not {claim.claimed and claim.claimed.text}"
    )
    return finding(
        "R23", verdict_of(agreement), right=f"{right} checkpoints{disk_note}", formula=formula, remark=remark
    )


def _trainable(context: Context) -> int:
    adapter = context.run.adapter
    return context.architecture.total if adapter.kind == "none" else context.architecture.adapter_parameters(adapter)


class RunTime(Check):
    """Time of one step and of the whole run."""

    kind: Literal["run-time"]
    step: Duration
    claimed: Duration
    """Time of the run."""
    steps: Number | None = None
    """Steps of the run, where not the updates that the settings make."""


def check_run_time(claim: RunTime, context: Context) -> Finding:
    """R02: step x steps, evaluation and start-up apart."""
    steps = context.updates if claim.steps is None else claim.steps.middle
    low, high = (end * steps for end in claim.step.ends)
    agreement = compare_quantities(claim.claimed, low, high)
    remark = "" if agreement == "agree" else f"not {claim.claimed.text}"
    formula = f"{claim.step.text} x {show_number(steps)} steps"
    return finding("R02", verdict_of(agreement), right=show_seconds(low, high), formula=formula, remark=remark)


class DataVolume(Check):
    """How much data a run sees of how much there is."""

    kind: Literal["data-volume"]
    unique_tokens: Number
    source: str
    """Source of the number of unique tokens."""
    from_random_weights: bool = True
    micro_steps: int | None = None
    """Micro-steps of the run, where the document states those."""


def check_data_volume(claim: DataVolume, context: Context) -> Finding:
    """R10: passes over the data, and unique tokens for each parameter."""
    run = context.run
    samples = (
        context.updates * run.global_batch_size if claim.micro_steps is None
        else claim.micro_steps * run.batch.micro_batch_size
    )  # fmt: skip
    trained_tokens, unique = samples * run.batch.sequence_length, claim.unique_tokens.middle
    per_parameter = unique / context.architecture.total
    right = f"{trained_tokens / unique:.1f} passes, {per_parameter:.3g} unique tokens a parameter"
    formula = f"{samples:,} samples x {run.batch.sequence_length} / {claim.unique_tokens.text}"
    problems = []
    if trained_tokens / unique > PASSES:
        problems.append(f"more than {PASSES:g} passes are worth little")
    if claim.from_random_weights and per_parameter < TOKENS_PER_PARAMETER:
        problems.append("fewer tokens than parameters are learned by heart")
    verdict: Verdict = "wrong" if problems else "consistent"
    return finding("R10", verdict, right=right, formula=formula, remark="; ".join(problems), source=claim.source)


class LearningRateScaling(Check):
    """A learning rate changed with the batch, by a rule with a name."""

    kind: Literal["learning-rate-scaling"]
    called: Literal["linear", "square-root"]
    used: Literal["linear", "square-root"]
    """Rule of the formula that the document shows."""
    old: Number
    new: Number
    old_batch: Count
    new_batch: Count


def check_learning_rate_scaling(claim: LearningRateScaling, context: Context) -> Finding:
    """R17: old x ratio, or old x the root of the ratio, called by its name."""
    ratio = claim.new_batch / claim.old_batch
    right = claim.old.middle * (ratio if claim.used == "linear" else math.sqrt(ratio))
    problems = []
    if claim.called != claim.used:
        problems.append(f"the formula is the {claim.used} rule, not the {claim.called} one")
    agreement = compare_quantities(claim.new, right)
    if agreement != "agree":
        problems.append(f"not {claim.new.text}: the batch went from {claim.old_batch} to {claim.new_batch}")
    root = "" if claim.used == "linear" else "sqrt"
    formula = f"{claim.old.text} x {root}({claim.new_batch} / {claim.old_batch})"
    return finding(
        "R17", "wrong" if problems else "consistent", right=f"{right:g}", formula=formula, remark="; ".join(problems)
    )


class Artefact(Check):
    """The size of a file with parameters in it."""

    kind: Literal["artefact"]
    claimed: Size
    parameters: Number | None = None
    """Parameters in the file, where not the trainable ones of the configuration."""
    bytes_per_parameter: float = 4.0


def check_artefact(claim: Artefact, context: Context) -> Finding:
    """R24: no file is smaller than what is in it."""
    parameters = _trainable(context) if claim.parameters is None else claim.parameters.middle
    least = parameters * claim.bytes_per_parameter
    formula = f"{parameters:,.0f} parameters x {claim.bytes_per_parameter:g} B"
    smaller = claim.claimed.high < least * (1 - claim.claimed.tolerance)
    remark = f"{claim.claimed.text} cannot hold them: tensors are missing" if smaller else ""
    verdict: Verdict = "impossible" if smaller else "consistent"
    return finding("R24", verdict, right=f"at least {show_bytes(least)}", formula=formula, remark=remark)


CHECKS = {
    GlobalBatch: check_global_batch, Steps: check_steps, ScheduleUnit: check_schedule_unit, Warmup: check_warmup,
    Saves: check_saves, RunTime: check_run_time, DataVolume: check_data_volume,
    LearningRateScaling: check_learning_rate_scaling, Artefact: check_artefact,
}  # fmt: skip
