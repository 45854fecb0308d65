"""Does augmentation help a text classifier? Each method against none, same starting points, paired, with an interval.

    python benchmarks/augmentation_effect.py text-classifier --examples 500 --starts 4 --to FILE \\
        [--methods METHOD …] [--set PATH=VALUE]

Trains `TARGET` on `--examples` rows without and with each method (one policy, the strength below, probability 0.5) from
the same starting points, and scores the selection and threshold rows together (never the test rows). The gap is the
mean over starting points of the macro-F1 with a method minus that without; its 95 % interval draws rows and starting
points anew together, 2,000 times. Appends one JSON line a run to FILE, so that it goes on where it was stopped; ends
with the table.

Method version 1.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from forerun.api import resolve
from forerun.evaluate.label_metrics import LabelPredictions, macro_f1, plain_decision
from forerun.recipes.text_classifier.data import TextData
from forerun.recipes.text_classifier.evaluation import score_part
from forerun.recipes.text_classifier.recipe import load_experiment
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.train.loop import Training, seed_everything

STRENGTHS = {
    "none": 0.0, "swap": 0.1, "deletion": 0.1, "aeda": 0.3, "keyboard": 0.1, "character-swap": 0.1, "mixup": 0.4,
    "cutoff": 0.15, "r-drop": 1.0, "fgm": 0.1, "synonym": 0.1, "insertion": 0.1,
}  # fmt: skip
WITH_LEXICON = ("synonym", "insertion")
"""Only where --set recipe.augmentation.lexicon=… gives one."""
DRAWS = 2000


def run(target: str, overrides: list[str], method: str, seed: int) -> dict[str, Any]:
    """Train once; answers of the selection and threshold rows."""
    policies = "[]" if method == "none" else f"[{{method: {method}, strength: {STRENGTHS[method]}, probability: 0.5}}]"
    own = [*overrides, f"recipe.augmentation.policies={policies}", f"seed={seed}", "evaluation.examples=0"]
    settings = resolve(target, own)
    start = time.perf_counter()
    experiment = load_experiment(settings)
    data = experiment.data
    assert isinstance(data, TextData)
    seed_everything(seed)
    step = build_step(experiment.settings, experiment.workload, "cpu", pretrained=True)
    with tempfile.TemporaryDirectory() as folder:
        for _ in Training(step, data, Path(folder)).steps():
            pass
    chances = np.concatenate([score_part(step.model, data, part, "fp32") for part in ("selection", "threshold")])
    return {
        "method": method,
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "chances": chances.round(5).tolist(),
    }


def gap(method: list[np.ndarray], none: list[np.ndarray], targets: np.ndarray) -> tuple[float, float, float]:
    """Mean macro-F1 gap over starting points, and its 95 % interval over rows and starting points."""
    plain, random = plain_decision(targets.shape[1]), np.random.default_rng(0)
    predictions = [[plain.labels(LabelPredictions(targets, c, False)) for c in side] for side in (method, none)]
    starts, rows = len(method), len(targets)

    def mean(which: np.ndarray, sample: np.ndarray) -> float:
        gaps = [
            macro_f1(targets[sample], predictions[0][s][sample]) - macro_f1(targets[sample], predictions[1][s][sample])
            for s in which
        ]
        return float(np.mean(gaps))

    gaps_of_draws = [mean(random.integers(0, starts, starts), random.integers(0, rows, rows)) for _ in range(DRAWS)]
    low, high = np.quantile(gaps_of_draws, [0.025, 0.975])
    return mean(np.arange(starts), np.arange(rows)), float(low), float(high)


def main() -> None:
    """Run what is not in the file yet, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=STRENGTHS, help="beside none; default: all that can be run")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    overrides = [*arguments.overrides, f"data.examples={arguments.examples}"]
    runs = [json.loads(line) for line in arguments.to.read_text().splitlines()] if arguments.to.exists() else []
    has_lexicon = any(text.startswith("recipe.augmentation.lexicon=") for text in overrides)
    methods = arguments.methods or [m for m in STRENGTHS if has_lexicon or m not in WITH_LEXICON]
    methods = ["none", *(method for method in methods if method != "none")]
    for seed in range(arguments.starts):
        for method in methods:
            if not any(row["method"] == method and row["seed"] == seed for row in runs):
                runs.append(run(arguments.target, overrides, method, seed))
                with arguments.to.open("a") as lines:
                    lines.write(json.dumps(runs[-1]) + "\n")
    runs = [row for row in runs if row["seed"] < arguments.starts]
    data: Any = load_experiment(settings_from(resolve(arguments.target, overrides).model_dump())).data
    targets = np.concatenate([data.targets("selection"), data.targets("threshold")])
    table = {}
    by = {
        m: [np.asarray(r["chances"]) for r in sorted(runs, key=lambda r: r["seed"]) if r["method"] == m]
        for m in methods
    }
    plain = plain_decision(targets.shape[1])
    for method, chances in by.items():
        scores = [macro_f1(targets, plain.labels(LabelPredictions(targets, c, False))) for c in chances]
        seconds = float(np.median([r["seconds"] for r in runs if r["method"] == method]))
        table[method] = {
            "macro_f1": float(np.mean(scores)),
            "gap": gap(chances, by["none"], targets),
            "seconds": seconds,
        }
        value, low, high = table[method]["gap"]
        print(f"{method:16s} {np.mean(scores):.3f}  {value:+.3f} ({low:+.3f} to {high:+.3f})  {seconds:.1f} s")
    print(json.dumps({"target": arguments.target, "set": overrides, "rows": len(targets), "table": table}))


if __name__ == "__main__":
    main()
