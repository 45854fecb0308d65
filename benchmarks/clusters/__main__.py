"""The truth table of clusters: published runs of several GPUs beside Forerun's forecasts and two calculators.

    python -m benchmarks.clusters --data DATA --cache DIR --packages DIR [--half seen|test|both] [--offline]

DATA holds `distributed.csv.gz` and its SOURCE.md. DIR of packages holds torchtitan 0.2.2, megatron-core 0.16.1 and
triton, from `pip install --no-deps --target`; without it only settings are asked. Answers are kept in the cache, 10 s
to some minutes each, so a table is made again in a second (`--offline` asks nothing new). Prints the table, what was
not asked and why, Kendall's tau, and one JSON line. Method version 1.

Develop on `seen` only; `test` is for the final table.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.clusters.answers import Answer, answer_all, kept_answers
from benchmarks.clusters.formulas import (
    Utilisation,
    fitted,
    is_shaped,
    memory_bytes,
    tokens_by_constant,
    tokens_by_parts,
)
from benchmarks.clusters.megatron_rows import megatron_question
from benchmarks.clusters.questions import Question, Refusal, refusal_of
from benchmarks.clusters.rows import ClusterRun, load_runs, memory_values, throughput
from benchmarks.clusters.settings_rows import settings_question
from benchmarks.clusters.table import Comparison, groups_of, orders, refusals_table, summary, text_table
from benchmarks.clusters.titan_rows import titan_question

ADAPTERS: dict[str, Callable[[ClusterRun], Question | Refusal]] = {
    "settings": settings_question, "titan": titan_question, "megatron": megatron_question,
}  # fmt: skip
MEMORY = (
    ("torch memory_allocated between", "program_between"), ("torch max_memory_allocated", "program_peak"),
    ("torch peak (max over ranks), reserved", "reserved"), ("peak memory (GB as printed)", "reserved"),
    ("GB as printed; nanotron", "allocated"),
)  # fmt: skip
"""Kinds of memory and what of an answer is compared. torchao's guides ran torchtitan, which logs what is reserved."""


def ask_of(runs: Sequence[ClusterRun]) -> tuple[list[tuple[ClusterRun, Question]], Counter[str]]:
    """Questions of runs, and published values that no adapter asks, by the reason of the nearest adapter."""
    questions, reasons = [], Counter()
    for run in runs:
        refusal = refusal_of(run)
        if refusal is not None:
            reasons[refusal.reason] += len(run.values)
            continue
        asked = [adapter(run) for adapter in ADAPTERS.values()]
        ready = [each for each in asked if isinstance(each, Question)]
        questions += [(run, question) for question in ready]
        if not ready:
            is_test = "functional tests" in run["family"]
            reasons[(asked[2] if is_test else asked[0]).reason] += len(run.values)  # type: ignore[union-attr]
    return questions, reasons


def compare(run: ClusterRun, question: Question, answer: Answer, utilisation: Utilisation) -> list[Comparison]:
    """Published values of a run beside an answer."""
    is_exact, comparisons = not question.differs, []
    shaped = is_shaped(run) and not run.whole("experts", 0)
    for kind, measured in memory_values(run).items():
        name = next((name for start, name in MEMORY if kind.startswith(start)), None)
        if name is None or name not in answer:
            continue
        theirs = memory_bytes(run) if shaped and "between" not in kind else None
        comparisons.append(
            Comparison(run, run.name, kind, measured, answer[name], question.adapter, is_exact, None, theirs)
        )
    rate = throughput(run)
    if rate is not None and question.asks_time:
        calculators = tokens_by_constant(run, utilisation), tokens_by_parts(run, utilisation)
        forecast = answer["tokens_per_second_per_gpu"]
        comparisons.append(
            Comparison(run, run.name, "tokens", rate, forecast, question.adapter, is_exact, *calculators)
        )
    return comparisons


def main() -> None:
    """Ask, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with distributed.csv.gz")
    parser.add_argument("--cache", type=Path, required=True, help="folder where answers are kept")
    parser.add_argument("--packages", type=Path, help="folder with torchtitan, megatron-core and triton")
    parser.add_argument("--half", choices=("seen", "test", "both"), default="seen")
    parser.add_argument("--only", default="", help="families whose name has this word")
    parser.add_argument("--offline", action="store_true", help="take what the cache has; ask nothing")
    options = parser.parse_args()
    if not (options.data / "distributed.csv.gz").exists():
        parser.exit(
            2, f"--data: a folder with distributed.csv.gz; found none in {options.data}. See SOURCE.md there.\n"
        )
    runs = load_runs(options.data)
    utilisation = fitted(runs)
    wanted = {"seen": (True,), "test": (False,), "both": (True, False)}[options.half]
    chosen = [run for run in runs if run.is_seen in wanted and options.only in run["family"]]
    questions, reasons = ask_of(chosen)
    listed = [question for _, question in questions]
    if options.offline:
        answers = kept_answers(listed, options.cache)
    else:
        answers = answer_all(listed, options.cache, options.packages)
    rows, failures = [], Counter()
    for run, question in questions:
        answer = answers.get(question.key, {"error": "not asked yet"})
        if "error" in answer:
            failures[f"{question.adapter}: {answer['error'][:100]}"] += len(run.values)
        else:
            rows += compare(run, question, answer, utilisation)
    print("\n".join(text_table(rows)))
    print(
        "\nvalues not asked:",
        *refusals_table(reasons),
        "\nvalues asked without an answer:",
        *refusals_table(failures),
        sep="\n",
    )
    tau = orders(rows)
    print("\nKendall tau:", json.dumps(tau))
    tables = {", ".join(key): summary(listed) for key, listed in sorted(groups_of(rows).items())}
    document = {"benchmark": "clusters", "version": 1, "half": options.half, "kendall_tau": tau, "table": tables}
    print(json.dumps(document | {"not_asked": dict(reasons), "unanswered": dict(failures)}))


if __name__ == "__main__":
    sys.exit(main())
