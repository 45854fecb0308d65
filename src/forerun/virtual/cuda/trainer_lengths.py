"""How long a program would go on by the word of a library's trainer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forerun.virtual.cuda.clock_ends import ClockEnd
from forerun.virtual.cuda.line_searches import iterations_of

SAY_THEIR_LENGTH = ("transformers", "trl", "lightning", "pytorch_lightning", "keras", "ignite", "mmengine")
"""Packages whose trainers say how long they train, and most of them how often they evaluate."""
AT_MOST = "at most"
"""What a source says where training can end before its length."""


@dataclass(frozen=True)
class ProgramLength:
    """How many optimizer steps the program will make in all, and who says so."""

    steps: int
    source: str
    steps_per_epoch: int | None = None
    evaluation_batches: int = 0
    """Batches that are evaluated in the whole run."""
    evaluation_batch_size: int = 0
    checkpoints: int = 0
    """Checkpoints that are written in the whole run."""
    generates: bool = False
    """Its evaluations generate, which their batches' forward passes do not show."""
    loops: tuple[tuple[str, int], ...] = ()
    """File and line of each loop around the step, innermost first, and the steps of all its turns."""
    clock: ClockEnd | None = None
    """What ends one of them by the clock: how many steps that is depends on how long one takes (`clock_ends.py`)."""

    def scaled(self, share: float, line: str) -> "ProgramLength":
        """The length of so many times the turns of the loop at a line; those of loops in it are as many as before."""
        lines = [each for each, _ in self.loops]
        first = lines.index(line) if line in lines else len(lines)
        loops = [(each, round(share * steps)) for each, steps in self.loops[first:]]
        return replace(self, steps=round(share * self.steps), loops=(*self.loops[:first], *loops))


def length_of_trainer(variables: Mapping[str, Any], function: str) -> ProgramLength | None:
    """What the trainer says in whose `function`, with these `variables`, the program is; None where it is none."""
    owner: Any = variables.get("self")
    homes = [kind.__module__ for kind in type(owner).__mro__]  # people derive trainers of their own
    is_trainer = any(home.startswith(("transformers.", "trl.")) for home in homes)
    if is_trainer and hasattr(owner, "state") and hasattr(owner, "args"):
        return _of_trainer(owner)
    if any("lightning" in home for home in homes) and getattr(owner, "trainer", None) is not None:
        return _of_lightning(owner.trainer)
    if function == "fit" and any(home.startswith("keras.") for home in homes):
        return _of_keras(variables)
    if any(home.startswith("ignite.engine") for home in homes):
        return _of_ignite(getattr(owner, "state", None))
    if function == "step" and "torch.optim.lbfgs" in homes and (iterations := iterations_of(owner.param_groups[0])) > 1:
        return ProgramLength(iterations, f"max_iter of L-BFGS, {AT_MOST}: it may converge before")
    if any(home.startswith("mmengine.runner") for home in homes) and isinstance(getattr(owner, "max_iters", None), int):
        return _of_mmengine(owner)
    return None


def _unless_stopped(source: str, callbacks: Any) -> str:
    """The source, with the callback that can end training early, by its name."""
    names = (type(each).__name__ for each in callbacks if isinstance(callbacks, list | tuple))
    early = next((name for name in names if "EarlyStopping" in name), "")
    return f"{source}, {AT_MOST}: {early} can end it" if early else source


def _of_trainer(trainer: Any) -> ProgramLength | None:
    """transformers' Trainer and those made from it (transformers/trainer.py, 5.23)."""
    steps, arguments = getattr(trainer.state, "max_steps", 0), trainer.args
    if not isinstance(steps, int) or steps <= 0:
        return None
    epochs = max(1.0, float(getattr(trainer.state, "num_train_epochs", 1) or 1))
    delay = float(getattr(arguments, "eval_delay", 0) or 0)
    every = arguments.eval_steps or arguments.logging_steps or steps
    evaluations = _times(arguments.eval_strategy, every, steps, epochs, delay)
    checkpoints = _times(arguments.save_strategy, arguments.save_steps or steps, steps, epochs)
    if _name(arguments.save_strategy) == "best":  # where each is better than those before
        checkpoints = evaluations
    evaluations += bool(getattr(arguments, "eval_on_start", False))
    rows = batches_rows(trainer.eval_dataset)
    size = max(1, arguments.eval_batch_size)
    batches = math.ceil(rows / size / max(1, arguments.world_size))
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    source = _unless_stopped("the Trainer's max_steps", callbacks)
    return ProgramLength(
        steps, source, math.ceil(steps / epochs), evaluations * batches, size, checkpoints,
        generates=bool(evaluations and getattr(arguments, "predict_with_generate", False)),
    )  # fmt: skip


def _times(strategy: Any, every: float, steps: int, epochs: float, delay: float = 0) -> int:
    """How often a Trainer evaluates or saves, not before `delay` epochs or steps (trainer_callback.py, 5.24).

    By steps also behind the last one; `every` below 1 is a share of all steps.
    """
    if _name(strategy) == "epoch":
        return sum(delay <= min(number, epochs) for number in range(1, math.ceil(epochs) + 1))
    if _name(strategy) != "steps":
        return 0
    each = max(1, math.ceil(every if every >= 1 else every * steps))
    return len({number for number in (*range(each, steps, each), steps) if delay <= number})


def _name(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))


def batches_rows(dataset: Any) -> int:
    """Rows of one dataset or of several by name, or batches of a loader; 0 where nobody says."""
    if isinstance(dataset, dict):
        return sum(map(batches_rows, dataset.values()))
    try:
        return len(dataset)
    except TypeError:
        return 0


def _of_lightning(trainer: Any) -> ProgramLength | None:
    """Lightning's (lightning/pytorch/trainer/trainer.py, 2.6), with its validations and checkpoints."""
    steps = getattr(trainer, "estimated_stepping_batches", None)
    if not isinstance(steps, int) or steps <= 0:
        return None
    batches, limit = getattr(trainer, "num_training_batches", None), getattr(trainer, "max_epochs", None)
    accumulated = getattr(trainer, "accumulate_grad_batches", 1)
    if isinstance(batches, int) and batches > 0:  # `max_steps` alone leaves `max_epochs` at -1
        per_epoch = math.ceil(batches / accumulated)
    elif isinstance(limit, int) and limit > 0:
        per_epoch = math.ceil(steps / limit)
    else:
        per_epoch = None
    epochs = steps // per_epoch if per_epoch else 0
    checks = getattr(trainer, "num_val_batches", None) or []
    times = _validations(trainer, steps * accumulated, batches, epochs)
    is_often = bool(checks) and times > epochs > 0
    return ProgramLength(
        steps, _unless_stopped("Lightning's estimated_stepping_batches", getattr(trainer, "callbacks", ())), per_epoch,
        times * sum(int(count) for count in checks if isinstance(count, int)),
        checkpoints=sum(
            _saves(each, steps, epochs, times / epochs if is_often else 1)
            for each in getattr(trainer, "checkpoint_callbacks", ())
        ),
    )  # fmt: skip


def _validations(trainer: Any, batches: int, batches_per_epoch: Any, epochs: int) -> int:
    """How often Lightning validates in so many training batches."""
    every, between = getattr(trainer, "check_val_every_n_epoch", 1), getattr(trainer, "val_check_batch", None)
    is_within = isinstance(between, int) and isinstance(batches_per_epoch, int) and 0 < between < batches_per_epoch
    if isinstance(between, int) and between > 0 and (is_within or every is None):
        return batches // between // (every or 1)
    return epochs // (every or 1)


def _saves(callback: Any, steps: int, epochs: int, validations: float) -> int:
    """How often a `ModelCheckpoint` writes, where every one is better than those before.

    After each of the `validations` of an epoch where these are several, unless it is told to save at epochs' ends
    (lightning/pytorch/callbacks/model_checkpoint.py, 2.6, `_should_save_on_train_epoch_end`).
    """
    if not getattr(callback, "save_top_k", 0) and not getattr(callback, "save_last", False):
        return 0
    by_steps, by_epochs = (getattr(callback, f"_every_n_{name}", 0) or 0 for name in ("train_steps", "epochs"))
    each_epoch = 1 if getattr(callback, "_save_on_train_epoch_end", None) else validations
    return steps // by_steps if by_steps > 0 else int(epochs // by_epochs * each_epoch) if by_epochs > 0 else 0


def _of_keras(table: Mapping[str, Any]) -> ProgramLength | None:
    """The variables of `fit` (keras/src/backend/torch/trainer.py, 3.15)."""
    epochs, batches = table.get("epochs"), getattr(table.get("epoch_iterator"), "num_batches", None)
    if not isinstance(epochs, int) or not isinstance(batches, int):
        return None
    epochs -= table.get("initial_epoch", 0)
    size = table.get("validation_batch_size") or table.get("batch_size") or 32
    every, checks = table.get("validation_freq"), table.get("validation_steps")
    if not isinstance(checks, int):
        checks = 0 if table.get("validation_data") is None else _validation_batches(table.get("val_x"), size)
    times = epochs // every if isinstance(every, int) and every > 0 else epochs
    source = _unless_stopped("the epochs of Keras' fit", getattr(table.get("callbacks"), "callbacks", ()))
    return ProgramLength(epochs * batches, source, batches, times * checks, size)


def _validation_batches(data: Any, size: int) -> int:
    """Batches of arrays of rows, or of what is batched already; 0 where nobody says."""
    while isinstance(data, list | tuple | dict) and data:
        data = next(iter(data.values() if isinstance(data, dict) else data))
    rows = getattr(data, "shape", None)
    return math.ceil(rows[0] / size) if rows else batches_rows(data)


def _of_ignite(state: Any) -> ProgramLength | None:
    """The state of an engine that runs (ignite/engine/engine.py, 0.5.5)."""
    epochs, batches = getattr(state, "max_epochs", None), getattr(state, "epoch_length", None)
    if not isinstance(epochs, int) or not isinstance(batches, int):
        return None
    return ProgramLength(epochs * batches, "the epochs of Ignite's engine", batches)


def _of_mmengine(loop: Any) -> ProgramLength | None:
    """A training loop of MMEngine's runner (mmengine/runner/loops.py, 0.10.7), by epochs or by iterations."""
    runner, validation = loop.runner, getattr(loop.runner, "_val_loop", None)
    accumulated = getattr(runner.optim_wrapper, "_accumulative_counts", 1) or 1
    is_by_epoch = not hasattr(loop, "dataloader_iterator")
    turns = loop.max_epochs if is_by_epoch else loop.max_iters
    batches = batches_rows(getattr(validation, "dataloader", ()))
    checks = _dues(turns, loop.val_interval, has_last=True) - (loop.val_begin - 1) // loop.val_interval
    hooks = [each for each in getattr(runner, "hooks", ()) if type(each).__name__ == "CheckpointHook"]
    steps = math.ceil(loop.max_iters / accumulated)
    hooks = [each for each in hooks if each.by_epoch == is_by_epoch and each.interval > 0]
    return ProgramLength(
        steps, "the loop of MMEngine's runner", math.ceil(steps / turns) if is_by_epoch else None,
        checks * batches,
        checkpoints=sum(_dues(turns, each.interval, has_last=each.save_last) for each in hooks),
    )  # fmt: skip


def _dues(turns: int, every: int, *, has_last: bool) -> int:
    """How often something is due in so many turns, in the last one in any case where it `has_last`."""
    return turns // every + (has_last and turns % every > 0)
