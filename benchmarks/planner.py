"""Does the planner find what trying everything finds, and how long does it take?

    python benchmarks/planner.py --limit 20            the first 20 of 66 targets, about 40 s each on two quiet cores
    python benchmarks/planner.py --compiled            compiled candidates too, twice as many

A target is a model of one wide block (768 channels, so that activations fill a card), a GPU, and a card cut down to
where all, half or a fifth of the largest step's activations fit. The plan is compared with a full forecast of every
combination of precision, recomputation, chunked loss and micro-batch size. Prints a row as it is done, a table and one
JSON line. Method version 1: with `--limit`, targets in an order shuffled once (seed 0).
"""

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.api import plan_settings, request_of
from forerun.hardware.catalogue import Device, device
from forerun.plan.candidates import StepClass, Workbench
from forerun.plan.exhaustive import best_seconds, forecast_all, whole_seconds
from forerun.plan.space import precisions
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.units import format_seconds

WITHIN = 0.03
WIDE = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 1, "vocab_size": 16384}
USUAL = {**WIDE, "intermediate_size": 3072}
LLAMA = {**USUAL, "num_key_value_heads": 12}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-bert": ("sequence-classification", USUAL),
    "tiny-roberta": ("masked-lm", USUAL),
    "tiny-electra": ("sequence-classification", {**USUAL, "embedding_size": 768}),
    "tiny-distilbert": ("sequence-classification", {"dim": 768, "hidden_dim": 3072, "n_heads": 12, "n_layers": 1}),
    "tiny-gpt2": ("causal-lm", {"n_embd": 768, "n_head": 12, "n_layer": 1, "vocab_size": 16384}),
    "tiny-llama": ("causal-lm", LLAMA),
    "tiny-mistral": ("causal-lm", LLAMA),
    "tiny-qwen2": ("causal-lm", LLAMA),
    "tiny-gpt-neox": ("causal-lm", USUAL),
    "tiny-opt": ("causal-lm", {**WIDE, "ffn_dim": 3072, "word_embed_proj_dim": 768}),
    "tiny-t5": ("seq2seq-lm", {"d_model": 768, "d_ff": 3072, "num_heads": 12, "d_kv": 64, "num_layers": 1,
                               "num_decoder_layers": 1, "vocab_size": 16384}),
}  # fmt: skip
GPUS = ("t4", "a100-40gb")
SHORT, LONG = 32_000, 1_600_000
"""Examples: so few that compiling, at 30 s, does not pay, so that both search the same; and so many that it does."""
ROOM = (1.2, 0.5, 0.2)
"""Memory left beside weights and state, over what the step that holds the whole batch needs."""


@dataclass(frozen=True)
class Target:
    """One case."""

    model: str
    gpu: str
    room: float
    examples: int

    @property
    def settings(self) -> Settings:
        """16 samples of 128 tokens a step."""
        workload, config = FAMILIES[self.model]
        return settings_from({
            "name": self.model, "workload": workload, "model": {"name": self.model, "config": config},
            "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 4, "sequence_length": 128},
            "data": {"examples": self.examples},
        })  # fmt: skip

    @property
    def card(self) -> Device:
        """The GPU with its memory cut down."""
        settings, roomy = self.settings, device(self.gpu)
        half = settings_from({**settings.model_dump(), "precision": precisions(settings, roomy)[0]})
        step_class = StepClass(half, roomy, Workbench(lambda s, d: request_of(s, d, None), 60.0), [])
        least, most = (step_class.at(n, 16 // n).device_bytes for n in (1, 16))
        return roomy.model_copy(update={"memory_bytes": int(least + (most - least) * self.room)})


def targets(examples: int) -> list[Target]:
    """All, in an order shuffled once."""
    shuffled = [Target(model, gpu, room, examples) for model in FAMILIES for gpu in GPUS for room in ROOM]
    random.Random(0).shuffle(shuffled)
    return shuffled


def compare(target: Target, *, compiled: bool) -> dict[str, Any]:
    """Plan and exhaustive search of one target."""
    settings, card = target.settings, target.card
    start = time.perf_counter()
    busy = time.process_time()
    plan = plan_settings(settings, [card])
    seconds, processor = time.perf_counter() - start, time.process_time() - busy
    everything = forecast_all(settings, card, lambda s, d: request_of(s, d, None), compiled=compiled)
    best = best_seconds(everything)
    planned = None
    if plan.settings is not None and plan.forecast is not None:
        planned = whole_seconds(plan.forecast)
    return {
        "model": target.model, "gpu": target.gpu, "room": target.room, "candidates": len(everything),
        "fitting": sum(forecast.fits for _, forecast in everything), "best_seconds": best, "plan_seconds": planned,
        "over": None if best is None or planned is None else planned / best - 1,
        "infeasible": plan.forecast is not None and not plan.forecast.fits,
        "missed": best is not None and planned is None, "traces": plan.traces,
        "search_seconds": seconds, "processor_seconds": processor,
        "chosen": "" if plan.settings is None else " ".join(
            f"{plan.settings[name]}" for name in ("precision", "activation_checkpointing", "cross_entropy", "compile")
        ) + f" {plan.settings['batch']['micro_batch_size']}",
    }  # fmt: skip


def main() -> None:
    """Compare as many targets as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--seconds", type=float, default=None, help="start no further target after this long")
    arguments = parser.parse_args()
    start, rows = time.perf_counter(), []
    examples = LONG if arguments.compiled else SHORT
    for target in targets(examples)[arguments.skip :][: arguments.limit]:
        if arguments.seconds is not None and time.perf_counter() - start > arguments.seconds:
            break
        rows.append(compare(target, compiled=arguments.compiled))
        print(json.dumps(rows[-1]), flush=True)
    table = Table("model", "gpu", "room", "candidates", "chosen", "over the best", "plan took")
    for row in rows:
        over = "nothing fits" if row["over"] is None else f"{row['over']:+.1%}"
        table.add_row(row["model"], row["gpu"], str(row["room"]), f"{row['fitting']} of {row['candidates']} fit",
                      row["chosen"], over, format_seconds(row["search_seconds"]))  # fmt: skip
    Console().print(table)
    compared = [row["over"] for row in rows if row["over"] is not None]
    print(json.dumps({
        "benchmark": "planner", "version": 1, "targets": len(rows), "compiled": arguments.compiled,
        "compared": len(compared), "within_3_percent": sum(over <= WITHIN for over in compared),
        "worst": max(compared, default=None), "infeasible": sum(row["infeasible"] for row in rows),
        "missed": sum(row["missed"] for row in rows),
        "median_search_seconds": statistics.median(row["search_seconds"] for row in rows) if rows else None,
        "median_processor_seconds": statistics.median(row["processor_seconds"] for row in rows) if rows else None,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
