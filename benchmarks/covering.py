"""Do any two settings go together? Every pair of values, forecast or refused for a reason of ours: a covering array.

    python -m benchmarks.covering --seconds 1200

Rows are built greedily, so that each has many pairs of values that no row had yet. A row that is forecast covers its
pairs. One that is refused is made smaller, setting by setting, while it still is: what is left (mostly two values) is a
conflict, which later rows avoid. What is left when `MIXED_SHARE` of the time is over are pairs that hardly go with
anything; each is asked alone, beside the first levels of all other factors. A refusal must be in our words: one that
only hands on what PyTorch or transformers raised is a failure, as is an answer that `fuzz.py` would not let pass.
Prints conflicts, failures and one JSON line.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from benchmarks.fuzz import FOREIGN, answering, outcome_of
from benchmarks.fuzz_cases import asked

METHOD = 2
Value = tuple[str, Any]
"""A factor and one of its levels; settings are `path=value` texts, so that both can be compared."""
FACTORS: dict[str, list[dict[str, Any]]] = {
    "task": [
        {"workload": "causal-lm", "model.name": "tiny-llama"}, {"workload": "causal-lm", "model.name": "tiny-gemma2"},
        {"workload": "masked-lm", "model.name": "tiny-bert"}, {"workload": "seq2seq-lm", "model.name": "tiny-t5"},
        {"workload": "sequence-classification", "model.name": "tiny-bert"},
        {"workload": "sequence-classification", "model.name": "tiny-qwen2"},
        {"workload": "token-classification", "model.name": "tiny-modernbert"},
        {"workload": "preference", "model.name": "tiny-gpt2"}, {"workload": "causal-lm", "model.name": "tiny-mixtral"},
    ],
    "gpu": [{"gpu": "h100-80gb"}, {"gpu": "t4"}, {"gpu": "a100-40gb"}],
    "adapter": [{}, *({"adapter.kind": kind} for kind in ("lora", "prompt", "prefix", "ia3")),
                {"adapter.kind": "llama-adapter", "adapter.layers": 2},
                {"adapter.kind": "lora", "adapter.dora": True}, {"adapter.kind": "lora", "adapter.rslora": True}],
    "quantization": [{}, *({"quantization": kind, "adapter.kind": "lora"} for kind in ("int8", "nf4", "nf4-double")),
                     {"quantization": "nf4", "adapter.kind": "lora", "kbit_preparation": True}],
    "float8": [{}, {"float8.recipe": "tensorwise"}, {"float8.recipe": "rowwise"}],
    "precision": [{"precision": p} for p in ("bf16-mixed", "tf32", "fp16-mixed", "fp32", "fp16-true", "bf16-true")],
    "optimizer": [{"optimizer.name": name} for name in
                  ("adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "adafactor", "lion", "muon")],
    "implementation": [{"optimizer.implementation": kind} for kind in ("auto", "for-loop", "foreach", "fused")],
    "in_backward": [{}, {"optimizer.in_backward": True}],
    "clipping": [{}, {"optimizer.max_gradient_norm": 1.0}],
    "padding": [{"batch.padding": kind, "data.mean_tokens": 20} for kind in ("fixed", "longest", "bucketed", "packed")],
    "accumulation": [{}, {"batch.gradient_accumulation_steps": 3}],
    "attention": [{"model.attention": kind} for kind in
                  ("auto", "eager", "sdpa", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math",
                   "flash_attention_2", "flash_attention_3", "flex_attention")],
    "kernels": [{}, {"model.kernels": "liger"}],
    "recomputation": [{"activation_checkpointing": kind} for kind in ("none", "blocks", "selective")],
    "activation_offload": [{}, {"activation_offload": True}],
    "compile": [{}, {"compile": "default"}, {"compile": "reduce-overhead"},
                {"compile": "default", "compile_unit": "blocks"},
                {"compile": "max-autotune", "compile_unit": "blocks"}],
    "cross_entropy": [{}, {"cross_entropy": "chunked"}],
    "parallel": [{}, {"parallel.data": 2}, {"parallel.shard": 2}, {"parallel.tensor": 2, "parallel.world_size": 2},
                 {"parallel.shard": 2, "parallel.replicate": 2}, {"parallel.shard": 2, "parallel.tensor": 2},
                 *({"parallel.data": 2, "parallel.zero": stage} for stage in (1, 2, 3)),
                 {"parallel.offload": "optimizer"}],
    "frozen": [{}, {"model.freeze": ["*embed*"]}, {"schedule.frozen_encoder_epochs": 0.5}],
    "evaluation": [{}, {"evaluation.examples": 8, "evaluation.new_tokens": 4}],
}  # fmt: skip
"""Levels of each factor, each with what settings it sets: first the one that goes with most others. What does not go
with the first of another factor counts as a conflict by itself, and none of its pairs is tried."""
BASE = {"batch.sequence_length": 32, "batch.micro_batch_size": 2, "data.examples": 64, "schedule.epochs": 1}
MIXED_SHARE = 0.6
DEAR = ("compile", "parallel")
"""Factors that take long to trace, made simple first."""
Row = dict[str, int]
"""Level of each factor, by its number."""


@dataclass
class Coverage:
    """Pairs that were forecast, and what does not go together, with its reason."""

    sizes: Mapping[str, int]
    covered: set[frozenset[tuple[str, int]]] = field(default_factory=set)
    conflicts: dict[frozenset[tuple[str, int]], str] = field(default_factory=dict)

    def pairs(self) -> Iterable[frozenset[tuple[str, int]]]:
        """Every pair of levels of two factors."""
        for one, other in combinations(self.sizes, 2):
            for first in range(self.sizes[one]):
                for second in range(self.sizes[other]):
                    yield frozenset({(one, first), (other, second)})

    def breaks(self, row: Row) -> bool:
        """Whether a row holds a conflict."""
        levels = set(row.items())
        return any(conflict <= levels for conflict in self.conflicts)

    def left(self) -> list[frozenset[tuple[str, int]]]:
        """Pairs that are neither covered nor in conflict."""
        return [p for p in self.pairs() if p not in self.covered and not any(c <= p for c in self.conflicts)]

    def cover(self, row: Row) -> None:
        """Note the pairs of a row that was forecast."""
        self.covered |= {frozenset(pair) for pair in combinations(row.items(), 2)}


def next_row(coverage: Coverage, left: list[frozenset[tuple[str, int]]], draw: random.Random) -> Row:
    """A row with the first pair that is left, and of the other factors levels that have most pairs left."""
    row = dict(left[0])
    remaining = set(left)
    for name in draw.sample([n for n in coverage.sizes if n not in row], len(coverage.sizes) - len(row)):

        def gain(level: int, name: str = name) -> int:
            return sum(frozenset({(name, level), other}) in remaining for other in row.items())

        levels = sorted(range(coverage.sizes[name]), key=lambda level: (-gain(level), level))
        row[name] = next((level for level in levels if not coverage.breaks({**row, name: level})), 0)
    return row


def smallest(row: Row, is_refused: Callable[[Row], bool]) -> Row:
    """The row with as many factors as can be at their first level while it is refused."""
    for name in sorted(row, key=lambda name: (name not in DEAR, name)):
        simpler = {**row, name: 0}
        if row[name] and is_refused(simpler):
            row = simpler
    return row


def conflict_of(row: Row) -> frozenset[tuple[str, int]]:
    """Levels of a smallest row that are not the first."""
    return frozenset((name, level) for name, level in row.items() if level)


def settings_of(row: Row) -> tuple[dict[str, Any], str]:
    """Settings of a row, and its GPU."""
    flat: dict[str, Any] = dict(BASE)
    for name, level in row.items():
        flat |= {key: value for key, value in FACTORS[name][level].items() if key != "adapter.kind" or key not in flat}
    gpu = flat.pop("gpu")
    content: dict[str, Any] = {"name": "row"}
    for path, value in flat.items():
        *sections, key = path.split(".")
        inner = content
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return content, gpu


@dataclass
class Result:
    """What came of an array."""

    coverage: Coverage
    rows: int
    forecasts: int
    failures: dict[str, str]
    """Settings of failed rows, made small, with what is wrong."""


def cover(answer: Callable[[Row], tuple[str, str]], sizes: Mapping[str, int], seconds: float, at: int = 1) -> Result:
    """Rows until no pair is left or the time is over; `answer` gives a row's outcome ("" for a forecast) and reason."""
    coverage, draw, answers = Coverage(sizes), random.Random(at), dict[str, tuple[str, str]]()
    start, rows, failures = time.monotonic(), 0, dict[str, str]()

    def of(row: Row) -> tuple[str, str]:
        key = str(sorted(row.items()))
        if key not in answers:
            answers[key] = answer(row)
            if not answers[key][0]:
                coverage.cover(row)
        return answers[key]

    while (left := coverage.left()) and time.monotonic() - start < seconds:
        mixed = time.monotonic() - start < MIXED_SHARE * seconds
        row = next_row(coverage, left if mixed else left[:1], draw)
        outcome, _ = of(row)
        rows += 1
        if not outcome:
            continue

        def stays(simpler: Row, outcome: str = outcome) -> bool:
            return of(simpler)[0] == outcome

        row = smallest(row, stays)
        conflict, reason = conflict_of(row), of(row)[1]
        coverage.conflicts[conflict] = reason
        if outcome != "refused":
            failures[str(sorted(conflict))] = f"{outcome}: {reason}"
    return Result(coverage, rows, sum(not outcome for outcome, _ in answers.values()), failures)


def words(levels: Iterable[tuple[str, int]]) -> str:
    """Levels as settings."""
    return " + ".join(str(FACTORS[name][level]) for name, level in sorted(levels))


def main() -> None:
    """Cover, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1200)
    options = parser.parse_args()
    result = covered_settings(options.seconds)
    for conflict, reason in sorted(result.coverage.conflicts.items(), key=lambda item: words(item[0])):
        print(f"{words(conflict)}: {reason[:260]}")
    print(f"\n{len(result.failures)} failures")
    for levels, reason in result.failures.items():
        print(f"{levels}: {reason[:600]}")
    left = len(result.coverage.left())
    print(
        json.dumps({"method": METHOD, "pairs": sum(1 for _ in result.coverage.pairs()), "left": left,
                    "covered": len(result.coverage.covered), "conflicts": len(result.coverage.conflicts),
                    "rows": result.rows, "forecasts": result.forecasts, "failures": len(result.failures)})
    )  # fmt: skip


def covered_settings(seconds: float) -> Result:
    """The array over our settings."""
    import forerun.api
    import forerun.cli.main  # noqa: F401  # loaded before the process is forked

    with answering() as answerer:

        def answer(row: Row) -> tuple[str, str]:
            content, gpu = settings_of(row)
            given = answerer.answer(asked(content, "row", gpu))
            outcome = outcome_of(given)
            return ("" if outcome == "forecast" else "foreign" if outcome == FOREIGN else outcome), given.message

        return cover(answer, {name: len(levels) for name, levels in FACTORS.items()}, seconds)


if __name__ == "__main__":
    main()
