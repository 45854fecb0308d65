"""Which adapter for Python code, and is it worth it? LoRA of several ranks and QLoRA, judged by running what they write.

    forerun run code-lora                                      a small decoder made here, 2 cores, no downloads
    forerun run code-lora --set quantization=nf4               QLoRA of it; VARIANTS names the usual four
    forerun forecast src/forerun/recipes/code_lora_a100.yaml   Gemma-2-2B as the origin wanted it, no weights needed

By default a decoder of a million parameters is pretrained once on commented functions (`code_lora_base.py`), then adapted to
requests that name the steps backwards (`data/code_templates.py`); every task has unit tests, so pass@k is measured. With
`data.source` any instruction data in Alpaca's format trains any causal language model: a hub id, a local directory, or SmolLM2
out of a wheel. Forecast and measured figures, with their dates: `code_lora.md` beside this file.
"""

import time
from dataclasses import replace

from forerun.data.plan import plan_from_settings
from forerun.data.token_data import TokenData
from forerun.errors import BadData, InvalidSettings, MissingExtra, UnknownModel
from forerun.evaluate.proportions import paired_difference, wilson
from forerun.models.catalogue import hub_is_reachable
from forerun.recipes.code_lora_base import CodeLora, base_directory, is_made_here, tokens_of
from forerun.recipes.code_lora_comparison import comparison
from forerun.recipes.code_lora_data import CodeLoraData, CodeLoraOptions, open_data
from forerun.recipes.code_lora_evaluation import (
    CRITERIA,
    MODEL,
    WITHOUT_TESTS,
    Report,
    Scores,
    answer_all,
    report,
    watch,
    without_model,
)
from forerun.recipes.opened import Judgement, OpenedRecipe
from forerun.report.tables import Cell, ResultTable
from forerun.settings.load import recipe_options
from forerun.settings.schema import Settings
from forerun.verify.compare import Criterion

SETTINGS = Settings.model_validate(
    {
        "name": "code-lora",
        "workload": "code-lora",
        "model": {
            "name": "tiny-llama",
            "config": {
                "vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
                "num_key_value_heads": 4, "intermediate_size": 384, "max_position_embeddings": 512, "rope_theta": 1000.0,
                "initializer_range": 0.05,
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
    "r8": ("adapter.rank=8", "adapter.alpha=16"),
    "r16": ("adapter.rank=16", "adapter.alpha=32"),
    "r32": ("adapter.rank=32", "adapter.alpha=64"),
    "qlora-r16": ("adapter.rank=16", "adapter.alpha=32", "quantization=nf4"),
}
"""The scale alpha / rank is 2 for all, so that ranks are compared and not step sizes."""
ASSUMED_MEAN_TOKENS = 120.0
"""Mean tokens of a row where neither rows nor `data.mean_tokens` are there: 1,767 Python rows of CodeAlpaca have 117 in SmolLM2's
tokens, template included (2026-11-21)."""
COLUMNS = ["answers by", "pass@1", "low", "high", "parses", "truncated", "empty", "not code", "BLEU", "chrF", "CodeBLEU",
           "loss"]  # fmt: skip

__all__ = ["CRITERIA", "SETTINGS", "VARIANTS", "comparison", "open_recipe"]


def open_recipe(settings: Settings, *, lengths_only: bool = False) -> OpenedRecipe:
    """Load rows, tasks and tokenizer, pretrain a base where there is none; fill the sizes into the settings.

    A forecast needs lengths only: where the rows or the tokenizer are not on this machine, they are assumed, and said so.
    """
    start = time.perf_counter()
    options = recipe_options(settings, CodeLoraOptions)
    _require_answers(settings)
    try:
        data = _opened(settings, options, lengths_only)
    except (MissingExtra, UnknownModel, BadData):
        if not lengths_only or settings.data.examples is None or not _is_elsewhere(settings):
            raise
        return _assumed(settings, options)
    base = base_directory(settings, options, data.tokens) if is_made_here(settings) and not lengths_only else None
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.train)}),
        "evaluation": settings.evaluation.model_copy(update={"examples": len(data.watched)}),
    }
    return OpenedRecipe(
        settings=settings.model_copy(update=sizes),
        workload=CodeLora(base),
        data=data.training,
        plan=data.training.plan(),
        load_seconds=time.perf_counter() - start,
        final_examples=2 * len(data.held_out),
        evaluate=lambda step, number: watch(step, data, options),
        judge=lambda step: answer_all(step, data, options),
        baselines=lambda scores: judge(scores, data, options),
        criteria=criteria_for(settings),
        final_generated_examples=2 * len(data.tasks) * options.samples,
    )


def criteria_for(settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of these settings: held-out rows have no tests."""
    has_tests = settings.data.source is None or recipe_options(settings, CodeLoraOptions).tasks is not None
    return CRITERIA if has_tests else WITHOUT_TESTS


def _require_answers(settings: Settings) -> None:
    evaluation = settings.evaluation
    if not evaluation.new_tokens or not evaluation.examples:
        raise InvalidSettings(
            f"evaluation: code-lora judges answers, so it needs tokens to generate and rows to watch; found new_tokens="
            f"{evaluation.new_tokens} and examples={evaluation.examples}. Set both to 1 or more."
        )


def _opened(settings: Settings, options: CodeLoraOptions, lengths_only: bool) -> CodeLoraData:
    if lengths_only and _is_elsewhere(settings) and not hub_is_reachable():
        raise BadData(f"data.source: {settings.data.source} is on the hub, which cannot be reached.")
    return open_data(settings, options, tokens_of(settings, local_only=lengths_only))


def _is_elsewhere(settings: Settings) -> bool:
    """Whether the rows or the model are on the hub."""
    return settings.data.source is not None and not settings.data.source.endswith((".json", ".jsonl", ".gz"))


def _assumed(settings: Settings, options: CodeLoraOptions) -> OpenedRecipe:
    """Enough for a forecast of rows that are not here, from their number and mean length."""
    mean = settings.data.mean_tokens or min(ASSUMED_MEAN_TOKENS, settings.batch.sequence_length)
    known = settings.model_copy(update={"data": settings.data.model_copy(update={"mean_tokens": mean})})
    plan = plan_from_settings(known)
    given = "as data.mean_tokens says" if settings.data.mean_tokens else "those of CodeAlpaca's Python rows"
    said = f"{settings.data.source} is not here: {settings.data.examples:,} rows of {mean:.0f} tokens in the mean, {given}."
    held_out = round(known.data.examples * options.held_out / (1 - options.held_out))  # type: ignore[operator]
    questions = 2 * min(options.questions, held_out) * options.samples
    return OpenedRecipe(
        settings=settings, workload=CodeLora(), data=TokenData(settings, ()), plan=replace(plan, assumptions=(said, *plan.assumptions)),
        load_seconds=0.0, final_examples=2 * held_out, evaluate=lambda step, number: {}, judge=lambda step: None,
        baselines=lambda scores: Judgement({}, []), criteria=criteria_for(settings), final_generated_examples=questions,
    )  # fmt: skip


def judge(scores: Scores, data: CodeLoraData, options: CodeLoraOptions) -> Judgement:
    """Every figure of the adapted model beside its base and what needs no model."""
    answers = scores.answers | without_model(data)
    reports = {name: report(found, data, scores.losses.get(name)) for name, found in answers.items()}
    metrics = {
        key: value for name, found in reports.items()
        for key, value in found.metrics("" if name == MODEL else f"{name}.", options.samples).items()
    }  # fmt: skip
    adapted = reports[MODEL]
    kept = {"tasks": [task.task_id for task in data.tasks], "parses": [form == "parses" for form in adapted.forms]}
    if adapted.functional is not None:
        kept["passed"] = adapted.functional.passed()
    tables = [answers_table(reports), data_table(data)]
    if adapted.functional is not None:
        tables[1:1] = [kinds_table(reports, data), endings_table(reports)]
    return Judgement(metrics, tables, kept=kept)


def answers_table(reports: dict[str, Report]) -> ResultTable:
    """All figures, one row an answerer."""
    rows: list[list[Cell]] = []
    for name, found in reports.items():
        solved: list[Cell] = [None, None, None]
        if found.functional is not None:
            interval = wilson(sum(found.functional.passed()), len(found.forms))
            solved = [interval.value, interval.low, interval.high]
        forms: list[Cell] = [found.share("parses"), found.share("truncated"), found.share("empty"), found.share("not code")]
        rows.append([name, *solved, *forms, found.text.bleu, found.text.chrf, 100 * found.code.score, found.loss])
    adapted = reports[MODEL]
    note = (
        f"{len(adapted.forms)} tasks; low and high are Wilson's 95 % interval. {standing(reports)} BLEU: "
        f"{adapted.text.bleu_signature}. chrF: {adapted.text.chrf_signature}. CodeBLEU as defined in "
        f"evaluate/code_bleu.py, not the authors' script."
    )
    return ResultTable(title="Answers", note=note, columns=COLUMNS, rows=rows)


def standing(reports: dict[str, Report]) -> str:
    """Plain words on the adapted model against the others, by paired bootstrap over tasks."""
    said = []
    mine = _scores(reports[MODEL])
    what = "pass@1" if reports[MODEL].functional is not None else "share that parses"
    for name, other in reports.items():
        if name != MODEL:
            gap = paired_difference(mine, _scores(other))
            word = "above" if gap.low > 0 else "below" if gap.high < 0 else "not told apart from"
            said.append(f"{word} {name} ({gap.value:+.3f}, {gap.low:+.3f} to {gap.high:+.3f})")
    return f"Adapted, {what}: {', '.join(said)}." if said else ""


def _scores(found: Report) -> list[float]:
    return found.functional.passed() if found.functional is not None else [float(f == "parses") for f in found.forms]


def kinds_table(reports: dict[str, Report], data: CodeLoraData) -> ResultTable:
    """pass@1 by kind of task."""
    kinds = sorted({task.kind for task in data.tasks})
    rows: list[list[Cell]] = []
    for kind in kinds:
        chosen = [number for number, task in enumerate(data.tasks) if task.kind == kind]
        row: list[Cell] = [kind or "all", len(chosen)]
        for found in reports.values():
            passed = found.functional.passed() if found.functional is not None else []
            row.append(sum(passed[number] for number in chosen) / len(chosen))
        rows.append(row)
    return ResultTable(title="pass@1 by kind of task", columns=["kind", "tasks", *reports], rows=rows)


def endings_table(reports: dict[str, Report]) -> ResultTable:
    """How the programs ended in the sandbox."""
    ended = {name: found.functional.statuses() for name, found in reports.items() if found.functional is not None}
    names = sorted({status for counts in ended.values() for status in counts})
    rows: list[list[Cell]] = [[name, *(counts.get(status, 0) for status in names)] for name, counts in ended.items()]
    return ResultTable(title="How programs ended", columns=["answers by", *names], rows=rows)


def data_table(data: CodeLoraData) -> ResultTable:
    """What became of the rows."""
    cleaned = data.cleaned
    note = (
        f"Split {data.split}. Contaminated: {cleaned.contaminated} rows share 13 words in a row or a function's name with the "
        f"tasks. {cleaned.unparsable_share:.1%} of the rest held no Python that parses."
    )
    rows: list[list[Cell]] = [
        ["given", cleaned.given], ["duplicates", cleaned.duplicates], ["contaminated", cleaned.contaminated],
        ["without code that parses", cleaned.unparsable], ["too long for training", data.too_long],
        ["trained on", len(data.train)], ["watched", len(data.watched)], ["held out", len(data.held_out)],
    ]  # fmt: skip
    return ResultTable(title="Data", note=note, columns=["rows", "number"], rows=rows)


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.recipes.here import run_here

    run_here(open_recipe(SETTINGS), default_url())


if __name__ == "__main__":
    main()
