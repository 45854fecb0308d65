"""Which adapter for Python code, and is it worth it? LoRA and QLoRA, judged by running what they write.

    forerun run code-lora                                      a small decoder made here, 2 cores, no downloads
    forerun run code-lora --set quantization=nf4               QLoRA of it; VARIANTS names the usual four
    forerun forecast code-lora-a100   Gemma-2-2B at the settings of the original run, no weights needed

By default a decoder of a million parameters is pretrained once on commented functions (`base_model.py`), then
adapted to requests that name the steps backwards (`data/templates.py`); every task has unit tests, so pass@k is
measured. With `data.source` any instruction data in Alpaca's format trains any causal language model: a hub id, a local
directory, or SmolLM2 out of a wheel. Forecast and measured figures, with their dates: `README.md` beside this file.
"""

import time
from dataclasses import replace

from forerun.data.plan import plan_from_settings
from forerun.data.token_data import TokenData
from forerun.errors import BadData, InvalidSettings, MissingExtra, UnknownModel
from forerun.evaluate.sandbox import require_isolation
from forerun.forecasting.request import Generated
from forerun.models.catalogue import hub_is_reachable
from forerun.recipes.code_lora.base_model import CodeLora, base_directory, is_pretrained_here, missing_base, tokens_of
from forerun.recipes.code_lora.data.rows import CodeLoraData, CodeLoraOptions, open_data
from forerun.recipes.code_lora.evaluation.comparison import comparison
from forerun.recipes.code_lora.evaluation.scores import (
    CRITERIA,
    WITHOUT_TESTS,
    answer_all,
    answer_texts,
    generated_lengths,
    watch,
)
from forerun.recipes.code_lora.evaluation.tables import judge
from forerun.runs.recipe import Answering, Experiment, Judgement
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings
from forerun.train.alive import TrivialLoss, label_entropy
from forerun.verify.compare import Criterion

SETTINGS = Settings.model_validate(
    {
        "name": "code-lora",
        "workload": "code-lora",
        "model": {
            "name": "tiny-llama",
            "config": {
                "vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 4, "intermediate_size": 384, "head_dim": 32, "max_position_embeddings": 512,
                "rope_theta": 1000.0, "initializer_range": 0.05,
            },
        },
        "adapter": {"kind": "lora", "rank": 16, "alpha": 32},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 4e-3, "weight_decay": 0.0, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 32, "sequence_length": 256, "padding": "bucketed"},
        "schedule": {"epochs": 3, "warmup_steps": 15, "decay": "cosine"},
        "checkpoints": {"every_steps": 200, "keep_last": 2},
        "evaluation": {"every_epochs": 1, "examples": 32, "new_tokens": 80},
    }
)  # fmt: skip
VARIANTS = {
    "r8": ("adapter.rank=8", "adapter.alpha=16", "quantization=none"),
    "r16": ("adapter.rank=16", "adapter.alpha=32", "quantization=none"),
    "r32": ("adapter.rank=32", "adapter.alpha=64", "quantization=none"),
    "qlora-r16": ("adapter.rank=16", "adapter.alpha=32", "quantization=nf4"),
}
"""The scale alpha / rank is 2 for all, so that ranks are compared and not step sizes. All but QLoRA are said not to be
quantised, as `code-lora-t4` is."""
ASSUMED_MEAN_TOKENS = 120.0
"""Mean tokens of a row where neither rows nor `data.mean_tokens` are there: 1,767 Python rows of CodeAlpaca have 117
in SmolLM2's tokens, template included (2026-11-21)."""
__all__ = ["CRITERIA", "SETTINGS", "VARIANTS", "comparison", "load_experiment"]


def load_experiment(settings: Settings, *, lengths_only: bool = False) -> Experiment:
    """Load rows, tasks and tokenizer, pretrain a base where there is none; fill the sizes into the settings.

    A forecast needs lengths only: where the rows or the tokenizer are not on this machine, lengths are assumed and it
    says so.
    """
    start = time.perf_counter()
    options = recipe_options(settings, CodeLoraOptions)
    _require_answers(settings)
    if not lengths_only and has_tests(settings):
        require_isolation(allow_unsafe=options.unsafe)
    try:
        data = _open_available_data(settings, options, lengths_only)
    except (MissingExtra, UnknownModel, BadData) as error:
        is_bad_file = isinstance(error, BadData) and not _is_elsewhere(settings)
        if not lengths_only or settings.data.examples is None or is_bad_file:
            raise
        return _assumed_experiment(settings, options)
    plan, base = data.training.plan(), None
    if is_pretrained_here(settings) and not lengths_only:
        base = base_directory(settings, options, data.tokens)
    elif is_pretrained_here(settings) and (message := missing_base(settings, options, data.tokens)):
        plan = replace(plan, assumptions=(message, *plan.assumptions))
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.train)}),
        "evaluation": settings.evaluation.model_copy(update={"examples": len(data.watched)}),
    }
    return Experiment(
        settings=settings.model_copy(update=sizes),
        workload=CodeLora(base),
        data=data.training,
        plan=plan,
        load_seconds=time.perf_counter() - start,
        final_examples=(1 if settings.adapter.kind == "none" else 2) * len(data.held_out),
        evaluate=lambda step, number: watch(step, data, options),
        judge=lambda step: answer_all(step, data, options),
        baselines=lambda scores: judge(scores, data, options),
        criteria=criteria_for(settings),
        generated=generated_lengths(settings, data, options),
        answering=Answering("instruction", lambda step, texts, most: answer_texts(step, data, texts, most), "text"),
        trivial=TrivialLoss(
            label_entropy(data.training.valid_labels()), "always answering with the shares of the tokens"
        ),
    )


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of these settings."""
    return CRITERIA if has_tests(settings) else WITHOUT_TESTS


def has_tests(settings: Settings) -> bool:
    """Whether answers are judged by running them: held-out rows have no tests."""
    return settings.data.source is None or recipe_options(settings, CodeLoraOptions).tasks is not None


def _require_answers(settings: Settings) -> None:
    evaluation = settings.evaluation
    if not evaluation.new_tokens or not evaluation.examples:
        raise InvalidSettings(
            f"evaluation: code-lora judges answers, so it needs tokens to generate and rows to watch; found new_tokens="
            f"{evaluation.new_tokens} and examples={evaluation.examples}. Set both to 1 or more."
        )


def _open_available_data(settings: Settings, options: CodeLoraOptions, lengths_only: bool) -> CodeLoraData:
    if lengths_only and _is_elsewhere(settings) and not hub_is_reachable():
        raise BadData(f"data.source: {settings.data.source} is on the hub, which cannot be reached.")
    return open_data(settings, options, tokens_of(settings, local_only=lengths_only))


def _is_elsewhere(settings: Settings) -> bool:
    """Whether the rows are on the hub."""
    return settings.data.source is not None and not settings.data.source.endswith((".json", ".jsonl", ".gz"))


def _assumed_experiment(settings: Settings, options: CodeLoraOptions) -> Experiment:
    """Enough for a forecast of rows that are not here, from their number and mean length."""
    data = settings.data
    mean = data.mean_tokens or min(ASSUMED_MEAN_TOKENS, settings.batch.sequence_length)
    plan = plan_from_settings(settings.model_copy(update={"data": data.model_copy(update={"mean_tokens": mean})}))
    origin = "as data.mean_tokens says" if data.mean_tokens else "the mean of CodeAlpaca's Python rows"
    assumption = f"{data.source} or the tokenizer is not here: {data.examples:,} rows of {mean:.0f} tokens, {origin}."
    held_out = round((data.examples or 0) * options.held_out / (1 - options.held_out))
    return Experiment(
        settings=settings,
        workload=CodeLora(),
        data=TokenData(settings, ()),
        plan=replace(plan, assumptions=(assumption, *plan.assumptions)),
        load_seconds=0.0,
        final_examples=2 * held_out,
        evaluate=lambda step, number: {},
        judge=lambda step: None,
        baselines=lambda scores: Judgement({}, []),
        criteria=criteria_for(settings),
        generated=Generated(((2 * min(options.questions, held_out) * options.samples, None),)),
    )


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.runs.local import run_locally

    run_locally(load_experiment(SETTINGS), default_url())


if __name__ == "__main__":
    main()
