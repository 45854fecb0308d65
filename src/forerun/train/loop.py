"""The training loop: a generator of step reports around the shared training step.

One `Training` is one process's share of a run: it resumes from the newest good checkpoint in its folder, so that a run
killed at any moment and started again ends with the weights of a run that was not. Everything that decides the next
update is restored: weights, optimizer state, loss scale, random generators, and the position in the data, which is a
function of the step alone.
"""

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from forerun.errors import NonFiniteLoss
from forerun.hardware.host_memory import freed_memory_held
from forerun.records import MeasuredRun, Measurement, RunPhases, StepReport
from forerun.settings.schema import Settings
from forerun.step.training_step import StepResult, TrainingStep
from forerun.step.workload import Batch
from forerun.train import measure
from forerun.train.checkpoint import checkpoints, load_newest, prune_checkpoints, save_checkpoint
from forerun.train.data_source import TrainingData
from forerun.train.evidence import Witness
from forerun.train.interrupt import Interrupted, StopRequest, listening
from forerun.train.schedule import Schedule

COLD_STEPS = 2
"""Steps after a start or a change of what is trained that do not count as warm."""

Evaluate = Callable[[TrainingStep, int], dict[str, float]]
"""Scores the model after an optimizer step (counted from 1)."""


def seed_everything(seed: int) -> None:
    """Start Python's, NumPy's and PyTorch's generators from `seed`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@dataclass
class Elapsed:
    """Seconds by phase over all processes of a run, kept in its checkpoints."""

    startup_seconds: float = 0.0
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    checkpoint_seconds: float = 0.0


@dataclass
class Training:
    """A run in progress; iterate over `steps()`."""

    step: TrainingStep
    data: TrainingData
    folder: Path
    """Where checkpoints are kept."""
    startup_seconds: float = 0.0
    """What loading data and building the model took before this object was made."""
    evaluate: Evaluate | None = None
    elapsed: Elapsed = field(default_factory=Elapsed)
    reports: list[StepReport] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    resumed_from: int = 0
    """Steps that were done before this process."""
    checkpoints_written: int = 0
    peak_allocated_bytes: int | None = None
    """On a CPU: of the heaviest step, once it has run."""

    def __post_init__(self) -> None:
        self.settings: Settings = self.step.settings
        self.timer = measure.PhaseTimer(self.step.device_type)
        self.schedule = Schedule(self.settings.schedule, len(self.data.epoch_steps(0)))
        self._order: tuple[int, Sequence[Sequence[Sequence[int]]]] = (0, self.data.epoch_steps(0))
        self._cold = COLD_STEPS
        self.witness = Witness(self.step.device_type)

    def steps(self) -> Iterator[StepReport]:
        """Run what is left, yielding a report after each optimizer step.

        Raises:
            Interrupted: somebody asked to stop; the checkpoint is written.
            NonFiniteLoss: the loss is not a number any more; the last good checkpoint stays.
            InvalidSettings: the folder holds checkpoints of other settings.
        """
        self._resume()
        measure.reset_peaks(self.step.device_type)
        self.witness = Witness(self.step.device_type)
        heaviest = self._heaviest_step()
        held = freed_memory_held() if self.step.device_type == "cpu" else contextlib.nullcontext()
        with listening() as request, held:
            for number, epoch, index in self.schedule.positions(self.resumed_from):
                self._set_freeze(number)
                yield self._one_step(number, epoch, index, profile=number == heaviest)
                self._after_step(number, request)

    def _resume(self) -> None:
        start = time.perf_counter()
        progress = load_newest(self.folder, self.step)
        if progress is not None:
            self.resumed_from = progress["step"]
            self.checkpoints_written = progress["checkpoints_written"]
            self.peak_allocated_bytes = progress["peak_allocated_bytes"]
            self.elapsed = Elapsed(**progress["elapsed"])
        self.elapsed.startup_seconds += self.startup_seconds + time.perf_counter() - start

    def _heaviest_step(self) -> int | None:
        """Step of the first epoch with the most padded tokens in one micro-batch; not the first, which is cold."""
        if self.step.device_type != "cpu" or self.peak_allocated_bytes is not None:
            return None
        last = min(self.schedule.total_steps, self.schedule.steps_per_epoch)
        candidates = range(min(COLD_STEPS, last - 1), last)
        return max(candidates, key=lambda n: max(self.data.tokens(b)[1] for b in self._batches(0)[n]))

    def _batches(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        if self._order[0] != epoch:
            self._order = (epoch, self.data.epoch_steps(epoch))
        return self._order[1]

    def _set_freeze(self, number: int) -> None:
        frozen = number < self.schedule.frozen_steps
        if number in (self.resumed_from, self.schedule.frozen_steps):
            self.step.freeze_encoder(frozen)
            self._cold = COLD_STEPS

    def _one_step(self, number: int, epoch: int, index: int, *, profile: bool) -> StepReport:
        start = self.timer.now()
        order = self._batches(epoch)[index]
        batches = [self._to_device(self.data.collate(indices)) for indices in order]
        data_seconds = self.timer.now() - start
        rate = self._set_learning_rate(number)
        if profile:
            result, self.peak_allocated_bytes = measure.run_measuring_allocations(
                lambda: self.step.run(batches, self.timer), self.step, batches
            )
        else:
            result = self.step.run(batches, self.timer)
        loss = float(result.loss)
        seconds = self.timer.now() - start
        self.timer.seconds["data_seconds"] += data_seconds
        self._require_finite(loss, number)
        report = self._report(number, rate, seconds, loss, result, order, is_profiled=profile)
        self.elapsed.training_seconds += seconds
        self.reports.append(report)
        self.witness.step_done()
        return report

    def _report(
        self,
        number: int,
        rate: float,
        seconds: float,
        loss: float,
        result: StepResult,
        order: Sequence[Sequence[int]],
        *,
        is_profiled: bool,
    ) -> StepReport:
        counts = [self.data.tokens(indices) for indices in order]
        is_warm, self._cold = self._cold == 0 and not is_profiled, max(0, self._cold - 1)
        return StepReport(
            step=number + 1,
            epoch=(number + 1) / self.schedule.steps_per_epoch,
            loss=loss,
            learning_rate=rate,
            step_seconds=seconds,
            phases=self.timer.take(seconds),
            samples=sum(len(indices) for indices in order),
            tokens=sum(real for real, _ in counts),
            padded_tokens=sum(padded for _, padded in counts),
            gradient_norm=None if result.gradient_norm is None else float(result.gradient_norm),
            is_warm=is_warm,
            details={name: float(value) for name, value in result.details.items()},
        )

    def _to_device(self, batch: Batch) -> Batch:
        if self.step.device_type == "cpu":
            return batch
        return {k: v.pin_memory().to(self.step.device_type, non_blocking=True) for k, v in batch.items()}

    def _set_learning_rate(self, number: int) -> float:
        rate = self.settings.optimizer.learning_rate * self.schedule.factor(number)
        for group in self.step.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        return rate

    def _require_finite(self, loss: float, number: int) -> None:
        if not math.isfinite(loss):
            good = checkpoints(self.folder)
            raise NonFiniteLoss(
                f"The loss of step {number + 1} is {loss}. Last good checkpoint: {good[-1] if good else 'none yet'}. "
                f"Lower optimizer.learning_rate, set optimizer.max_gradient_norm to 1.0, or use a wider precision."
            )

    def _after_step(self, number: int, request: StopRequest) -> None:
        done = number + 1
        is_last = done == self.schedule.total_steps
        if self.evaluate is not None and self.schedule.evaluates_after(number, self.settings.evaluation.every_epochs):
            self._evaluate(self.evaluate, done)
        if done % self.settings.checkpoints.every_steps == 0 or is_last or request.is_set:
            path = self._save(done)
            if request.is_set and not is_last:
                raise Interrupted(done, path)

    def _evaluate(self, evaluate: Evaluate, done: int) -> None:
        start = self.timer.now()
        self.step.model.eval()
        with torch.random.fork_rng(), torch.no_grad():  # numbers drawn here change nothing in training
            self.evaluations.append((done, evaluate(self.step, done)))
        self.step.model.train()
        self.elapsed.evaluation_seconds += self.timer.now() - start

    def _save(self, done: int) -> Path:
        start = time.perf_counter()
        self.checkpoints_written += 1
        progress = {
            "step": done,
            "checkpoints_written": self.checkpoints_written,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "elapsed": vars(self.elapsed),
        }
        path = save_checkpoint(self.folder, self.step, progress)
        prune_checkpoints(self.folder, self.settings.checkpoints.keep_last)
        self.elapsed.checkpoint_seconds += time.perf_counter() - start
        return path

    def measurement(
        self, gpu: str, reports: Sequence[StepReport], metrics: dict[str, float], final_evaluation_seconds: float = 0.0
    ) -> Measurement:
        """What the run took. `reports` are those of the whole run, earlier processes included."""
        compiling = measure.compile_seconds(self.settings, reports)
        phases = RunPhases(
            startup_seconds=self.elapsed.startup_seconds,
            compile_seconds=compiling,
            training_seconds=self.elapsed.training_seconds - compiling,
            evaluation_seconds=self.elapsed.evaluation_seconds + final_evaluation_seconds,
            checkpoint_seconds=self.elapsed.checkpoint_seconds,
        )
        saved = checkpoints(self.folder)
        return Measurement(
            settings_hash=self.settings.hash,
            gpu=gpu,
            parameters=measure.parameters_of(self.step),
            memory=measure.measured_memory(self.step.device_type, self.peak_allocated_bytes),
            step=measure.measured_step(reports),
            run=MeasuredRun(
                steps_per_epoch=self.schedule.steps_per_epoch,
                total_steps=self.schedule.total_steps,
                checkpoints_written=self.checkpoints_written,
                checkpoint_bytes=sum(f.stat().st_size for f in saved[-1].iterdir()) if saved else 0,
                seconds=sum(phases.model_dump().values()),
                phases=phases,
            ),
            metrics=metrics,
            versions=measure.versions(),
            evidence=self.witness.evidence(len(self.reports), sum(r.padded_tokens for r in self.reports)),
        )
