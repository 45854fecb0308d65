"""Measures a Trainer's run, enters it with its forecast in the ledger, and compares the two."""

import time
from collections import Counter
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from forerun.errors import InvalidSettings
from forerun.hf.on_host import WORKLOAD
from forerun.ledger.store import Ledger, default_url, open_ledger
from forerun.records import (
    Forecast,
    MeasuredRun,
    MeasuredStep,
    Measurement,
    ParameterCounts,
    RunPhases,
    StepPhases,
    Verdict,
)
from forerun.train import measure
from forerun.train.evidence import Witness
from forerun.verify.compare import verify

COLD_STEPS = 2
"""Steps at the start of a run that do not count as warm."""


class ForerunCallback(TrainerCallback):
    """Measures a `Trainer` run, enters it with its forecast in the ledger, and compares the two."""

    def __init__(self, forecast: Forecast, ledger: str | None = None):
        """`ledger` is a SQLAlchemy URL; without one it is the user's own."""
        self.forecast = forecast
        self.url = ledger or default_url()
        self.verdict: Verdict | None = None
        """The verdict, once training has ended."""
        self._step_seconds: list[float] = []
        self._since = 0.0
        self._phases: Counter[str] = Counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock and reset the memory peaks."""
        device = args.device.type
        measure.reset_peaks(device)
        self._device, self._witness, self._started = device, Witness(device), time.perf_counter()
        self._mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the time of an optimizer step."""
        self._step_seconds.append(self._mark())
        self._witness.step_done()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the time of an evaluation."""
        self._phases["evaluation_seconds"] += self._mark()  # type: ignore[assignment]

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the time of a checkpoint."""
        self._phases["checkpoint_seconds"] += self._mark()  # type: ignore[assignment]
        self._phases["written"] += 1

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Enter the run in the ledger and compare it with its forecast."""
        measured = self._measurement(model)
        with open_ledger(self.url) as ledger:
            run_id = self._enter(ledger, args, measured)
            self.verdict = verify(run_id, self.forecast, measured)
            ledger.record_verdict(run_id, self.verdict)
            ledger.record_event(run_id, "verified")

    def _enter(self, ledger: Ledger, args: Any, measured: Measurement) -> str:
        run_id = ledger.start_run(
            name=args.run_name or WORKLOAD, workload=WORKLOAD, settings={"workload": WORKLOAD},
            settings_hash=self.forecast.settings_hash, gpu=self.forecast.gpu, folder=args.output_dir or "",
            versions=measure.versions(),
        )  # fmt: skip
        ledger.record_forecast(run_id, self.forecast)
        ledger.record_measurement(run_id, measured)
        ledger.record_event(run_id, "finished")
        return run_id

    def _measurement(self, model: nn.Module) -> Measurement:
        warm = self._step_seconds[COLD_STEPS:] or self._step_seconds
        if not warm:
            raise InvalidSettings("The Trainer made no steps, so there is nothing to compare. Train at least one.")
        seconds, expected = sum(warm) / len(warm), self.forecast.step
        phases = RunPhases(
            training_seconds=sum(self._step_seconds), evaluation_seconds=self._phases["evaluation_seconds"],
            checkpoint_seconds=self._phases["checkpoint_seconds"],
        )  # fmt: skip
        own = list(model.parameters())
        return Measurement(
            settings_hash=self.forecast.settings_hash,
            gpu=self.forecast.gpu,
            parameters=ParameterCounts(
                total=sum(p.numel() for p in own), trainable=sum(p.numel() for p in own if p.requires_grad)
            ),
            memory=measure.measured_memory(self._device, None),
            step=MeasuredStep(
                seconds=seconds,
                phases=StepPhases(host_seconds=seconds),
                tokens_per_second=expected.tokens_per_second * expected.seconds.expected / seconds,
                samples_per_second=expected.samples_per_second * expected.seconds.expected / seconds,
            ),
            run=MeasuredRun(
                steps_per_epoch=self.forecast.run.steps_per_epoch, total_steps=len(self._step_seconds),
                checkpoints_written=int(self._phases["written"]), checkpoint_bytes=self.forecast.run.checkpoint_bytes,
                seconds=time.perf_counter() - self._started, phases=phases,
            ),
            versions=measure.versions(),
            evidence=self._witness.evidence(len(self._step_seconds), 0),
        )  # fmt: skip

    def _mark(self) -> float:
        """Seconds since the last mark, once the device has finished its queued work."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        elapsed, self._since = now - self._since, now
        return elapsed
