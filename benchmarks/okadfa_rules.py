"""Which learning rule trains, and which attention attends? Short runs from three starting points each.

    python -m benchmarks.okadfa_rules rules          learning rules on the shipped text, 240 updates each
    python -m benchmarks.okadfa_rules induction      attentions on a language that only attention can know
    … NAME SEED …                                    only these; prints a table and one JSON line

Runs are those of the recipe (same step, same loop, same checks), scored on held-out windows; seeds 0, 1 and 2 change
the initial weights, the order of the data and the feedback matrix. Method version 1.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from forerun.errors import MechanismDead
from forerun.evaluate.language import score_language
from forerun.recipes.okadfa.data.windows import open_data
from forerun.recipes.okadfa.evaluation.scores import Watcher
from forerun.recipes.okadfa.recipe import SETTINGS, load_experiment
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.train.loop import Training, seed_everything

SEEDS = (0, 1, 2)
SCORED_WINDOWS = 512
RULES = {
    "backpropagation": ["recipe.learning_rule=backpropagation"],
    "dfa-macro, identity": ["recipe.learning_rule=dfa-macro", "recipe.feedback=identity"],
    "dfa-macro, positive": ["recipe.learning_rule=dfa-macro", "recipe.feedback=positive"],
    "dfa-macro, random": ["recipe.learning_rule=dfa-macro", "recipe.feedback=random"],
    "dfa-micro, identity": ["recipe.learning_rule=dfa-micro", "recipe.feedback=identity"],
    "shallow": ["recipe.learning_rule=shallow"],
}
TEXT = ["recipe.attention=softmax", "schedule.max_steps=240"]
ATTENTIONS = {
    "softmax": ["recipe.attention=softmax", "recipe.learning_rule=backpropagation"],
    "elu": ["recipe.attention=elu", "recipe.learning_rule=backpropagation"],
    "favor": ["recipe.attention=favor", "recipe.learning_rule=backpropagation"],
    "favor, dfa-macro": ["recipe.attention=favor", "recipe.learning_rule=dfa-macro", "recipe.feedback=identity"],
    "unscaled": ["recipe.attention=unscaled", "recipe.learning_rule=backpropagation"],
}
INDUCTION = [
    "recipe.corpus=induction", "batch.sequence_length=16", "batch.micro_batch_size=32", "optimizer.learning_rate=4e-3",
    "model.config.width=64", "model.config.layers=2", "model.config.heads=2", "model.config.feed_forward=128",
    "schedule.max_steps=400",
]  # fmt: skip


def run(overrides: list[str], seed: int) -> dict[str, float | str]:
    """Train and score one run; `dead` says why where it was stopped."""
    settings = settings_from(SETTINGS.model_dump(), [*overrides, "recipe.shallow_twin=false", f"seed={seed}"])
    experiment = load_experiment(settings)
    seed_everything(seed)
    step = build_step(settings, experiment.workload, "cpu", pretrained=False)
    data = open_data(settings)
    watcher = Watcher(data)
    with tempfile.TemporaryDirectory() as folder:
        training = Training(step, experiment.data, Path(folder), watch=watcher.look)
        try:
            steps = [report.step_seconds for report in training.steps()]
        except MechanismDead as error:
            return {"dead": str(error)}
    score = score_language(step.model, data.batches("test", SCORED_WINDOWS))
    figures: dict[str, float | str] = {"loss": score.loss, "step_ms": statistics.median(steps) * 1000}
    figures |= {k: v for k, v in watcher.mechanism(step).items() if k.startswith(("gradient_cosine", "kernel_error"))}
    if data.language is not None and data.language.determined is not None:
        figures["copied"] = float(score.is_right[data.language.determined.ravel()].mean())
    return figures


def main() -> None:
    """Print the table and the JSON line."""
    kind = sys.argv[1]
    variants, shared = (RULES, TEXT) if kind == "rules" else (ATTENTIONS, INDUCTION)
    arguments, seeds = sys.argv[2:], [int(word) for word in sys.argv[2:] if word.isdigit()] or SEEDS
    if any(name in arguments for name in variants):
        variants = {name: overrides for name, overrides in variants.items() if name in arguments}
    table, results = Table("variant", "loss, mean", "of seeds", "copied", "step ms", "cosines"), {}
    for name, overrides in variants.items():
        runs = results[name] = [run([*shared, *overrides], seed) for seed in seeds]
        print(name, json.dumps(runs), file=sys.stderr, flush=True)
        if "dead" in runs[0]:
            table.add_row(name, "stopped", str(runs[0]["dead"])[:60], "", "", "")
            continue
        losses = [float(r["loss"]) for r in runs]
        cosines = [f"{v:.2f}" for k, v in runs[0].items() if k.startswith("gradient_cosine")]
        copied = " ".join(f"{r['copied']:.1%}" for r in runs if "copied" in r)
        table.add_row(
            name, f"{statistics.mean(losses):.3f}", " ".join(f"{loss:.3f}" for loss in losses), copied,
            f"{statistics.median(float(r['step_ms']) for r in runs):.0f}", " ".join(cosines),
        )  # fmt: skip
    Console(width=140).print(table)
    print(json.dumps({"benchmark": f"okadfa-{kind}", "version": 1, "seeds": seeds, "results": results}))


if __name__ == "__main__":
    main()
