"""Is the plan for this CPU the fastest in reality? Every candidate measured, on three small targets.

    python -m benchmarks.planner_measured                about 8 minutes on two quiet cores
    python -m benchmarks.planner_measured --only bert    one target

Plans each target without and with `--confirm`, then runs real steps of every combination of precision, recomputation,
chunked loss and micro-batch size, twice and in opposite orders. Prints what the plan's choice takes over the fastest of
all, a table and one JSON line. Two measurements of one candidate differ too: their median difference is printed beside.
Method version 1.
"""

import argparse
import json
import statistics
import time

from rich.console import Console
from rich.table import Table

from forerun.api import confirm_plan, find_device, plan_settings, request_of
from forerun.plan.exhaustive import candidates
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.verify.confirm import step_seconds

NARROW = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
TARGETS = {
    "bert": {
        "workload": "sequence-classification", "model": {"name": "bert-base-uncased", "config": NARROW},
        "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 4, "sequence_length": 128},
    },
    "gpt2": {
        "workload": "causal-lm",
        "model": {"name": "gpt2", "config": {"n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 8192}},
        "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 128},
    },
    "t5": {
        "workload": "seq2seq-lm",
        "model": {"name": "t5-small", "config": {"num_layers": 2, "num_decoder_layers": 2, "vocab_size": 8192}},
        "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_length": 64},
    },
}  # fmt: skip


def target(name: str) -> Settings:
    """Settings of one target."""
    return settings_from({"name": name, **TARGETS[name], "precision": "fp32", "data": {"examples": 20_000}})


def measure_all(original: Settings) -> tuple[dict[str, float], float]:
    """Seconds of a step by settings hash, the better of two rounds, and the median difference between the rounds."""
    here = find_device("cpu")
    variants = list(candidates(original, here, compiled=False))
    rounds: dict[str, list[float]] = {settings.hash: [] for settings in variants}
    for settings in (*variants, *reversed(variants)):
        rounds[settings.hash].append(step_seconds(request_of(settings, here, None), here))
    differences = [max(times) / min(times) - 1 for times in rounds.values()]
    return {key: min(times) for key, times in rounds.items()}, statistics.median(differences)


def row(name: str) -> dict[str, float | int | str]:
    """One target: planned, confirmed, and everything measured."""
    original, here = target(name), find_device("cpu")
    start = time.perf_counter()
    plan = plan_settings(original, [here])
    planned = time.perf_counter() - start
    confirmed = confirm_plan(plan, original, here)
    took = time.perf_counter() - start
    measured, noise = measure_all(original)
    best = min(measured.values())
    proposal, confirmation = (settings_from(p.settings or {}) for p in (plan, confirmed))
    return {
        "target": name, "candidates": len(measured), "given_over_best": measured[original.hash] / best - 1,
        "plan_over_best": measured[proposal.hash] / best - 1,
        "confirmed_over_best": measured[confirmation.hash] / best - 1,
        "noise": noise, "plan_seconds": planned, "confirm_seconds": took - planned,
        "best_milliseconds": best * 1000, "worst_over_best": max(measured.values()) / best - 1,
    }  # fmt: skip


def main() -> None:
    """Print the table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(TARGETS), help="One target.")
    names = [only] if (only := parser.parse_args().only) else list(TARGETS)
    rows = [row(name) for name in names]
    table = Table(
        "target", "candidates", "given", "plan", "confirmed", "slowest", "noise", "planned in", "confirmed in"
    )
    for r in rows:
        shares = [
            f"{r[k]:+.1%}" for k in ("given_over_best", "plan_over_best", "confirmed_over_best", "worst_over_best")
        ]
        table.add_row(
            str(r["target"]), str(r["candidates"]), *shares, f"{r['noise']:.1%}", f"{r['plan_seconds']:.1f} s",
            f"{r['confirm_seconds']:.1f} s",
        )  # fmt: skip
    Console(width=120).print(table)
    print(json.dumps({"benchmark": "planner_measured", "version": 1, "rows": rows}))


if __name__ == "__main__":
    main()
