"""The truth table of clusters: published runs of several GPUs beside Forerun's forecasts and two calculators.

    python -m benchmarks.clusters --data DATA --cache DIR --packages DIR [--half both] [--offline] [--page FILE]

DATA holds `distributed.csv.gz` and its SOURCE.md. DIR of packages holds torchtitan 0.2.2, megatron-core 0.16.1,
torchao 0.18.0 and triton, from `pip install --no-deps --target`; without it only settings are asked. Answers are kept
in the cache, 10 s to some minutes each, so a table is made again in a second (`--offline` asks nothing new;
`--seconds` bounds what is asked in one go). Prints the table, what was not asked and why, Kendall's tau, and one JSON
line; `--page` writes them as Markdown. Method version 2: classes of size as the issue has them, halves apart.

Develop on `seen` only; `test` is for the final table.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from benchmarks.clusters.page import Coverage, Report, page_of
from benchmarks.clusters.questions import Question, Refusal, refusal_of
from benchmarks.clusters.rows import ClusterRun, load_runs, memory_values, throughput
from benchmarks.clusters.settings_rows import settings_question
from benchmarks.clusters.table import (
    HALVES,
    Comparison,
    groups_of,
    kind_of,
    orders,
    scale_of,
    source_of,
    summary,
    text_table,
)
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


def ask_of(
    runs: Sequence[ClusterRun], adapters: Sequence[str] = tuple(ADAPTERS)
) -> tuple[list[tuple[ClusterRun, Question]], Counter[str]]:
    """Questions of runs, and published values that no adapter asks, by the reason of the nearest adapter."""
    questions, reasons = [], Counter()
    for run in runs:
        refusal = refusal_of(run)
        if refusal is not None:
            if run["confidence"] == "low":
                continue
            reasons[refusal.reason] += len(run.values)
            continue
        asked = {name: adapter(run) for name, adapter in ADAPTERS.items()}
        ready = [each for name, each in asked.items() if isinstance(each, Question) and name in adapters]
        questions += [(run, question) for question in ready]
        if not ready:
            nearest = asked["megatron" if "functional tests" in run["family"] else "settings"]
            by_program = "its own program, not by settings"
            reasons[by_program if isinstance(nearest, Question) else nearest.reason] += len(run.values)
    return questions, reasons


def compare(run: ClusterRun, question: Question, answer: Answer, utilisation: Utilisation) -> list[Comparison]:
    """Published values of a run beside an answer."""
    is_exact, comparisons = not question.differs, []
    shaped = is_shaped(run) and not run.whole("experts", 0)
    for kind, measured in memory_values(run).items():
        name = next((name for start, name in MEMORY if kind.startswith(start)), None)
        if name is None or name not in answer or not question.asks_memory:
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


def report_of(
    runs: Sequence[ClusterRun], answers: Mapping[str, Answer], utilisation: Utilisation,
    adapters: Sequence[str] = tuple(ADAPTERS),
) -> Report:  # fmt: skip
    """Everything that is shown of `runs`, whose answers are there or not."""
    report = Report()
    asked, report.reasons = ask_of(runs, adapters)
    questions: dict[int, list[Question]] = {}
    for run, question in asked:
        questions.setdefault(id(run), []).append(question)
    for run in runs:
        if run["confidence"] == "low":
            continue
        cover = report.coverage.setdefault((run["family"], HALVES[run.is_seen]), Coverage())
        cover.values += len(run.values)
        own = questions.get(id(run), [])
        cover.asked += len(run.values) if own else 0
        found = [(each, answers.get(each.key, {"error": "not asked yet"})) for each in own]
        good = [(each, answer) for each, answer in found if "error" not in answer]
        cover.answered += len(run.values) if good else 0
        for each, answer in good:
            report.rows += compare(run, each, answer, utilisation)
        if found and not good:
            each, answer = found[0]
            report.failures[f"{each.adapter}: {answer['error'][:100]}"] += len(run.values)
    report.orders = orders(report.rows)
    return report


def parsed() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with distributed.csv.gz")
    parser.add_argument("--cache", type=Path, required=True, help="folder where answers are kept")
    parser.add_argument("--packages", type=Path, help="folder with torchtitan, megatron-core and triton")
    parser.add_argument("--half", choices=("seen", "test", "both"), default="seen")
    parser.add_argument("--only", default="", help="families whose name has this word")
    parser.add_argument("--adapters", default=",".join(ADAPTERS), help="which of settings, titan, megatron ask")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no question after so many seconds")
    parser.add_argument("--offline", action="store_true", help="take what the cache has; ask nothing")
    parser.add_argument("--page", type=Path, help="file of the page to write")
    options = parser.parse_args()
    if not (options.data / "distributed.csv.gz").exists():
        parser.exit(
            2, f"--data: a folder with distributed.csv.gz; found none in {options.data}. See SOURCE.md there.\n"
        )
    return options


def main() -> None:
    """Ask, compare, print."""
    options = parsed()
    runs = load_runs(options.data)
    wanted = {"seen": (True,), "test": (False,), "both": (True, False)}[options.half]
    chosen = [run for run in runs if run.is_seen in wanted and options.only in run["family"]]
    adapters = options.adapters.split(",")
    questions = [question for _, question in ask_of(chosen, adapters)[0]]
    if not options.offline:
        counts = Counter(question.key for question in questions)
        asking = sorted(questions, key=lambda question: -counts[question.key])  # first what most runs wait for
        answer_all(asking, options.cache, options.packages, options.seconds)
    report = report_of(chosen, kept_answers(questions, options.cache), fitted(runs), adapters)
    print("\n".join(text_table(report.rows)))
    for title, counted in (("not asked", report.reasons), ("asked without an answer", report.failures)):
        print(f"values {title}:", *(f"{count:6} {reason}" for reason, count in counted.most_common()), "", sep="\n")
    print("Kendall's tau:", json.dumps(report.orders))
    tables = {
        ", ".join(key): summary(listed)
        for name_of in (source_of, kind_of, scale_of)
        for key, listed in groups_of(report.rows, name_of).items()
    }
    document = {"benchmark": "clusters", "version": 2, "half": options.half, "kendall_tau": report.orders}
    print(json.dumps(document | {"table": tables, "not_asked": report.reasons, "unanswered": report.failures}))
    if options.page:
        options.page.write_text(page_of(report, [] if len(adapters) == len(ADAPTERS) else adapters), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
