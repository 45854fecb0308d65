"""Is a forecast sane beside its neighbours? Pairs of settings of which one cannot need more than the other.

    python -m benchmarks.monotone --cases 60 --seed 1

Small models cut in depth, full and LoRA, several precisions, cards and shardings are drawn by a seed; each is compared
with what a single change makes of it. More batch, length or layers never need less memory or time; a card that is
faster in every catalogued number is never slower; sharding and checkpointing never cost memory; cost = time × price ×
cards. Prints each violation with its size and settings, a table by rule and quantity, and one JSON line. What the
exceptions are and how far they may go: `BOUNDS`, which tests/test_monotone.py holds. Method version 2: what went beyond
its bound is counted, and the reserved bytes are bounded by the step's largest request instead of by a fifth.
"""

import argparse
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from forerun.api import find_device, request_of, resolve
from forerun.forecasting.forecast import make_forecast
from forerun.forecasting.step_model import model_steps
from forerun.hardware.catalogue import Device, devices
from forerun.memory.allocator import AllocatorOptions
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import replay_memory
from forerun.records import Forecast
from forerun.units import HOUR, MIB, format_percent

METHOD = 2
MODELS = {
    "gpt2": "causal-lm", "llama-3.2-1b": "causal-lm", "bert-base-uncased": "sequence-classification",
    "tiny-llama": "causal-lm", "tiny-bert": "masked-lm", "tiny-gpt2": "causal-lm",
}  # fmt: skip
"""Models of the grid, with their workload; all of them are cut in depth."""
GPUS = ("a100-40gb", "l4", "rtx-3090", "rtx-4090", "h100-80gb", "rtx-3060-12gb", "a30", "a2", "rtx-3050-8gb")
ROUNDING_SHARE = 1e-9
"""Differences of floating-point sums, which are no violations."""


@dataclass(frozen=True)
class Case:
    """Settings of one forecast, as far as the grid varies them."""

    model: str = "gpt2"
    layers: int = 2
    batch: int = 2
    length: int = 128
    accumulation: int = 1
    precision: str = "bf16-mixed"
    adapter: str = "none"
    optimizer: str = "adamw"
    checkpointing: str = "none"
    parallel: str = "none"
    cards: int = 1
    gpu: str = "a100-40gb"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings as a file states them."""
        depth = "n_layer" if self.model.endswith("gpt2") else "num_hidden_layers"
        return {
            "name": "monotone", "workload": MODELS[self.model],
            "model": {"name": self.model, "config": {depth: self.layers}},
            "batch": {"micro_batch_size": self.batch, "sequence_length": self.length,
                      "gradient_accumulation_steps": self.accumulation},
            "precision": self.precision, "adapter": {"kind": self.adapter}, "optimizer": {"name": self.optimizer},
            "activation_checkpointing": self.checkpointing,
            "parallel": {"kind": self.parallel, "world_size": self.cards},
            # whole steps only: a shorter last one of an epoch makes the mean step shorter where the batch is larger
            "data": {"examples": 64 * self.batch * self.accumulation * self.cards}, "schedule": {"epochs": 1},
        }  # fmt: skip

    def __str__(self) -> str:
        default = asdict(Case())
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value != default[name]) or "base"


@dataclass(frozen=True)
class Pair:
    """Two cases of which the first cannot need more of the named quantities than the second."""

    rule: str
    less: Case
    more: Case
    quantities: tuple[str, ...]


@dataclass
class Tally:
    """Comparisons of one rule and quantity."""

    pairs: int = 0
    shares: list[tuple[float, Pair]] = field(default_factory=list)
    """By what share the first needed more, where it did."""
    beyond: int = 0
    """How often by more than it may."""


MEMORY = ("tensors", "allocated", "reserved", "device", "conservative")
QUANTITIES = (*MEMORY, "step")
LARGEST = "largest request"


@dataclass(frozen=True)
class Bound:
    """How far an exception may go: a share, and bytes beside it."""

    why: str
    share: float = 0.0
    bytes: float = 0.0
    units: int = 0
    """Copies of the model's weights in its compute dtype."""
    requests: int = 0
    """Segments of the largest request of the step that needs more."""


ANY = ""
NOTHING = Bound("no exception")
WHOLE_BLOCKS = Bound("a cached block is given whole where at most 1 MiB of it would be left", 0.005, 4 * MIB)
SEGMENTS = Bound(
    "a cached segment of the largest request (often the logits) serves a smaller one where none of that size is free; "
    "split, it cannot serve the large one again, which gets a new segment. A few bytes more or less decide it. "
    "PyTorch does the same: get_free_block takes the smallest block that holds a request",
    0.02, 20 * MIB, requests=1)  # fmt: skip
STREAMS = Bound("FSDP gathers weights and reduces gradients on streams of their own; their cache serves no other",
                0.05, 3 * 22 * MIB, units=2)  # fmt: skip
CHANNELS = Bound("NCCL takes 144 MiB more between more than two ranks (memory/overhead.py)", 0.0, 144 * MIB)
KERNELS = Bound("the fitted time of one product falls by up to 11 % where a longer side suits its kernel's tiles", 0.03)
BOUNDS = {
    (ANY, "allocated"): WHOLE_BLOCKS, (ANY, "reserved"): SEGMENTS, (ANY, "device"): SEGMENTS,
    (ANY, "conservative"): SEGMENTS, ("batch", "step"): KERNELS, ("length", "step"): KERNELS,
    **{("shards, copies", name): STREAMS for name in ("reserved", "device", "conservative")},
    ("shards, twice as many", "device"): CHANNELS,
}  # fmt: skip
"""By rule (`ANY`: all others) and quantity. Shares are of runs in docs/log.md."""


@cache
def outcome_of(case: Case) -> tuple[Forecast, Mapping[str, float]]:
    """The forecast of a case, made once, and its quantities: bytes, and seconds of a step.

    `tensors` are the bytes that were asked for, alive at their peak: what the allocator gives beyond them is left out.
    """
    device = find_device(case.gpu)
    request = request_of(resolve(case.settings), device, None)
    steps = model_steps(request)
    made = make_forecast(request, steps)
    bare = replay_memory(
        steps.longest.trace, workspace_bytes=workspace_bytes(device), keeps_curve=False,
        options=AllocatorOptions(expandable_segments=True),
    )  # fmt: skip
    return made, {
        "tensors": bare.peak_allocated_bytes,
        "allocated": made.memory.peak_allocated_bytes,
        "reserved": made.memory.peak_reserved_bytes,
        "device": made.memory.device_bytes.expected,
        "conservative": made.memory.device_bytes.conservative,
        "step": made.step.seconds.expected,
        LARGEST: max(storage.bytes for storage in steps.longest.trace.storages),
    }


def quantity(case: Case, name: str) -> float:
    """Bytes or seconds of a case."""
    return outcome_of(case)[1][name]


def excess(pair: Pair, name: str) -> float:
    """Share by which the case that cannot need more does; 0 where it does not."""
    less, more = quantity(pair.less, name), quantity(pair.more, name)
    return less / more - 1 if less > more * (1 + ROUNDING_SHARE) else 0.0


def allowance(pair: Pair, name: str) -> tuple[float, str]:
    """Share by which the case that cannot need more may need more all the same, and the mechanism."""
    bound = BOUNDS.get((pair.rule, name)) or BOUNDS.get((ANY, name)) or NOTHING
    more_bytes = bound.bytes + bound.requests * quantity(pair.less, LARGEST)
    if bound.units:
        width = 4 if pair.less.precision == "fp32" else 2
        more_bytes += bound.units * width * outcome_of(pair.less)[0].parameters.total
    return bound.share + more_bytes / quantity(pair.more, name), bound.why


def pairs_of(case: Case, draw: random.Random) -> Iterator[Pair]:
    """Comparisons of a case with single changes of it."""
    yield Pair("batch", case, replace(case, batch=case.batch + draw.choice((1, case.batch, 3))), QUANTITIES)
    yield Pair("length", case, replace(case, length=case.length + draw.choice((8, 64, case.length))), QUANTITIES)
    yield Pair("layers", case, replace(case, layers=case.layers + draw.choice((1, 2, case.layers))), QUANTITIES)
    if case.checkpointing == "none":
        blocks = replace(case, checkpointing="blocks")
        yield Pair("checkpointing, memory", blocks, case, MEMORY)
        yield Pair("checkpointing, time", case, blocks, ("step",))
    alone = replace(case, parallel="none", cards=1)
    for fast in draw.sample(faster := faster_cards(case.gpu), min(2, len(faster))):
        yield Pair("card", replace(alone, gpu=fast), alone, ("step",))
    if case.cards > 1:
        sharded, copies = replace(case, parallel="fsdp"), replace(case, parallel="ddp")
        yield Pair("shards, copies", sharded, copies, MEMORY)
        yield Pair("shards, twice as many", replace(sharded, cards=2 * case.cards), sharded, MEMORY)


def faster_cards(name: str) -> list[str]:
    """Cards that are at least as fast as this one in every catalogued number, and a twentieth faster in one."""
    rows = {row.name: row for row in devices()}
    slow = _speeds(rows[name])
    return [fast.name for fast in rows.values() if fast.name != name and _dominates(_speeds(fast), slow)]


def _speeds(row: Device) -> Mapping[str, float]:
    """Every number of a card that time depends on."""
    peaks = {f"peak {dtype}": peak for dtype, peak in row.peak_flops_per_second.items()}
    return peaks | {
        "bandwidth": row.bandwidth_bytes_per_second or 0.0, "sm": row.sm_count or 0, "l2": row.l2_bytes or 0,
        "link": row.host_link_bytes_per_second or 0.0, "clock": row.boost_clock_hertz,
    }  # fmt: skip


def _dominates(fast: Mapping[str, float], slow: Mapping[str, float]) -> bool:
    return all(fast.get(name, 0.0) >= value for name, value in slow.items()) and any(
        fast[name] >= 1.05 * value for name, value in slow.items()
    )


def drawn(draw: random.Random, models: Sequence[str] = tuple(MODELS)) -> Case:
    """A case of the grid."""
    model = draw.choice(models)
    parallel = draw.choice(("none", "none", "ddp", "fsdp"))
    return Case(
        model=model,
        layers=draw.choice((1, 2, 3, 4)),
        batch=draw.choice((1, 2, 3, 4, 6, 8, 16)),
        length=draw.choice((16, 40, 64) if model.startswith("tiny") else (16, 40, 64, 128, 200, 256)),
        accumulation=draw.choice((1, 1, 2)),
        precision=draw.choice(("fp32", "bf16-mixed", "bf16-true")),
        adapter=draw.choice(("none", "none", "lora")) if parallel == "none" else "none",
        optimizer=draw.choice(("adamw", "adamw", "sgd", *["paged-adamw"] * (parallel == "none"))),
        checkpointing=draw.choice(("none", "none", "blocks")),
        parallel=parallel,
        cards=1 if parallel == "none" else draw.choice((2, 4)),
        gpu=draw.choice(GPUS),
    )


def cost_is_wrong(case: Case) -> bool:
    """Whether cost is not time × price × cards."""
    made, price = outcome_of(case)[0], find_device(case.gpu).price_per_hour
    if price is None or made.run.cost is None:
        return (price is None) != (made.run.cost is None)
    expected = sum(made.run.phases.model_dump().values()) / HOUR * price * case.cards
    return not math.isclose(made.run.cost, expected, rel_tol=1e-9)


def swept(number: int, at: int) -> tuple[dict[tuple[str, str], Tally], int, int]:
    """Tallies by rule and quantity, forecasts whose cost is wrong, and forecasts made."""
    draw, tallies, wrong = random.Random(at), dict[tuple[str, str], Tally](), 0
    for _ in range(number):
        case = drawn(draw)
        wrong += cost_is_wrong(case)
        for pair in pairs_of(case, draw):
            for name in pair.quantities:
                tally = tallies.setdefault((pair.rule, name), Tally())
                tally.pairs += 1
                if share := excess(pair, name):
                    tally.shares.append((share, pair))
                    tally.beyond += share > allowance(pair, name)[0]
                    less, more = quantity(pair.less, name), quantity(pair.more, name)
                    print(f"{pair.rule}, {name}: {format_percent(share)} ({less:.6g} and {more:.6g})\n"
                          f"  {pair.less}\n  {pair.more}", flush=True)  # fmt: skip
    return tallies, wrong, outcome_of.cache_info().currsize


def main() -> None:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tallies, wrong, forecasts = swept(options.cases, options.seed)
    print(f"\n{'rule':24} {'quantity':13} {'pairs':>6} {'broken':>6} {'median':>8} {'worst':>8}")
    for (rule, name), tally in sorted(tallies.items()):
        shares = [share for share, _ in tally.shares] or [0.0]
        print(f"{rule:24} {name:13} {tally.pairs:6} {len(tally.shares):6} "
              f"{format_percent(statistics.median(shares)):>8} {format_percent(max(shares)):>8}")  # fmt: skip
    document = {f"{rule}, {name}": {"pairs": t.pairs, "broken": len(t.shares),
                                    "worst": max((s for s, _ in t.shares), default=0.0), "beyond": t.beyond,
                                    "why": allowance(t.shares[0][1], name)[1] if t.shares else ""}
                for (rule, name), t in sorted(tallies.items())}  # fmt: skip
    print(json.dumps({"method": METHOD, "cases": options.cases, "seed": options.seed, "forecasts": forecasts,
                      "wrong_costs": wrong, "rules": document}))  # fmt: skip


if __name__ == "__main__":
    main()
