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
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from forerun.current_work import work
from forerun.errors import NonFiniteLoss, UserNote
from forerun.hardware.host_memory import freed_memory_held
from forerun.records import MeasuredRun, Measurement, RunEvidence, RunPhases, StepReport
from forerun.settings.schema import Settings
from forerun.step.training_step import StepResult, TrainingStep
from forerun.step.workload import BLANK, Batch
from forerun.train import measure
from forerun.train.alive import AliveCheck, TrivialLoss
from forerun.train.best import BEST, BestBy, BestCheckpoint
from forerun.train.checkpoint import load_newest
from forerun.train.checkpoint_files import checkpoints, newest_of
from forerun.train.data_source import TrainingData
from forerun.train.evidence import Witness
from forerun.train.interrupt import Interrupted, StopRequest, listening
from forerun.train.loader import Loader, coming_steps
from forerun.train.ranks import agree, share
from forerun.train.recovery import Recovery, failures_told
from forerun.train.saving import CheckpointWarning, Saver, report_failed_save
from forerun.train.schedule import Schedule

PERSISTENT = 5
"""Steps in a row without a finite loss and gradient after which a run stops."""
COLD_STEPS = 2
"""Steps after a start or a change of what is trained that do not count as warm."""

ON_HOST = ("count", "longest")
"""Entries of a batch that the host reads."""
Evaluate = Callable[[TrainingStep, int], dict[str, float]]
"""Scores the model after an optimizer step (counted from 1)."""
Watch = Callable[[TrainingStep, StepReport], None]
"""Looks at every step once it is done, before it is reported or saved; may raise to stop the run."""


class NotLearningWarning(UserNote):
    """Something that should be trained is not."""


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
    """Folder of the checkpoints."""
    startup_seconds: float = 0.0
    """Seconds that loading data and building the model took before this object was made."""
    evaluate: Evaluate | None = None
    trivial: TrivialLoss | None = None
    """Loss of an answer that ignores its inputs, if the recipe states one; training must fall below it."""
    watch: Watch | None = None
    best_by: BestBy | None = None
    """Score of the evaluations by which the best model is kept, and training stops early."""
    elapsed: Elapsed = field(default_factory=Elapsed)
    reports: list[StepReport] = field(default_factory=list)
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    resumed_from: int = 0
    """Steps that were done before this process."""
    peak_allocated_bytes: int | None = None
    """Peak of allocated bytes in the heaviest step on a CPU; None before it has run, and on a GPU."""

    def __post_init__(self) -> None:
        self.settings: Settings = self.step.settings
        self.timer = measure.PhaseTimer(self.step.device_type)
        self.schedule = Schedule(self.settings.schedule, len(self.data.epoch_steps(0)))
        self._order: tuple[int, Sequence[Sequence[Sequence[int]]]] = (0, self.data.epoch_steps(0))
        self._cold, self._shapes = COLD_STEPS, measure.SeenShapes(self.step.device_type)
        self.witness = Witness(self.step.device_type)
        self.recovery = Recovery(self.step)
        self.saver = Saver(self.folder, self.step)
        self.loader = Loader(self.data, self.settings, self.step.device_type)
        self.alive = AliveCheck(self.step, self.schedule.total_steps, self.trivial)
        self._skipped_in_a_row = self._reported_findings = 0
        patience, folder = self.settings.evaluation.patience, self.folder.parent / BEST
        self.best = None if self.best_by is None else BestCheckpoint(self.best_by, folder, patience)
        self._is_save_due = False
        self.done_steps = 0
        """Optimizer steps of the whole run so far."""

    def steps(self) -> Iterator[StepReport]:
        """Run what is left, yielding a report after each optimizer step.

        Raises:
            Interrupted: somebody asked to stop; the checkpoint is written.
            NonFiniteLoss: loss or gradient are no numbers in several steps in a row; the last good checkpoint stays.
            OutOfMemory: not even one sample at a time fits.
            DeviceFailed: the GPU failed or disappeared; the last good checkpoint stays.
            InvalidSettings: the folder holds checkpoints of other settings.
        """
        self._resume()
        measure.reset_peaks(self.step.device_type)
        self.witness = Witness(self.step.device_type)
        heaviest = self._heaviest_steps()
        freed_memory = freed_memory_held() if self.step.device_type == "cpu" else contextlib.nullcontext()
        # glibc gives freed memory back to the kernel by default, and each step would fault its pages in again
        with listening() as request, freed_memory, failures_told(self.folder), contextlib.closing(self.loader):
            for number, epoch, index in self.schedule.positions(self.resumed_from):
                if self.is_over:
                    break
                self._set_freeze(number)
                yield self._one_step(number, epoch, index, profile=number in heaviest)
                self._warn_of_findings()
                self._after_step(number, request)

    @property
    def is_over(self) -> bool:
        """Whether training has stopped early."""
        return self.best is not None and self.best.is_over

    def load_best(self) -> None:
        """Put the weights of the best evaluation into the model, where they are kept."""
        if self.best is not None:
            self.best.load(self.step)

    def _resume(self) -> None:
        start = time.perf_counter()
        progress = load_newest(self.folder, self.step)
        if progress is not None:
            self.resumed_from = progress["step"]
            self.saver.written_checkpoints = progress["checkpoints_written"]
            self.peak_allocated_bytes = progress["peak_allocated_bytes"]
            self.elapsed = Elapsed(**progress["elapsed"])
            self.done_steps = self.resumed_from
            if self.best is not None:
                self.best.restore(progress.get(BEST))
        self.elapsed.startup_seconds += self.startup_seconds + time.perf_counter() - start

    def _heaviest_steps(self) -> set[int]:
        """Steps with the most padded tokens in one micro-batch, where a CPU's peak of allocated bytes is measured."""
        if self.step.device_type != "cpu":
            return set()

        def tokens_of(epoch: int) -> list[int]:
            own = (share(order, self.settings.parallel)[0] for order in self._batches(epoch))
            return [max((self.data.tokens(batch)[1] for batch in batches), default=0) for batches in own]

        return self.schedule.heaviest_steps(tokens_of)

    def _batches(self, epoch: int) -> Sequence[Sequence[Sequence[int]]]:
        if self._order[0] != epoch:
            self._order = (epoch, self.data.epoch_steps(epoch))
        return self._order[1]

    def _coming(self, number: int) -> Iterator[list[Sequence[int]]]:
        return coming_steps(self.schedule.positions(number), self.data.epoch_steps, self.settings.parallel)

    def _set_freeze(self, number: int) -> None:
        frozen = number < self.schedule.frozen_steps
        if number in (self.resumed_from, self.schedule.frozen_steps):
            self.step.freeze_encoder(frozen)
            self._cold = COLD_STEPS
            self.alive.begin(number)

    def _one_step(self, number: int, epoch: int, index: int, *, profile: bool) -> StepReport:
        start = self.timer.now()
        order = self._batches(epoch)[index]
        own, blanks = share(order, self.settings.parallel)
        batches = [self._to_device(batch) for batch in self.loader.take(own, lambda: self._coming(number))]
        if blanks:  # every rank must take part in the exchange of gradients, or the others wait for ever
            blank = self._to_device(self.data.collate(order[0]))
            batches += [{**blank, BLANK: torch.zeros(())}] * blanks
        data_seconds = self.timer.now() - start
        self._cold = max(self._cold, self._shapes.new_in(batches))
        rate = self._set_learning_rate(number)
        if profile:
            result, peak_bytes = measure.run_measuring_allocations(
                lambda: self.recovery.run(batches, self.timer), self.step, batches
            )
            self.peak_allocated_bytes = max(self.peak_allocated_bytes or 0, peak_bytes)
        else:
            result = self.recovery.run(batches, self.timer)
        loss = float(result.loss)
        seconds = self.timer.now() - start
        self.timer.seconds["data_seconds"] += data_seconds
        self.loader.step_done(data_seconds, seconds)
        self._count_skipped(result, loss, number)
        self.witness.step_done()
        report = self._report(number, rate, seconds, loss, result, order, is_profiled=profile)
        self.elapsed.training_seconds += seconds
        self.reports.append(report)
        self.alive.step_done(number + 1, is_skipped=result.is_skipped)
        self.alive.check_loss(report)
        if self.watch is not None:
            self.watch(self.step, report)
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
        is_usual = not (is_profiled or result.is_skipped or self.recovery.times)
        is_warm, self._cold = self._cold == 0 and is_usual, max(0, self._cold - 1)
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
            is_skipped=result.is_skipped,
            out_of_memory=self.recovery.times,
            peak_allocated_bytes=torch.cuda.max_memory_allocated() if self.step.device_type == "cuda" else None,
            gpu_busy_share=self.witness.busy_share,
            gpu_clock_share=self.witness.clock_share,
            details={name: float(value) for name, value in result.details.items()},
        )

    def _to_device(self, batch: Batch) -> Batch:
        if self.step.device_type == "cpu":
            return batch
        pinned = {k: v if v.is_pinned() else v.pin_memory() for k, v in batch.items() if k not in ON_HOST}
        moved = {k: v.to(self.step.device_type, non_blocking=True) for k, v in pinned.items()}
        return moved | {k: v for k, v in batch.items() if k in ON_HOST}

    def _set_learning_rate(self, number: int) -> float:
        rate = self.settings.optimizer.learning_rate * self.schedule.factor(number)
        for group in self.step.optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        return rate

    def _count_skipped(self, result: StepResult, loss: float, number: int) -> None:
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if result.is_skipped else 0
        if self._skipped_in_a_row >= PERSISTENT:
            norm = math.nan if result.gradient_norm is None else float(result.gradient_norm)
            raise NonFiniteLoss(
                f"Loss or gradient were not finite in {PERSISTENT} steps in a row; of step {number + 1} the loss is "
                f"{loss} and the gradient's norm {norm}. Their updates were skipped. "
                f"Last good checkpoint: {newest_of(self.folder)}. Lower "
                f"optimizer.learning_rate, set optimizer.max_gradient_norm to 1.0, or use a wider precision."
            )

    def _warn_of_findings(self) -> None:
        for finding in self.alive.findings[self._reported_findings :]:
            warnings.warn(f"Is it alive? {finding}", NotLearningWarning, stacklevel=3)
        self._reported_findings = len(self.alive.findings)

    def _after_step(self, number: int, request: StopRequest) -> None:
        self.done_steps = step = number + 1
        if self.evaluate is not None and self._evaluates_after(number):
            self._evaluate(self.evaluate, step)
        is_last = step == self.schedule.total_steps or self.is_over
        stops = agree(request.is_set, self.step.device_type)
        if self.saves_after(self.reports[-1]) or is_last or stops:
            self._is_save_due = False
            path = self._save(step, is_last=is_last or stops)
            if stops and not is_last and path is not None:
                raise Interrupted(step, path)

    def saves_after(self, report: StepReport) -> bool:
        """Whether a checkpoint follows a step for its number's sake.

        One that is due in a skipped step is put off to the next good one: should the run end for losses that are no
        numbers, it goes on from before them.
        """
        self._is_save_due |= report.step % self.settings.checkpoints.every_steps == 0
        return self._is_save_due and not report.is_skipped

    def _evaluates_after(self, number: int) -> bool:
        """Where the best model is kept, the last one is a candidate too."""
        is_due = self.schedule.evaluates_after(number, self.settings.evaluation.every_epochs)
        return is_due or (self.best is not None and number + 1 == self.schedule.total_steps)

    def _evaluate(self, evaluate: Evaluate, step: int) -> None:
        start = self.timer.now()
        self.step.model.eval()
        # fork_rng: numbers drawn here change nothing in training
        with work("scoring the validation rows"), torch.random.fork_rng(), torch.no_grad():
            scores = evaluate(self.step, step)
        self.evaluations.append((step, scores))
        failure = None if self.best is None else self.best.observe(scores, step, self.step)
        if failure is not None:
            warnings.warn(
                f"The best model so far, of step {step}, could not be written: {failure}. Free space or change "
                f"permissions in {self.folder.parent}. Training goes on.", CheckpointWarning, stacklevel=3,
            )  # fmt: skip
        self.step.model.train()
        self.elapsed.evaluation_seconds += self.timer.now() - start

    def _save(self, step: int, *, is_last: bool) -> Path | None:
        """Save a checkpoint; where that fails and steps are left, the run goes on and the one before stays."""
        start = time.perf_counter()
        failure = self.saver.settle()
        report_failed_save(self.folder, failure, is_last=False)
        if self.best is not None:
            self.best.checkpoint_written(is_durable=failure is None)
        progress = {
            "step": step,
            "checkpoints_written": self.saver.written_checkpoints + 1,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "elapsed": vars(self.elapsed).copy(),
            **({} if self.best is None else {BEST: self.best.progress()}),
        }
        failure = self.saver.save(progress)
        if is_last and failure is None:
            failure = self.saver.settle()
        report_failed_save(self.folder, failure, is_last=is_last)
        if is_last and self.best is not None:
            self.best.checkpoint_written(is_durable=failure is None)
        self.elapsed.checkpoint_seconds += time.perf_counter() - start
        return None if failure is not None else self.folder / f"step-{step:08d}"

    def measurement(
        self, gpu: str, reports: Sequence[StepReport], metrics: dict[str, float], final_evaluation_seconds: float = 0.0
    ) -> Measurement:
        """Time and memory that the run took. `reports` are those of the whole run, earlier processes included."""
        starting, compiling = measure.cold_seconds(self.settings, self.step.device_type, reports)
        phases = RunPhases(
            startup_seconds=self.elapsed.startup_seconds + starting,
            compile_seconds=compiling,
            training_seconds=self.elapsed.training_seconds - starting - compiling,
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
                total_steps=self.done_steps,
                checkpoints_written=self.saver.written_checkpoints,
                checkpoint_bytes=sum(f.stat().st_size for f in saved[-1].iterdir()) if saved else 0,
                seconds=sum(phases.model_dump().values()),
                phases=phases,
                stopped_early=self.best.stop_said(self.done_steps, self.schedule.total_steps) if self.best else "",
            ),
            metrics=metrics,
            versions=measure.versions(),
            evidence=self._evidence(reports),
        )

    def _evidence(self, reports: Sequence[StepReport]) -> RunEvidence:
        """State of the machine while this process trained, and failed steps of the whole run."""
        usual = measure.measured_step(reports).seconds
        repeated = [r for r in reports if r.out_of_memory]
        return self.witness.evidence(len(self.reports), sum(r.padded_tokens for r in self.reports)).model_copy(
            update={
                "out_of_memory_steps": len(repeated),
                "out_of_memory_seconds": sum(max(0.0, r.step_seconds - usual) for r in repeated),
                "skipped_steps": sum(r.is_skipped for r in reports),
            }
        )
