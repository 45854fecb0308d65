"""What does a run show in the terminal? Forecast, progress, tables, verdict. Progress goes to stderr."""

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from forerun.hardware.processor_time import ProcessorTime, crowd_note
from forerun.records import Forecast, Range, StepReport, Verdict
from forerun.report.terminal import forecast_table, result_table, verdict_table
from forerun.runs.recipe import Judgement
from forerun.runs.run import RunListener
from forerun.runs.watching import RunningCurve
from forerun.train.loop import Training
from forerun.units import format_bytes, format_seconds

PLAIN_LINES = 10
"""Lines of progress of a whole run where stderr is no terminal."""


class TerminalProgress(RunListener):
    """Shows tables on stdout and progress on stderr; a quiet one shows only progress."""

    def __init__(self, *, quiet: bool = False):
        self.processors = ProcessorTime()
        self.out = Console(quiet=quiet)
        self.err = Console(stderr=True)
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.run_id = ""
        self.evaluations = 0
        self.forecast: Forecast | None = None
        self.losses = RunningCurve()

    def forecast_made(self, forecast: Forecast) -> None:
        """Show the forecast."""
        self.forecast = forecast
        self.out.print(forecast_table(forecast, "Forecast"))
        if note := crowd_note(self.processors, torch.get_num_threads()):
            self.err.print(note, soft_wrap=True, highlight=False)

    def training_begins(self, run_id: str, training: Training) -> None:
        """Open the progress bar."""
        self.training, self.run_id = training, run_id
        total = training.schedule.total_steps
        self.err.print(f"Run {run_id}: training, {total} steps. Ctrl-C stops after a step and leaves a resumable run.")
        if training.step.documents is not None:
            self.err.print(training.step.documents.description, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.progress = Progress(*columns, console=self.err, transient=True)
        self.task = self.progress.add_task("steps", total=total, note="")
        if self.err.is_terminal:
            self.progress.start()

    def step_done(self, report: StepReport, left: Range) -> None:
        """Move the bar; without a terminal, print a line now and then."""
        total = self.training.schedule.total_steps
        note = progress_note(report, left, psutil.Process().memory_info().rss)
        self.losses.add(report.loss)
        if self.progress is not None and self.task is not None and self.err.is_terminal:
            self.progress.update(self.task, completed=report.step, note=_in_lines(note, self.losses.line()))
        if not self.err.is_terminal and report.step % max(1, total // PLAIN_LINES) == 0:
            self.err.print(f"step {report.step}/{total}  {note}", highlight=False)
        self._say_evaluations()

    def training_done(self) -> None:
        """Close the bar, and say what comes next."""
        self._say_evaluations()
        self.close()
        self.err.print(f"loss {self.losses.line()}", highlight=False)
        after = self.forecast.detail.final_evaluation_seconds if self.forecast is not None else 0.0
        long = f", forecast to take the model {format_seconds(after)}" if after else ""
        best, total = self.training.best, self.training.schedule.total_steps
        early = "" if best is None else best.stop_said(self.training.done_steps, total)
        ending = f"Training {early}." if early else "Training is done."
        self.err.print(f"{ending} Scoring held-out data{long}, and the baselines.", soft_wrap=True, highlight=False)

    def _say_evaluations(self) -> None:
        for number, scores in self.training.evaluations[self.evaluations :]:
            self.say_evaluation(number, scores)

    def say_evaluation(self, number: int, scores: dict[str, float]) -> None:
        """One line per evaluation between epochs."""
        self.evaluations += 1
        text = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items())
        self.err.print(f"after step {number}: {text}", highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def judged(self, judgement: Judgement) -> None:
        """Show the evaluation."""
        for table in judgement.tables:
            self.out.print(result_table(table))

    def verified(self, verdict: Verdict) -> None:
        """Show the verdict."""
        self.out.print(verdict_table(verdict))


def _in_lines(note: str, curve: str) -> str:
    """A note and the loss's curve below each other: a terminal of 80 columns cuts what is longer."""
    loss, rate, speed, *others = note.split("  ")
    return "\n".join(["  ".join((loss, rate, speed)), "  ".join(others), curve])


def progress_note(report: StepReport, left: Range, resident_bytes: int) -> str:
    """Loss, rate, tokens per second, memory (the GPU's peak, else what the process holds), and the time left."""
    speed, peak = report.tokens / report.step_seconds, report.peak_allocated_bytes
    memory = f"{format_bytes(resident_bytes)} resident" if peak is None else f"peak {format_bytes(peak)}"
    text = f"loss {report.loss:.4f}  lr {report.learning_rate:.2e}  {speed:,.0f} tokens/s  {memory}"
    if not left.expected:
        return text
    return f"{text}  left {format_seconds(left.optimistic)} to {format_seconds(left.conservative)}"
