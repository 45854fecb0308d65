"""Texts to labels, one or several a text, or of pairs of texts; trained, judged beside its baselines, and searched.

    forerun run text-classifier                          a small encoder from scratch on 8,636 shipped sentences
    forerun run text-classifier-minilm                   the pretrained MiniLM, from its wheel
    forerun run text-classifier --set data.source=mine.csv --set model.name=roberta-base
    forerun tune text-classifier-minilm --trials 24      a search that can be trusted

The shipped rows are sentences from film reviews, positive or negative (`data/embedded/ATTRIBUTION.md`). Options of the
task, the head, the loss and augmentation: `TextClassifierOptions`. Measured figures, with their dates:
`README.md` beside this file.
"""

import time

from forerun.recipes.text_classifier.data import TextClassifierOptions, TextData
from forerun.recipes.text_classifier.evaluation import (
    CRITERIA,
    Probabilities,
    answer_texts,
    judge_selection,
    judge_test,
    score_part,
    scored_parts,
    selection_figures,
)
from forerun.recipes.text_classifier.finals import baseline_scores, final_comparison, held_out_scores
from forerun.recipes.text_classifier.opening import keep_states, open_data
from forerun.recipes.text_classifier.search import (
    TRIAL,
    search_overrides,
    search_space,
    search_start,
    searched_score,
    step_class,
)
from forerun.recipes.text_classifier.workload import TextClassifierWorkload
from forerun.runs.recipe import Answering, Experiment
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.train.alive import TrivialLoss, label_entropy
from forerun.verify.compare import Criterion

__all__ = [
    "CRITERIA", "SETTINGS", "TRIAL", "baseline_scores", "criteria_for", "final_comparison", "held_out_scores",
    "load_experiment", "search_overrides", "search_space", "search_start", "searched_score", "step_class",
]  # fmt: skip
SETTINGS = Settings.model_validate(
    {
        "name": "text-classifier",
        "workload": "text-classifier",
        "model": {"name": "text-encoder"},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 32, "sequence_length": 64, "padding": "bucketed"},
        "schedule": {"epochs": 3, "warmup_steps": 40, "decay": "linear"},
        "checkpoints": {"every_steps": 500, "keep_last": 1},
        "evaluation": {"every_epochs": 1, "examples": 1},
        "recipe": {"dropout": 0.4},
    }
)


def load_experiment(settings: Settings, *, lengths_only: bool = False) -> Experiment:
    """Load, split and tokenise the data; fill the sizes into the settings. A forecast needs lengths only."""
    start = time.perf_counter()
    options = recipe_options(settings, TextClassifierOptions)
    data = open_data(settings, lengths_only=lengths_only)
    plan = data.plan()
    load_seconds = time.perf_counter() - start
    once_seconds, data_seconds = keep_states(data, ("train", *scored_parts(options)))
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.rows["train"])}),
        "evaluation": settings.evaluation.model_copy(update={"examples": len(data.rows["selection"])}),
    }

    def evaluate(step: TrainingStep, number: int) -> dict[str, float]:
        return selection_figures(data, score_part(step.model, data, "selection", settings.precision))

    def judge(step: TrainingStep) -> Probabilities:
        return {part: score_part(step.model, data, part, settings.precision) for part in scored_parts(options)}

    judged = judge_selection if options.judged_on == "selection" else judge_test
    return Experiment(
        settings=settings.model_copy(update=sizes),
        workload=TextClassifierWorkload(options, data.label_counts, is_paired=data.corpus.is_paired),
        data=data,
        plan=plan,
        load_seconds=load_seconds,
        once_seconds=once_seconds,
        extra_data_seconds_per_step=data_seconds,
        final_examples=sum(len(data.rows[part]) for part in scored_parts(options)),
        evaluate=evaluate,
        judge=judge,
        baselines=lambda scores: judged(scores, data, options),
        criteria=criteria_for(settings),
        answering=None
        if data.corpus.is_paired
        else Answering(options.text_field, lambda step, texts, new_tokens: answer_texts(step, data, texts)),
        save_assets=data.save_tokens,
        trivial=_trivial(data, options),
    )


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of these settings; none for trials of a search, which leave the test rows alone."""
    options = recipe_options(settings, TextClassifierOptions)
    return CRITERIA if options.judged_on == "test" else ()


def _trivial(data: TextData, options: TextClassifierOptions) -> TrivialLoss | None:
    """Loss of a constant answer, which training must beat; None unless it is plain cross-entropy of plain samples."""
    is_plain = options.loss == "cross-entropy" and not options.augmentation.policies
    if not is_plain or data.corpus.is_multi_label or options.augmentation.oversample:
        return None
    labels = (row.labels[0] for row in data.rows["train"])
    return TrivialLoss(label_entropy(labels, options.label_smoothing), "always answering with the labels' shares")


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.runs.local import run_locally

    run_locally(load_experiment(SETTINGS), default_url())


if __name__ == "__main__":
    main()
