"""How much wrong data does a model that learns to add survive, and which rows are wrong?

    forerun run arithmetic                                       forecast, train, judge, verify: clean 5-digit sums
    forerun run arithmetic --set data.contamination.rate=0.5     half of the answers wrong by 1 to 10
    forerun forecast arithmetic --gpu cpu
    forerun forecast arithmetic-full --gpu a100-40gb,a10,rtx-3090   LLaMA-7B, int8, LoRA

A small GPT-2 learns from random weights on generated sums (`data/questions.py`), answers units first, loss
on the answers alone. Labels can be made wrong in six ways (`data/contamination.py`). The judgement counts whole right
integers beside answerers that cannot add, by operand lengths, carries and lengths beyond training; says what the noise
allows at best; and ranks training rows by how suspect they are. Figures with their dates: `README.md`.
"""

import time
from dataclasses import replace

from forerun.data.token_data import TokenData
from forerun.recipes.arithmetic.data.rows import open_data
from forerun.recipes.arithmetic.evaluation.findings import answer_texts, collect_findings
from forerun.recipes.arithmetic.evaluation.judgement import CRITERIA, EarlySigns, judgement_of
from forerun.recipes.arithmetic.sweep import VARIANTS, comparison
from forerun.recipes.arithmetic.workload import ArithmeticWorkload
from forerun.runs.recipe import Answering, Experiment
from forerun.settings.schema import Settings
from forerun.train.alive import TrivialLoss, label_entropy

__all__ = ["CRITERIA", "SETTINGS", "VARIANTS", "comparison", "load_experiment"]

DECODER = {
    "n_embd": 128, "n_positions": 256, "vocab_size": 96, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
"""Two layers, 441,856 parameters. Its learned positions need a third of the rows that LLaMA's rotary ones need."""
SETTINGS = Settings.model_validate(
    {
        "name": "arithmetic",
        "workload": "arithmetic",
        "model": {"name": "tiny-gpt2", "config": DECODER},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.01, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 64, "sequence_length": 19, "padding": "longest"},
        "schedule": {"epochs": 1, "warmup_steps": 100, "decay": "linear"},
        "checkpoints": {"every_steps": 500, "keep_last": 2},
        "evaluation": {"every_epochs": 0.025, "examples": 1},
    }
)


def load_experiment(settings: Settings, *, lengths_only: bool = False) -> Experiment:
    """Make the rows, spoil as many as the settings say, tokenise; fill the sizes into the settings."""
    start = time.perf_counter()
    data = open_data(settings, lengths_only=lengths_only)
    early = EarlySigns(data, settings.precision)
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.rows)}),
        "evaluation": settings.evaluation.model_copy(update={"examples": early.examples}),
    }
    settings = settings.model_copy(update=sizes)
    tokens = TokenData(settings.model_copy(update={"workload": "causal-lm"}), data.samples, data.tokeniser.pad_id)
    plan = tokens.plan()
    return Experiment(
        settings=settings,
        workload=ArithmeticWorkload(),
        data=tokens,
        plan=replace(plan, assumptions=data.assumptions),
        load_seconds=time.perf_counter() - start,
        final_examples=len(data.test) + len(data.beyond) + min(len(data.rows), data.options.scored_rows),
        evaluate=early,
        judge=lambda step: collect_findings(step, data),
        baselines=lambda findings: judgement_of(findings, data, early, settings),
        criteria=CRITERIA,
        answering=Answering("input", lambda step, texts, new_tokens: answer_texts(step, data, texts), "text"),
        trivial=TrivialLoss(label_entropy(tokens.valid_labels()), "always answering with the shares of the tokens"),
    )


def main() -> None:
    """Run this file, or a copy of it with changed SETTINGS."""
    from forerun.ledger.store import default_url
    from forerun.runs.local import run_locally

    run_locally(load_experiment(SETTINGS), default_url())


if __name__ == "__main__":
    main()
