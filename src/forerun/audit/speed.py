"""Claims about time: what FLOP/s they imply, how time follows work, and what our own forecast says instead."""

from dataclasses import dataclass
from typing import Literal

from forerun.audit.context import Context
from forerun.audit.findings import Check, Finding, Verdict, finding
from forerun.audit.quantities import Duration, Number, Quantity, between, compare_quantities, show_number, show_seconds
from forerun.settings.schema import Count
from forerun.units import TERA, format_flops_per_second, format_percent

IMPLAUSIBLE, RARE, POOR, CLAIMED_BUSY = 0.80, 0.60, 0.10, 0.60
"""Shares of the peak, recomputation counted (R01): of 112 published training steps
(`benchmarks/audit_true_claims.py`) the fastest reaches 76 % and 16 lie above the second; below the third a device that
is said to be used above the fourth is not."""
TIME_SHARE = 0.10
"""Share by which a ratio of times may differ from the ratio of work (R15)."""
FORECAST_SHARE = 0.5
"""Share by which a claim may lie outside the range of our forecast of its time."""
GPUS_SHARE = 0.02
"""Share by which a speed-up may exceed the number of devices."""


class Speed(Check):
    """How fast something trains: a time for an amount of work, or samples a second."""

    kind: Literal["speed"]
    time: Duration | None = None
    per: Literal["micro-step", "update", "epoch", "run"] = "update"
    samples_per_second: Number | None = None
    tokens: Number | None = None
    """Tokens of a sample, where not those of the configuration."""
    frozen_encoder: bool = False
    evidence: str | None = None
    """The run or source that measured it."""


@dataclass(frozen=True)
class Shares:
    """A claimed speed beside the least time that the device could do the work in."""

    least: float
    """Least share of the peak, at the reading that favours the claim: its slowest time, its shortest samples."""
    most: float
    bound: str
    """The fastest that the peak allows, at that reading."""
    work: str

    @property
    def text(self) -> str:
        """Both shares as text."""
        most = format_percent(self.most)
        return f"{format_percent(self.least)} to {most} of peak" if self.most > self.least else f"{most} of peak"


def check_speed(claim: Speed, context: Context) -> Finding:
    """R01: least time at the device's peak over the claimed time, at the reading that favours the claim."""
    shares = _shares(claim, context)
    formula = f"{shares.work}: {shares.bound} at {_peaks(context)}"
    if shares.least > 1:
        remark = f"{shares.least:.2f} times what the peak allows, at the reading that favours it"
        return finding("R01", "impossible", right=shares.bound, formula=formula, remark=remark)
    if shares.least > IMPLAUSIBLE:
        remark = f"implausible: above {format_percent(IMPLAUSIBLE)} of peak"
        return finding("R01", "wrong", right=shares.text, formula=formula, remark=remark)
    remark = _doubt(shares, claim.evidence)
    if remark:
        return finding("R01", "unsupported", right=shares.text, formula=formula, remark=remark)
    remark = "" if claim.evidence else "possible; not measured"
    return finding("R01", "consistent", right=shares.text, formula=formula, remark=remark)


def _doubt(shares: Shares, evidence: str | None) -> str:
    """The reason to doubt a possible speed; empty where it was measured."""
    if shares.most > 1:
        return "its fast end is beyond the peak"
    if evidence is None and shares.least > RARE:
        return f"few measured steps are above {format_percent(RARE)} of peak"
    if evidence is None and shares.most < POOR:
        return "very slow code, or a number that nobody measured"
    return ""


def _peaks(context: Context) -> str:
    """The peaks that count, in words."""
    text = f"{format_flops_per_second(context.peak())} peak"
    return f"{text} ({context.peak('int8') / TERA:g} in int8)" if context.run.quantization == "int8" else text


def _shares(claim: Speed, context: Context) -> Shares:
    tokens = between(context.tokens_per_sample, context.tokens_per_sample) if claim.tokens is None else claim.tokens
    token_range = show_number(tokens.low, tokens.high)
    if (claim.time is None) == (claim.samples_per_second is None):
        raise ValueError("time or samples_per_second: exactly one of them")
    if claim.samples_per_second is not None:
        slow, fast = claim.samples_per_second.ends
        low, high = (context.least_seconds(1.0, each) for each in (tokens.low, tokens.high))
        return Shares(
            low * slow, high * fast, f"at most {show_number(1 / low)} samples/s", f"samples of {token_range} tokens"
        )
    assert claim.time is not None, "checked above"
    samples = _samples(claim.per, context)
    low, high = (context.least_seconds(samples, each, claim.frozen_encoder) for each in (tokens.low, tokens.high))
    fast, slow = claim.time.ends
    work = f"{samples:,.0f} samples of {token_range} tokens"
    return Shares(low / slow, high / fast, f"at least {show_seconds(low)}", work)


def _samples(per: str, context: Context) -> float:
    run = context.run
    if per == "micro-step":
        return run.batch.micro_batch_size * run.parallel.data_ranks
    if per == "update":
        return run.global_batch_size
    return context.examples if per == "epoch" else context.updates * run.global_batch_size


class Utilisation(Check):
    """A share of the device that is said to be used, beside a time that says how much really is."""

    kind: Literal["utilisation"]
    claimed: Number
    time: Duration
    per: Literal["micro-step", "update", "epoch", "run"] = "epoch"
    tokens: Number | None = None
    frozen_encoder: bool = False
    read_with: Literal["nvidia-smi", "unsaid"] = "unsaid"
    """nvidia-smi shows the share of time in which any kernel runs, which says nothing of efficiency."""


def check_utilisation(claim: Utilisation, context: Context) -> Finding:
    """R01: model FLOP utilisation of the document's own time."""
    speed = Speed(
        kind="speed", time=claim.time, per=claim.per, tokens=claim.tokens, frozen_encoder=claim.frozen_encoder
    )
    shares = _shares(speed, context)
    share = shares.most
    right, formula = f"MFU {format_percent(share)}", f"{shares.work} in {claim.time.text}"
    if share > 1:
        return finding("R01", "impossible", right=right, formula=formula, remark="the time is beyond the peak")
    if claim.read_with == "nvidia-smi":
        remark = "the share of time in which a kernel runs; nobody measured it"
        return finding("R01", "unsupported", right=right, formula=formula, remark=remark)
    if share < POOR and claim.claimed.low > CLAIMED_BUSY or claim.claimed.low > share + CLAIMED_BUSY:
        return finding("R01", "wrong", right=right, formula=formula, remark="a busy device is not an efficient one")
    return finding("R01", "consistent", right=right, formula=formula)


class WorkTime(Check):
    """Times of runs that differ in one thing."""

    kind: Literal["work-time"]
    differs: Literal["lora-rank", "tokens", "frozen-encoder"]
    values: list[float | bool]
    times: list[Duration] = []
    change: list[Number] = []
    """Changes in place of times: shares of the first time by which the others differ."""


def check_work_time(claim: WorkTime, context: Context) -> Finding:
    """R15: ratios of time are those of FLOP."""
    if len(claim.values) < 2 or len(claim.times or [0, *claim.change]) != len(claim.values):
        raise ValueError(f"times: one for each of values; found {len(claim.times)} for {len(claim.values)}")
    work = [_work(claim.differs, value, context) for value in claim.values]
    ratios = [w / work[0] for w in work]
    problems = []
    for number, ratio in enumerate(ratios[1:]):
        claimed = _ratio(claim, number)
        if compare_quantities(claimed, ratio, share=TIME_SHARE) == "apart":
            problems.append(
                f"{show_number(claimed.low, claimed.high)}x is claimed where {show_number(ratio)}x is the work"
            )
    right = "work " + ", ".join(f"{value}: {ratio:.3g}x" for value, ratio in zip(claim.values, ratios, strict=True))
    verdict: Verdict = "wrong" if problems else "consistent"
    return finding("R15", verdict, right=right, formula=f"FLOP by {claim.differs}", remark="; ".join(problems))


def _ratio(claim: WorkTime, number: int) -> Quantity:
    """Claimed ratio of another time to the first one."""
    if not claim.times:
        return between(1 + claim.change[number].low, 1 + claim.change[number].high)
    first, other = claim.times[0], claim.times[number + 1]
    return between(other.low / first.high, other.high / first.low)


def _work(differs: str, value: float, context: Context) -> float:
    model, length = context.architecture, context.tokens_per_sample
    if differs == "tokens":
        return value * model.forward_flops(value)
    if differs == "frozen-encoder":
        return 1.0 if value else 3.0
    adapter = context.run.adapter.model_copy(update={"rank": int(value)})
    return 2 * model.forward_flops(length) + 3 * 2 * model.adapter_parameters(adapter)


class DataParallel(Check):
    """Times of one run on one GPU and on several."""

    kind: Literal["data-parallel"]
    one: Duration
    gpus: Count
    several: Duration


def check_data_parallel(claim: DataParallel, context: Context) -> Finding:
    """R14: n devices are at most n times as fast."""
    ratio = claim.one.middle / claim.several.middle
    formula = f"{claim.one.text} / {claim.several.text} on {claim.gpus} GPUs"
    limit = claim.one.middle / claim.gpus
    if ratio > claim.gpus * (1 + GPUS_SHARE):
        remark = f"faster than {claim.gpus} times one"
        return finding("R14", "impossible", right=f"at least {show_seconds(limit)}", formula=formula, remark=remark)
    return finding("R14", "consistent", right=f"{ratio:.2f}x of at most {claim.gpus}x", formula=formula)


class ForecastTime(Check):
    """A time that our own forecast of the configuration answers."""

    kind: Literal["forecast"]
    quantity: Literal["step", "forward", "backward", "optimizer", "evaluation", "training", "run"]
    per: Literal["update", "epoch", "run"] = "update"
    claimed: Duration


def check_forecast_time(claim: ForecastTime, context: Context) -> Finding:
    """R23: inside the range of the forecast or near it; half as much again outside is wrong."""
    forecast = context.forecast()
    epochs = context.run.schedule.epochs
    if claim.quantity in ("run", "training", "evaluation"):
        phases = forecast.run.phases
        whole = forecast.run.seconds.expected
        value = {"run": whole, "training": phases.training_seconds, "evaluation": phases.evaluation_seconds}[
            claim.quantity
        ]
        value /= epochs if claim.per == "epoch" else 1.0
        band = forecast.run.seconds
    else:
        step, band = forecast.step, forecast.step.seconds
        value = step.seconds.expected if claim.quantity == "step" else getattr(step.phases, f"{claim.quantity}_seconds")
        value *= {"update": 1, "epoch": forecast.run.steps_per_epoch, "run": forecast.run.total_steps}[claim.per]
    low, high = value * band.optimistic / band.expected, value * band.conservative / band.expected
    agreement = compare_quantities(claim.claimed, low, high)
    far = claim.claimed.low > high * (1 + FORECAST_SHARE) or claim.claimed.high < low / (1 + FORECAST_SHARE)
    verdict: Verdict = "wrong" if far else "consistent" if agreement == "agree" else "unsupported"
    remark = "" if verdict == "consistent" else f"{claim.claimed.text} is outside"
    formula = f"forerun forecast on {context.device.name}: {claim.quantity} per {claim.per}"
    source = "forerun forecast, range of 80 %"
    return finding("R23", verdict, right=show_seconds(low, high), formula=formula, remark=remark, source=source)


class Generation(Check):
    """An evaluation that generates text, and the time that the document leaves for it."""

    kind: Literal["generation"]
    samples: Count
    new_tokens: Count
    tokens_per_second: Number
    """Generated tokens a second at the batch that is used."""
    source: str
    """Source of that rate."""
    training: Duration
    """Time of the training that the evaluation belongs to."""
    allowed: Duration | None = None
    """Time that the document allows for it; None where it says nothing."""


def check_generation(claim: Generation, context: Context) -> Finding:
    """R23: samples x tokens over the rate."""
    seconds = claim.samples * claim.new_tokens / claim.tokens_per_second.middle
    formula = f"{claim.samples} x {claim.new_tokens} / {claim.tokens_per_second.text} per s"
    right = show_seconds(seconds)
    if claim.allowed is not None:
        agreement = compare_quantities(claim.allowed, seconds, share=FORECAST_SHARE)
        remark = "" if agreement == "agree" else f"not {claim.allowed.text}"
        verdict: Verdict = "consistent" if agreement == "agree" else "wrong"
        return finding("R23", verdict, right=right, formula=formula, remark=remark, source=claim.source)
    than = "longer" if seconds > claim.training.high else "shorter"
    remark = f"no time is left for it; it is {than} than the training ({claim.training.text})"
    return finding("R23", "unsupported", right=right, formula=formula, remark=remark, source=claim.source)


CHECKS = {
    Speed: check_speed, Utilisation: check_utilisation, WorkTime: check_work_time, DataParallel: check_data_parallel,
    ForecastTime: check_forecast_time, Generation: check_generation,
}  # fmt: skip
