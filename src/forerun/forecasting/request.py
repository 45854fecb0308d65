"""The question that a forecast answers: settings, workload, batch plan, device, and times measured by the caller."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forerun.clock.between_ranks import job_of
from forerun.data.plan import BatchPlan
from forerun.errors import InvalidSettings
from forerun.experience import Correction, DeviceCalibration
from forerun.forecasting.shared_traces import SharedTraces
from forerun.hardware.catalogue import Device
from forerun.settings.schema import Settings

if TYPE_CHECKING:  # a request whose traces are kept needs no PyTorch
    from forerun.step.workload import Workload

BF16 = ("bf16-mixed", "bf16-true")
FP16 = ("fp16-mixed", "fp16-true")
HIGHEST_PRICE = 1e6
"""Dollars per hour of one device."""


@dataclass(frozen=True)
class Generated:
    """What a run generates, where its data say more of that than the settings."""

    final: tuple[tuple[int, float | None], ...] = ()
    """Prompts for which text is generated once after training, each with the tokens until the last prompt of a batch
    has ended; None: `evaluation.new_tokens`."""
    watched_tokens: float | None = None
    """The same tokens of the evaluations between epochs."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt; None: those of the longest sample."""


@dataclass(frozen=True)
class MeasuredTimes:
    """Seconds that the caller measured on the machine that will run; null where it did not."""

    startup_seconds: float | None = None
    """Seconds of loading data and building the model."""
    once_seconds: float = 0.0
    """Seconds of start-up work whose result is kept for later runs; timed by itself, so no past run corrects it."""
    data_seconds_per_step: float = 0.0
    """Seconds of collating one optimizer step's batches, when nothing hides it."""
    final_evaluation_examples: int = 0
    """Samples scored once after training, beside the settings' evaluations."""
    evaluation_examples: int | None = None
    """Samples scored each time; None: `evaluation.examples`, which of own data counts rows."""
    generated: Generated = Generated()
    """Text that is generated between epochs and after training."""


@dataclass(frozen=True)
class ForecastRequest:
    """One question: which step, on which data and device, and what is known of it."""

    settings: Settings
    own_workload: "Workload | None"
    """A recipe's workload, or one on somebody's data; None: the generic one that the settings name."""
    plan: BatchPlan
    device: Device
    price_per_hour: float | None = None
    """Overrides the catalogue's price."""
    times: MeasuredTimes = field(default_factory=MeasuredTimes)
    calibration: DeviceCalibration | None = None
    """Measured speeds of the device; stated ones stand in for them."""
    correction: Correction | None = None
    """Corrections that past runs teach."""
    shared: SharedTraces = field(default_factory=SharedTraces, compare=False)
    """Traces of this workload for other cards; `dataclasses.replace` hands them on."""

    def __post_init__(self) -> None:
        require_precision(self.settings, self.device)
        if self.settings.cluster.network != "auto":  # wrong words are told before minutes of tracing
            cluster = self.settings.cluster
            job_of(self.device, self.settings.parallel.world_size, cluster.gpus_per_node, cluster.network)
        price = self.price_per_hour
        if price is not None and not 0 <= price <= HIGHEST_PRICE:
            raise InvalidSettings(
                f"price: dollars per hour of one device, 0 to {HIGHEST_PRICE:,.0f}; found {price:g}. Correct it."
            )

    @property
    def workload(self) -> "Workload":
        """Model, batch and loss of the step."""
        if self.own_workload is not None:
            return self.own_workload
        from forerun.step.unpaired import workload_of_settings

        return workload_of_settings(self.settings)


def require_precision(settings: Settings, device: Device) -> None:
    """Refuse a number format that the hardware only emulates.

    Raises:
        InvalidSettings: naming the device, and a precision that it has or an optimizer that does not ask for more.
    """
    precision = settings.precision
    if precision in BF16 and not device.has_bf16:
        other = "fp16" + precision[4:] if device.kind == "cuda" else "fp32"
        raise InvalidSettings(
            f"precision: {precision} needs bfloat16 in hardware (compute capability 8.0 or more, or a CPU with "
            f"avx512_bf16 or amx_bf16); {device.name} has none. Set precision to {other} (add --set "
            f"precision={other} to the command)."
        )
    if precision in FP16 and device.kind == "cpu":
        other = "bf16-mixed" if device.has_bf16 else "fp32"
        raise InvalidSettings(
            f"precision: {precision} is for GPUs; found {device.name}. "
            f"Set precision to {other} (add --set precision={other} to the command)."
        )
    if settings.optimizer.name == "muon" and device.kind == "cuda" and not device.has_bf16:
        raise InvalidSettings(  # torch/optim/_muon.py:55 (2.13) casts every gradient to bfloat16
            f"optimizer.name: muon multiplies gradients in bfloat16, which {device.name} only emulates, at half the "
            f"speed of fp32. Set it to adamw."
        )
    if settings.float8.recipe != "none" and "float8" not in device.peak_flops_per_second:
        raise InvalidSettings(
            f"float8.recipe: needs products in float8 (compute capability 8.9 or more) at a rate that the catalogue "
            f"has; it has none of {device.name}. Set float8.recipe to none."
        )
    if precision == "tf32" and "tfloat32" not in device.peak_flops_per_second:
        raise InvalidSettings(
            f"precision: tf32 needs tensor cores of compute capability 8.0 or more; {device.name} has none. "
            f"Set precision to fp32{' or fp16-mixed' if device.kind == 'cuda' else ''}."
        )
