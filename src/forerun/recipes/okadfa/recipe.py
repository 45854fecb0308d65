"""Does direct feedback alignment train a language model, and does kernel attention attend? Honestly, against baselines.

    forerun run okadfa                     favor attention and dfa-macro on State of the Union addresses, judged
    forerun run okadfa --set recipe.learning_rule=backpropagation --set recipe.attention=softmax
    forerun run okadfa --set recipe.corpus=induction
    forerun forecast okadfa --gpu a100-40gb --set model.name=okadfa-production --set precision=bf16-mixed

A run is stopped where its attention is dead or its gradient is not that of its learning rule, and it is judged beside
tables of tokens and of pairs and beside a twin that trains its last block only. Presets of the original with their
true sizes: `presets.py`. Figures with dates: `README.md` beside this file.
"""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np

from forerun.recipes.okadfa.data.windows import OkadfaData, open_data, symbols, unread_data
from forerun.recipes.okadfa.evaluation.continuation import continued_texts
from forerun.recipes.okadfa.evaluation.scores import CRITERIA, Watcher
from forerun.recipes.okadfa.workload import OkadfaWorkload, config_of
from forerun.report.tables import Cell, ResultCurve, ResultTable, Series
from forerun.runs.recipe import Answering, Experiment, SweepRun
from forerun.settings.schema import Settings
from forerun.train.alive import TrivialLoss, label_entropy
from forerun.units import MIB

SETTINGS = Settings.model_validate(
    {
        "name": "okadfa",
        "workload": "okadfa",
        "model": {"name": "okadfa-tiny"},
        "recipe": {"attention": "favor", "learning_rule": "dfa-macro", "feedback": "identity"},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 16, "sequence_length": 64},
        "schedule": {"epochs": 1, "max_steps": 600, "warmup_steps": 20, "decay": "cosine"},
        "checkpoints": {"every_steps": 200, "keep_last": 1},
        "evaluation": {"every_epochs": 0.05, "examples": 128},
    }
)

_VARIANT_OVERRIDES = {
    "softmax-backpropagation": ("recipe.attention=softmax", "recipe.learning_rule=backpropagation"),
    "favor-backpropagation": ("recipe.attention=favor", "recipe.learning_rule=backpropagation"),
    "favor-dfa-macro": ("recipe.attention=favor", "recipe.learning_rule=dfa-macro"),
    "softmax-dfa-macro": ("recipe.attention=softmax", "recipe.learning_rule=dfa-macro"),
    "softmax-dfa-positive": ("recipe.attention=softmax", "recipe.learning_rule=dfa-macro", "recipe.feedback=positive"),
    "softmax-dfa-random": ("recipe.attention=softmax", "recipe.learning_rule=dfa-macro", "recipe.feedback=random"),
    "softmax-shallow": ("recipe.attention=softmax", "recipe.learning_rule=shallow"),
}
VARIANTS = {name: (*overrides, "recipe.shallow_twin=false") for name, overrides in _VARIANT_OVERRIDES.items()}
"""The runs that answer the question; `softmax-shallow` stands for their twins."""


def load_experiment(settings: Settings, *, lengths_only: bool = False) -> Experiment:
    """Load, tokenise and cut the data; fill the sizes into the settings. A forecast needs sizes only."""
    start = time.perf_counter()
    config_of(settings)  # refuses what is wrong before anything is read
    unread = unread_data(settings) if lengths_only else None
    data, plan = unread or (open_data(settings), None)
    watcher = Watcher(data)
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.train)}),
        "evaluation": settings.evaluation.model_copy(update={"examples": watcher.watched_windows}),
    }
    return Experiment(
        settings=settings.model_copy(update=sizes),
        workload=OkadfaWorkload(settings, symbols(settings)),
        data=data.training,
        plan=plan or data.training.plan(),
        load_seconds=time.perf_counter() - start,
        final_examples=data.count("test"),
        evaluate=watcher.evaluate,
        judge=watcher.judge,
        baselines=watcher.baselines,
        criteria=CRITERIA,
        watch=watcher.look,
        answering=_answering(data),
        trivial=None if unread else TrivialLoss(
            label_entropy(data.train[:, 1:].ravel().tolist()), "a table of single tokens", part="token_loss"
        ),
    )  # fmt: skip


def _answering(data: OkadfaData) -> Answering | None:
    """Texts are gone on with; a synthetic language has none."""
    tokens = data.tokens
    if tokens is None:
        return None
    return Answering("text", lambda step, texts, most: continued_texts(step, tokens, texts, most), "text")


def comparison(runs: Sequence[SweepRun]) -> tuple[list[ResultTable], list[ResultCurve]]:
    """Losses at equal updates and at equal training time, with what each run cost beside the first."""
    curves = [run.results["curve"] for run in runs]
    updates = min(curve["step"][-1] for curve in curves)
    seconds = min(curve["seconds"][-1] for curve in curves)
    best = min(run.measurement.metrics["held_out_loss"] for run in runs)
    rows: list[list[Cell]] = []
    for run, curve in zip(runs, curves, strict=True):
        metrics, memory = run.measurement.metrics, run.measurement.memory.peak_allocated_bytes
        at_updates, at_seconds = loss_at(curve, "step", updates), loss_at(curve, "seconds", seconds)
        loss = metrics["held_out_loss"]
        cosines = [value for name, value in sorted(metrics.items()) if name.startswith("gradient_cosine")][:-1]
        rows.append([
            run.name, loss, math.exp(min(loss, 700.0)), loss / best, metrics.get("bits_per_byte"), at_updates,
            at_seconds, run.measurement.step.seconds * 1000, None if memory is None else memory / MIB,
            sum(cosines) / len(cosines) if cosines else None,
        ])  # fmt: skip
    first = runs[0].measurement.metrics
    note = (
        f"Tables of tokens, pairs: {first['unigram_loss']:.3f} and {first['bigram_loss']:.3f} nats per token "
        f"(perplexity {math.exp(first['unigram_loss']):.1f} and {math.exp(first['bigram_loss']):.1f}). Losses "
        f"at {updates:.0f} updates and {seconds:.0f} s of training are on the validation windows. cosine: of the fed "
        f"blocks' gradients with backpropagation's after training."
    )
    columns = [
        "run", "test loss", "perplexity", "over best", "bits/byte", "at equal updates", "at equal time", "step ms",
        "peak MiB", "cosine",
    ]  # fmt: skip
    table = ResultTable(title="Attention and learning rule", note=note, columns=columns, rows=rows)
    loss_curves = [
        ResultCurve(title=f"Validation loss over {across}", across=across, up="nats per token", series=[
            Series(name=run.name, x=curve[key], y=curve["loss"]) for run, curve in zip(runs, curves, strict=True)
        ])
        for key, across in (("step", "updates"), ("seconds", "seconds of training"))
    ]  # fmt: skip
    return [table], loss_curves


def loss_at(curve: Mapping[str, Sequence[float]], across: str, place: float) -> float | None:
    """Validation loss at a place between two evaluations, on the straight line; None before the first."""
    if place < curve[across][0]:
        return None
    return float(np.interp(place, curve[across], curve["loss"]))


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.runs.local import run_locally

    run_locally(load_experiment(SETTINGS), default_url())


if __name__ == "__main__":
    main()
