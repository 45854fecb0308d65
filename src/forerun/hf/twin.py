"""A copy of a Trainer that trains on the virtual GPU, while the real one stays as it is.

Everything the trainer has is copied: its models without their weights, its arguments for the card, its callbacks of
transformers and TRL. Datasets of rows are shared, since they are only read. Reporters to trackers, progress bars and
callbacks of the user's own are left out; what the copy writes goes to the files layer of the session around it.
"""

import contextlib
import copy
import random
from collections.abc import Iterator
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import CallbackHandler, PrinterCallback, ProgressCallback

from forerun.errors import NotSupported

STATES: Any = (PartialState, AcceleratorState, GradientState)
"""What accelerate shares between all objects of a process (accelerate/state.py, 1.15)."""
MADE_ANEW = ("args", "accelerator", "gather_function", "callback_handler")
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError, PicklingError, copy.Error)
"""What objects raise that cannot be copied, such as locks, open files and clients; they are shared."""
LARGE_BYTES = 2**20
"""Floating tensors from this size on are copied without their values."""


@contextlib.contextmanager
def process_as_it_was() -> Iterator[None]:
    """Random states and accelerate's shared states are put back; meanwhile accelerate finds none."""
    states = [(state, dict(state._shared_state)) for state in STATES]
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002 (the Trainer seeds it)
    for state, _ in states:
        state._shared_state.clear()
    try:
        yield
    finally:
        for state, content in states:
            state._shared_state.clear()
            state._shared_state.update(content)
        torch.set_rng_state(numbers[0])
        random.setstate(numbers[1])
        np.random.set_state(numbers[2])  # noqa: NPY002


def twin_of(trainer: Trainer) -> Trainer:
    """A copy of `trainer` on the device that is `cuda` now; call it inside a session on the virtual GPU.

    Raises:
        NotSupported: a model has parameters of packed values.
    """
    twin = copy.copy(trainer)
    twin.args = _arguments(trainer.args)
    twin.create_accelerator_and_postprocess()
    memo: dict[int, Any] = {id(trainer): twin, id(trainer.args): twin.args, id(trainer.accelerator): twin.accelerator}
    content = vars(trainer)
    for dataset in _datasets(trainer.train_dataset, trainer.eval_dataset):
        if not isinstance(dataset, IterableDataset):  # a stream is used up by reading
            memo[id(dataset)] = dataset
    models = [value for value in content.values() if isinstance(value, nn.Module)]
    memo |= _without_values(models)
    for name, value in content.items():
        if name not in MADE_ANEW:
            setattr(twin, name, _copied(value, memo))
    twin.callback_handler = _callbacks(trainer.callback_handler, twin, memo)
    if type(twin.optimizer).__name__ == "AcceleratedOptimizer":  # of an earlier training
        twin.optimizer, twin.lr_scheduler = None, None  # type: ignore[assignment]
    _place(twin, [name for name, value in vars(twin).items() if isinstance(value, nn.Module)])
    return twin


def callbacks_left_out(trainer: Trainer) -> list[str]:
    """Names of the user's own callbacks, which are not called."""
    callbacks = trainer.callback_handler.callbacks
    return [type(each).__name__ for each in callbacks if _home(each) not in ("transformers", "trl", "forerun")]


def _home(callback: TrainerCallback) -> str:
    return type(callback).__module__.partition(".")[0]


def _arguments(original: Any) -> Any:
    """Arguments for a run on the card that reports to nobody."""
    arguments = copy.deepcopy(original)
    arguments.__dict__.pop("_setup_devices", None)  # cached: the device of the machine at hand
    arguments.use_cpu = False
    arguments.report_to, arguments.push_to_hub, arguments.disable_tqdm = [], False, True
    _ = arguments.device
    return arguments


def _datasets(*datasets: Any) -> list[Any]:
    """Datasets and the parts of those that are several by name."""
    return [part for each in datasets for part in (each, *(each.values() if isinstance(each, dict) else ()))]


def _without_values(models: list[nn.Module]) -> dict[int, Any]:
    """Copies of all parameters and buffers on the host, by the id of the original.

    Raises:
        NotSupported: parameters of a kind that holds packed values.
    """
    memo: dict[int, Any] = {}
    for model in models:
        for name, parameter in model.named_parameters():
            if type(parameter) is not nn.Parameter:
                raise NotSupported(
                    f"trainer.model: {name} is a {type(parameter).__name__}, whose values are packed; found by "
                    f"forecast_trainer. Forecast its script with forerun exec instead, which loads no values."
                )
            if id(parameter) not in memo:
                memo[id(parameter)] = nn.Parameter(_empty_copy(parameter), parameter.requires_grad)
        for buffer in model.buffers():
            if id(buffer) not in memo:
                is_large = buffer.is_floating_point() and buffer.numel() * buffer.element_size() >= LARGE_BYTES
                memo[id(buffer)] = _empty_copy(buffer) if is_large else buffer.detach().cpu().clone()
    return memo


def _empty_copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device="cpu")


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A copy; the thing itself where it cannot be copied."""
    try:
        return copy.deepcopy(value, memo)
    except REFUSALS:
        return value


def _callbacks(original: CallbackHandler, twin: Trainer, memo: dict[int, Any]) -> CallbackHandler:
    handler = copy.copy(original)
    handler.model, handler.train_dataloader, handler.eval_dataloader = twin.model, None, None  # type: ignore[assignment]
    handler.optimizer, handler.lr_scheduler = twin.optimizer, twin.lr_scheduler
    handler.callbacks = [
        _copied(each, memo)
        for each in original.callbacks
        if _home(each) in ("transformers", "trl")
        and ".integrations." not in type(each).__module__
        and not isinstance(each, ProgressCallback | PrinterCallback)
    ]
    return handler


def _place(twin: Trainer, names: list[str]) -> None:
    """Move the trainer's models to the card, and let an optimizer that was passed in follow."""
    before = dict(twin.model.named_parameters())  # type: ignore[union-attr]
    for name in names:
        model = getattr(twin, name)
        # accelerate/accelerator.py (1.15), prepare_model: it was given autocast for the device of the machine at hand
        is_prepared = "_original_forward" in vars(model) and name not in ("model", "model_wrapped")
        if is_prepared:
            model = twin.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        model = model.to(twin.args.device)
        setattr(twin, name, twin.accelerator.prepare_model(model, evaluation_mode=True) if is_prepared else model)
    optimizer: Any = twin.optimizer
    if optimizer is None:
        return
    after = dict(twin.model.named_parameters())  # type: ignore[union-attr]
    successors = {id(old): after[name] for name, old in before.items()}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = [successors.get(id(each), each) for each in group["params"]]
