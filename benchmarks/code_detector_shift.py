"""How `code-detector` stands when one source is left out of training: beside its baselines, on the same rows.

    python benchmarks/code_detector_shift.py                       leaves out codeaid_63, the smaller shipped source
    python benchmarks/code_detector_shift.py --data FILE.jsonl.gz --source gcj2020_java_gpt4o_rewrite

FILE has the fields of `forerun.recipes.code_detector.data.corpus`. Trains with the recipe's settings (75 s on two
cores), prints a table and one JSON line: AUC, and what the thresholds of each budget flag of it, with the second
opinion and without. Method version 2: the held-out source is the test split, validation stays in distribution.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from rich.console import Console

from forerun.hardware.detect import detect
from forerun.recipes.code_detector.data.corpus import embedded, from_path
from forerun.recipes.code_detector.recipe import SETTINGS, load_experiment
from forerun.report.terminal import result_table
from forerun.runs.run import start_training


def main() -> None:
    """Train without the source, judge on it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--source", default="codeaid_63")
    arguments = parser.parse_args()
    corpus = embedded() if arguments.data is None else from_path(arguments.data)
    experiment = load_experiment(SETTINGS, corpus.hold_out("source", arguments.source))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        training = start_training(experiment, detect().device, Path(folder))
        for _ in training.steps():
            pass
    seconds = time.perf_counter() - start
    judgement = experiment.baselines(experiment.judge(training.step))
    Console().print(f"Left out: {arguments.source}; trained {seconds:.0f} s")
    for table in judgement.tables:
        Console().print(result_table(table))
    rates = (".tpr", ".fpr")
    names = [
        name
        for name in judgement.metrics
        if name.endswith("roc_auc") or (name.endswith(rates) and name.removeprefix("alone.").startswith("budget_"))
    ]
    figures = {name: round(judgement.metrics[name], 4) for name in names}
    print(json.dumps({"benchmark": "code_detector_shift", "version": 2, "source": arguments.source, **figures}))


if __name__ == "__main__":
    main()
