"""What follows from another global batch: learning rate, warm-up and length of the run, by published rules.

Linear for SGD (Goyal et al. 2017, arXiv 1706.02677); square root for Adam and its 8-bit forms (Malladi et al. 2022,
arXiv 2205.10287). Other update rules have no such rule here: their rate is left alone, and that is said. Warm-up and
`schedule.max_steps` keep their number of samples.
"""

import math
from typing import Any

from forerun.plan.space import changed
from forerun.settings.schema import Settings

ADAM_LIKE = ("adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit")


def rate_factor(optimizer: str, batch_factor: float) -> float:
    """Factor on the learning rate when the global batch grows by `batch_factor`; 1 where no rule is known."""
    if optimizer == "sgd":
        return batch_factor
    return math.sqrt(batch_factor) if optimizer in ADAM_LIKE else 1.0


def describe_rule(old: Settings, new: Settings) -> str:
    """The rule for the learning rate from `old` to `new`, named and worked out."""
    before, after, name = old.global_batch_size, new.global_batch_size, old.optimizer.name
    if before == after:
        return f"the global batch stays {before}, so the learning rate stays {old.optimizer.learning_rate:g}"
    factor = rate_factor(name, after / before)
    if name == "sgd":
        rule = "linear scaling for SGD (Goyal et al. 2017, arXiv 1706.02677)"
    elif name in ADAM_LIKE:
        rule = "square-root scaling for Adam-like rules (Malladi et al. 2022, arXiv 2205.10287)"
    else:
        return f"the global batch goes {before} → {after}; no scaling rule is known for {name}: the rate is left alone"
    rate = old.optimizer.learning_rate
    return f"the global batch goes {before} → {after}: {rule}, {rate:g} × {factor:.3g} = {rate * factor:g}"


def with_global_batch(settings: Settings, original: Settings, global_batch: int) -> Settings:
    """`settings` with a `global_batch` samples in a step; rate, warm-up and length are carried over from `original`."""
    factor = global_batch / original.global_batch_size
    size = min(settings.batch.micro_batch_size, global_batch // settings.parallel.data_ranks)
    while (global_batch // settings.parallel.data_ranks) % size:
        size -= 1
    rate = original.optimizer.learning_rate * rate_factor(original.optimizer.name, factor)
    changes: dict[str, Any] = {
        "batch.micro_batch_size": size,
        "batch.gradient_accumulation_steps": global_batch // settings.parallel.data_ranks // size,
        "optimizer.learning_rate": float(f"{rate:.6g}"),
        "schedule.warmup_steps": round(original.schedule.warmup_steps / factor),
    }
    if original.schedule.max_steps is not None:
        changes["schedule.max_steps"] = max(1, round(original.schedule.max_steps / factor))
    return changed(settings, changes)
