"""Does direct feedback alignment train a language model, and does kernel attention attend? Honestly, against baselines.

    forerun run okadfa                     favor attention and dfa-macro on State of the Union addresses, judged
    forerun run okadfa --set recipe.learning_rule=backpropagation --set recipe.attention=softmax
    forerun run okadfa --set recipe.corpus=induction
    forerun forecast okadfa --gpu a100-40gb --set model.name=okadfa-production --set precision=bf16-mixed

A run is stopped where its attention is dead or its gradient is not that of its learning rule, and it is judged beside
tables of words and pairs and beside a twin that trains its last block only. Presets of the public original with their
true sizes: `okadfa_presets.py`. Figures with dates: `okadfa.md` beside this file.
"""

import time

from forerun.recipes.okadfa_data import open_data, symbols, unread_data
from forerun.recipes.okadfa_evaluation import CRITERIA, Watcher
from forerun.recipes.okadfa_workload import OkadfaWorkload, config_of
from forerun.recipes.opened import OpenedRecipe
from forerun.settings.schema import Settings

SETTINGS = Settings.model_validate(
    {
        "name": "okadfa",
        "workload": "okadfa",
        "model": {"name": "okadfa-tiny"},
        "recipe": {"attention": "favor", "learning_rule": "dfa-macro"},
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1, "max_gradient_norm": 1.0},
        "batch": {"micro_batch_size": 8, "sequence_length": 128},
        "schedule": {"epochs": 1, "warmup_steps": 20, "decay": "cosine"},
        "checkpoints": {"every_steps": 200, "keep_last": 1},
        "evaluation": {"every_epochs": 0.125, "examples": 1},
    }
)


def open_recipe(settings: Settings, *, lengths_only: bool = False) -> OpenedRecipe:
    """Load, tokenise and cut the data; fill the sizes into the settings. A forecast needs sizes only."""
    start = time.perf_counter()
    config_of(settings)  # refuses what is wrong before anything is read
    unread = unread_data(settings) if lengths_only else None
    data, plan = unread or (open_data(settings), None)
    sizes = {
        "data": settings.data.model_copy(update={"examples": len(data.train)}),
        "evaluation": settings.evaluation.model_copy(update={"examples": data.count("val")}),
    }
    watcher = Watcher(data)
    return OpenedRecipe(
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
    )
