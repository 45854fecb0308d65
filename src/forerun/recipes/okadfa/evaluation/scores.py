"""How a model of `okadfa` is judged: its loss beside tables of tokens and its shallow twin, and whether it is alive.

Watched in every step: the norm of the attention's output. Checked after the first step and at every evaluation: whether
the gradient is that of the learning rule. A run that fails either is stopped, with the reason (`MechanismDead`).
"""

import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from forerun.current_work import work
from forerun.evaluate.language import LanguageScore, bigram_loss, score_language, unigram_loss
from forerun.recipes.okadfa.data.windows import OkadfaData, symbols
from forerun.recipes.okadfa.evaluation.mechanism import (
    attention_floor,
    check_gradient,
    effective_rank,
    kernel_error,
    require_attention,
    require_rule,
)
from forerun.recipes.okadfa.model.kernel_decoder import KernelDecoder
from forerun.recipes.okadfa.workload import OkadfaOptions, OkadfaWorkload
from forerun.records import StepReport
from forerun.report.tables import Cell, ResultCurve, ResultTable, Series
from forerun.runs.recipe import Judgement
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings
from forerun.step.build import build_step
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch
from forerun.train.loop import Training, seed_everything
from forerun.train.schedule import Schedule
from forerun.verify.compare import Criterion

WARMUP_OF_PENALTY = 0.1
"""Share of the updates over which the orthogonality penalty comes in."""
CHECKED_WINDOWS = 4
"""Held-out windows on which gradients are compared."""
TWIN_LINES = 10
"""How often the twin's training says where it is."""

CRITERIA = (
    Criterion(
        name="beats a table of tokens", quantity="held_out_loss", comparison="below", bound="unigram_loss", margin=-0.5
    ),
    Criterion(name="beats a table of pairs", quantity="held_out_loss", comparison="below", bound="bigram_loss"),
    Criterion(name="beats training the last block only", quantity="held_out_loss", comparison="below",
              bound="shallow_loss"),
    Criterion(name="attention is alive", quantity="attention_ratio", comparison="above", bound="attention_floor"),
    Criterion(name="gradient is the rule's", quantity="gradient_is_the_rules", comparison="above", bound=0.5),
    Criterion(name="step time was forecast", quantity="step.seconds", comparison="error within", bound=0.30),
    Criterion(name="peak memory was forecast", quantity="peak_allocated_bytes", comparison="error within", bound=0.15),
)  # fmt: skip
"""Criteria that `forerun run okadfa` must meet."""


@dataclass
class Watcher:
    """Stops a run of `okadfa` that does not do what its settings say, and keeps the curve of its evaluations."""

    data: OkadfaData
    seconds: float = 0.0
    curve: dict[str, list[float]] = field(default_factory=lambda: {"step": [], "seconds": [], "loss": []})

    @property
    def watched_windows(self) -> int:
        """Validation windows scored each time: `evaluation.examples`, or all there are."""
        return min(self.settings.evaluation.examples or 1, self.data.count("val"))

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        return self.data.settings

    @property
    def options(self) -> OkadfaOptions:
        """Options of the recipe."""
        return recipe_options(self.settings, OkadfaOptions)

    def look(self, step: TrainingStep, report: StepReport) -> None:
        """After each step: stop if dead; bring in the penalty; draw new features when they are due.

        Raises:
            MechanismDead: the attention gives nothing, or the gradient is not the rule's.
        """
        model, options = decoder(step), self.options
        self.seconds += report.step_seconds
        require_attention(report.details["attention_ratio"], self.settings.batch.sequence_length, options.attention)
        if report.step == 1:
            require_rule(check_gradient(model, step.workload, self.probe(step)), options.learning_rule)
        total = Schedule(self.settings.schedule, len(self.data.training.epoch_steps(0))).total_steps
        model.orthogonality_share.fill_(min(1.0, report.step / max(1.0, WARMUP_OF_PENALTY * total)))
        if options.redraw_every and report.step % options.redraw_every == 0:
            # Seeded by the step: a resumed run draws the same features without a stored generator.
            model.redraw(self.settings.seed * 1_000_003 + report.step)

    def evaluate(self, step: TrainingStep, number: int) -> dict[str, float]:
        """Validation loss and the mechanism's figures, between epochs."""
        score = score_language(step.model, self.data.batches("val", self.watched_windows), step.settings.precision)
        for name, value in (("step", float(number)), ("seconds", self.seconds), ("loss", score.loss)):
            self.curve[name].append(value)
        return {"validation_loss": score.loss, "validation_perplexity": score.perplexity, **self.mechanism(step)}

    def mechanism(self, step: TrainingStep) -> dict[str, float]:
        """Figures of gradient, attention and states on held-out windows.

        Raises:
            MechanismDead: the gradient is not the rule's.
        """
        model, probe = decoder(step), self.probe(step)
        check = check_gradient(model, step.workload, probe)
        require_rule(check, self.options.learning_rule)
        with torch.no_grad():
            ratio = float(model(probe["input_ids"]).attention_ratios.min())
        figures = {f"gradient_cosine_{number}": c for number, c in enumerate(check.cosines) if c == c}  # no nan
        figures |= {
            "gradient_is_the_rules": 1.0,
            "attention_ratio": ratio,
            "attention_floor": attention_floor(self.settings.batch.sequence_length),
            "effective_rank": effective_rank(model, probe),
        }
        error = kernel_error(model, probe)
        return figures if error is None else {**figures, "kernel_error": error}

    def probe(self, step: TrainingStep) -> Batch:
        """A few held-out windows on the model's device."""
        device = next(step.model.parameters()).device
        batch = next(self.data.batches("val", 1))
        return {name: value[:CHECKED_WINDOWS].to(device) for name, value in batch.items()}

    def judge(self, step: TrainingStep) -> tuple[LanguageScore, dict[str, float]]:
        """Score of the test split and the mechanism's figures."""
        self.device = step.device_type
        step.model.eval()
        return score_language(step.model, self.data.batches("test"), step.settings.precision), self.mechanism(step)

    device: str = "cpu"

    def baselines(self, judged: tuple[LanguageScore, dict[str, float]]) -> Judgement:
        """The run beside its baselines."""
        score, mechanism = judged
        data, held_out = self.data, self.data.held_out["test"]
        metrics = {**score.metrics(data.words, data.bytes), **mechanism}
        metrics["unigram_loss"] = unigram_loss(data.train, held_out, data.vocabulary)
        metrics["bigram_loss"] = bigram_loss(data.train, held_out, data.vocabulary)
        if data.language is not None:
            metrics |= {"entropy": data.language.entropy, "without_attention": data.language.without_attention}
            if data.language.determined is not None:
                metrics["copied"] = float(score.is_right[data.language.determined.ravel()].mean())
                metrics["copied_by_chance"] = 1 / data.vocabulary
        if self.options.shallow_twin and self.options.learning_rule != "shallow":
            metrics["shallow_loss"] = shallow_twin(data, self.device).loss
        tables = [self._losses(metrics), self._mechanism_table(metrics)]
        return Judgement(metrics, tables, self._curves(), {"curve": self.curve})

    def _losses(self, metrics: dict[str, float]) -> ResultTable:
        own = f"{self.options.attention}, {self.options.learning_rule}"
        rows: list[list[Cell]] = [[own, metrics["held_out_loss"], metrics["token_perplexity"]]]
        named = {
            "shallow_loss": "last block and head only", "bigram_loss": "table of pairs",
            "unigram_loss": "table of single tokens", "entropy": "entropy of the language",
            "without_attention": "best without attention",
        }  # fmt: skip
        rows += [
            [label, metrics[key], math.exp(min(metrics[key], 700.0))] for key, label in named.items() if key in metrics
        ]
        length = self.settings.batch.sequence_length
        note = (
            f"{self.data.name}, tokenizer: {self.data.tokenizer}; windows of {length} tokens side by side, so "
            f"the context is 1 to {length} tokens. Perplexities per token compare only under this tokenizer"
        )
        if "bits_per_byte" in metrics:
            note += f"; {metrics['bits_per_byte']:.3f} bits per byte, word perplexity {metrics['word_perplexity']:.1f}"
        if "copied" in metrics:
            note += (
                f"; {metrics['copied']:.1%} of what can be copied is right, chance {metrics['copied_by_chance']:.1%}"
            )
        columns = ["model", "nats per token", "perplexity per token"]
        return ResultTable(title="Held-out loss beside its baselines", note=note + ".", columns=columns, rows=rows)

    def _mechanism_table(self, metrics: dict[str, float]) -> ResultTable:
        rows: list[list[Cell]] = [
            [name.replace("_", " "), value]
            for name, value in metrics.items()
            if name.startswith(("gradient_cosine", "attention_", "kernel_error", "effective_rank"))
        ]
        note = (
            "gradient cosine N: of block N's gradient with backpropagation's, after training. attention ratio: least "
            "norm of the output over that of the values. kernel error: of favor's output against softmax's."
        )
        return ResultTable(title="Is the mechanism alive?", note=note, columns=["figure", "value"], rows=rows)

    def _curves(self) -> list[ResultCurve]:
        line = Series(name=self.options.learning_rule, x=self.curve["step"], y=self.curve["loss"])
        return [ResultCurve(title="Validation loss", across="updates", up="nats per token", series=[line])]


def decoder(step: TrainingStep) -> KernelDecoder:
    """The model of a step of this recipe."""
    assert isinstance(step.model, KernelDecoder)
    return step.model


def shallow_twin(data: OkadfaData, device: str) -> LanguageScore:
    """Test score of the same model and data, of which only last block and head were trained, for as many updates."""
    settings = twin_settings(data.settings)
    # fork_rng: the twin must not move the random state that the run goes on with.
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        seed_everything(settings.seed)
        step = build_step(settings, OkadfaWorkload(settings, symbols(settings)), device, pretrained=False)
        twin = OkadfaData(**{**vars(data), "settings": settings})
        training = Training(step, twin.training, Path(folder), watch=Watcher(twin).look)
        with work("training the twin whose last block alone learns") as say:
            total = training.schedule.total_steps
            for report in training.steps():
                if report.step % max(1, total // TWIN_LINES) == 0:
                    say(f"training the twin whose last block alone learns, step {report.step}/{total}")
        with work("scoring the twin"):
            return score_language(step.model, twin.batches("test"), settings.precision)


def twin_settings(settings: Settings) -> Settings:
    """The run's settings with the rule `shallow`, on one device."""
    batch = settings.batch.model_copy(update={"gradient_accumulation_steps": settings.micro_batches_per_step})
    changes: dict[str, Any] = {
        "recipe": {**settings.recipe, "learning_rule": "shallow", "shallow_twin": False},
        "batch": batch,
        "parallel": type(settings.parallel)(),
        "checkpoints": settings.checkpoints.model_copy(update={"every_steps": 10**9}),
    }
    return settings.model_copy(update=changes)
