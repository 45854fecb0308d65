"""What a claims file says about the run that its claims are about, and what follows from it.

A configuration is a GPU and settings as `forerun forecast` takes them, so a claims file and a run are described in the
same words. Checks read it through a `Context`, which says what is missing when a check needs more than was given.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from forerun.audit.architecture import ArchitectureCounts, architecture_of, passes
from forerun.errors import InvalidSettings, MissingPeak
from forerun.hardware.catalogue import Device, device
from forerun.records import Forecast, Measurement
from forerun.settings.schema import Precision, Settings

Value = TypeVar("Value")
Forecaster = Callable[[Settings, str], Forecast]
"""Settings and the name of a GPU → their forecast."""
Measurer = Callable[[str], Measurement]
"""Id of a run, a unique beginning of it, or `last` → what it measured."""
PEAK_DTYPES: dict[Precision, tuple[str, ...]] = {
    "fp32": ("float32",), "tf32": ("tfloat32", "float32"), "fp16-mixed": ("float16",), "fp16-true": ("float16",),
    "bf16-mixed": ("bfloat16",), "bf16-true": ("bfloat16",),
}  # fmt: skip


@dataclass(frozen=True)
class Context:
    """One configuration of a claims file; `settings` and `gpu` are None where the file gives none."""

    name: str = ""
    settings: Settings | None = None
    gpu: str | None = None
    drop_last: bool = False
    """Whether the last partial micro-batch of an epoch is left out."""
    forecaster: Forecaster | None = None
    measurer: Measurer | None = None

    @property
    def run(self) -> Settings:
        """The settings.

        Raises:
            InvalidSettings: the file gives none.
        """
        return self._need(self.settings, "settings", "settings: {model: {name: …}, batch: …}")

    @property
    def device(self) -> Device:
        """The GPU.

        Raises:
            InvalidSettings: the file names none.
            UnknownDevice: the catalogue has no such GPU.
        """
        return device(self._need(self.gpu, "gpu", "gpu: a100-40gb"))

    @property
    def examples(self) -> int:
        """Number of samples in an epoch."""
        return self._need(self.run.data.examples, "data.examples", "settings: {data: {examples: …}}")

    @property
    def micro_steps_per_epoch(self) -> int:
        """Batches that a loader makes of an epoch, on one device."""
        per_step = self.run.batch.micro_batch_size * self.run.parallel.data_ranks
        return (math.floor if self.drop_last else math.ceil)(self.examples / per_step)

    @property
    def updates_per_epoch(self) -> int:
        """Optimizer updates; a last partial accumulation counts."""
        return math.ceil(self.micro_steps_per_epoch / self.run.batch.gradient_accumulation_steps)

    @property
    def updates(self) -> int:
        """Optimizer updates of the run."""
        if self.run.schedule.max_steps is not None and self.run.data.examples is None:
            return self.run.schedule.max_steps
        whole = math.ceil(self.run.schedule.epochs * self.updates_per_epoch)
        return whole if self.run.schedule.max_steps is None else min(whole, self.run.schedule.max_steps)

    @property
    def tokens_per_sample(self) -> float:
        """Mean tokens where given, else the length that samples are padded to."""
        return self.run.data.mean_tokens or float(self.run.batch.sequence_length)

    @cached_property
    def architecture(self) -> ArchitectureCounts:
        """Parameter and FLOP counts of the model."""
        return architecture_of(self.run)

    def peak(self, dtype: str | None = None) -> float:
        """Dense peak of the device, in FLOP/s, in the run's precision or for `dtype`.

        Raises:
            MissingPeak: the hardware has no such arithmetic.
        """
        peaks = self.device.peak_flops_per_second
        dtypes = (dtype,) if dtype else PEAK_DTYPES[self.run.precision]
        flops_per_second = next((peaks[name] for name in dtypes if name in peaks), None)
        if flops_per_second is None:
            raise MissingPeak(f"No dense peak for {dtypes[0]} on {self.device.name}. Known: {', '.join(peaks)}.")
        return flops_per_second

    def least_seconds(self, samples: float, tokens: float, frozen: bool = False) -> float:
        """Seconds of training on so many samples of so many tokens, were every product at the peak of all devices.

        Frozen encoders do the forward pass alone. Forward passes through int8 layers count at the peak of int8.
        """
        forward = samples * tokens * self.architecture.forward_flops(tokens) / self.run.parallel.world_size
        peak = self.peak()
        # bitsandbytes LLM.int8() multiplies int8 tensors in the forward pass alone; the backward pass uses 16 bits.
        first = self.peak("int8") if self.run.quantization == "int8" else peak
        count = 1.0 if frozen else passes(self.run)
        recomputed = 1.0 if self.run.activation_checkpointing == "blocks" and not frozen else 0.0
        forwards = 1.0 + recomputed
        return forward * (forwards / first + (count - forwards) / peak)

    def forecast(self) -> Forecast:
        """Our own forecast of the configuration.

        Raises:
            InvalidSettings: nobody gave this audit a way to forecast.
        """
        if self.forecaster is None:
            raise InvalidSettings("This check needs a forecast. Audit with `forerun audit`, which makes one.")
        return self.forecaster(self.run, self.device.name)

    def measured(self, run_id: str) -> Measurement:
        """The measurement of a run in the ledger.

        Raises:
            InvalidSettings: nobody gave this audit a ledger, or the run has not finished.
            RunNotFound: the ledger has no such run.
        """
        if self.measurer is None:
            raise InvalidSettings("This check needs the ledger. Audit with `forerun audit`, which opens it.")
        return self.measurer(run_id)

    def _need(self, value: Value | None, what: str, remedy: str) -> Value:
        if value is None:
            where = f"configuration {self.name!r}" if self.name else "the claims file"
            raise InvalidSettings(f"{where} gives no {what}, which this check needs. Add {remedy}.")
        return value
