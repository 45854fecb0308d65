"""Uneven batches: which optimizer steps to run, and the mean step of the whole epoch from those.

The first batches that the trainer's own loader gives tell the lengths. Where all are alike the trainer's loader is left
alone. Else few steps are run, the one with the largest micro-batch among them, since memory peaks there; the mean over
all sampled steps is a linear combination of what was run, by least squares in the tokens of a step and in the sum of
its rows times length squared, in which attention is linear.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils import _pytree as pytree

SAMPLED_BATCHES = 64
LEAST_STEPS = 8
"""Optimizer steps whose batches are looked at, at least."""
QUANTILES = (0.5, 0.0, 0.25, 0.75, 0.9)
"""Steps that are run beside the largest, by their place in the order of size."""
MASK = "attention_mask"


@dataclass(frozen=True)
class SampledStep:
    """The micro-batches of one optimizer step, on the host."""

    batches: tuple[Any, ...]

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Shapes of all tensors of each micro-batch."""
        return tuple(tuple(tuple(t.shape) for t in _tensors(batch)) for batch in self.batches)

    @property
    def size(self) -> tuple[float, float]:
        """Elements of the model's input, and rows × length²."""
        inputs = [_input_shape(batch) for batch in self.batches]
        return float(sum(rows * length for rows, length in inputs)), float(sum(r * n**2 for r, n in inputs))

    @property
    def largest_batch(self) -> tuple[int, int]:
        """Elements and length of the largest micro-batch."""
        return max((rows * length, length) for rows, length in (_input_shape(batch) for batch in self.batches))

    @property
    def samples(self) -> int:
        """Rows of all micro-batches."""
        return sum(_input_shape(batch)[0] for batch in self.batches)

    @property
    def tokens(self) -> float:
        """Tokens that are no padding; 0 where the batches have no ids."""
        return sum(_tokens(batch) for batch in self.batches)


def _tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(dict(batch) if hasattr(batch, "items") else batch)
            if isinstance(leaf, Tensor)]  # fmt: skip


def _named(batch: Any) -> dict[str, Tensor]:
    return {k: v for k, v in batch.items() if isinstance(v, Tensor)} if hasattr(batch, "items") else {}


def _input_shape(batch: Any) -> tuple[int, int]:
    """Rows and elements of a row of the model's input: the ids, else the largest tensor."""
    tensors = [t for t in _tensors(batch) if t.dim()]
    ids = _named(batch).get("input_ids")
    inputs = ids if ids is not None else max(tensors, key=Tensor.numel, default=None)
    if inputs is None:
        return 0, 0
    return inputs.shape[0], inputs.numel() // max(1, inputs.shape[0])


def _tokens(batch: Any) -> float:
    named = _named(batch)
    mask, ids = named.get(MASK), named.get("input_ids")
    if mask is not None and mask.dim() == 2 and not (ids is not None and mask.shape != ids.shape):
        return float(mask.sum())
    return 0.0 if ids is None else float(ids.numel())


def sample_steps(loader: Any, accumulation: int) -> list[SampledStep]:
    """The first optimizer steps of an epoch of `loader`, whose batches stay on the host."""
    device, loader.device = getattr(loader, "device", None), None  # accelerate/data_loader.py (1.15): moves nothing
    count = max(SAMPLED_BATCHES, LEAST_STEPS * accumulation)
    try:
        batches = list(itertools.islice(loader, count))
    finally:
        loader.device = device
    cut = len(batches) // accumulation * accumulation or len(batches)
    return [SampledStep(tuple(batches[i : i + accumulation])) for i in range(0, cut, accumulation)]


def choose_steps(steps: list[SampledStep]) -> list[SampledStep]:
    """Steps to run, the first to warm up; none where all are alike."""
    if len({step.shapes for step in steps}) == 1:
        return []
    ordered = sorted(steps, key=lambda step: step.size)
    largest = max(steps, key=lambda step: step.largest_batch)
    first, *others = (ordered[round(q * (len(ordered) - 1))] for q in QUANTILES)
    return [first, first, largest, *others]


def weights_of_mean(run: list[SampledStep], sampled: list[SampledStep]) -> np.ndarray:
    """What each step that was run counts for in the mean of those sampled; they sum to 1."""
    sizes = np.array([step.size for step in run])
    scale = np.maximum(sizes.max(axis=0), 1.0)
    distinct = len({tuple(size) for size in sizes.tolist()})
    columns = [np.ones(len(run)), *(sizes / scale).T][:distinct]
    target = np.array([1.0, *(np.array([s.size for s in sampled]).mean(axis=0) / scale)])[: len(columns)]
    return target @ np.linalg.pinv(np.stack(columns, axis=1))


class ChosenBatches:
    """A loader in the place of the trainer's: the batches of selected steps first, moved to the card as it would."""

    def __init__(self, loader: Any, steps: list[SampledStep]):
        self._loader = loader
        self._batches = iter([batch for step in steps for batch in step.batches])

    def __iter__(self) -> Iterator[Any]:
        device = getattr(self._loader, "device", None)
        for batch in itertools.islice(self._batches, len(self)):  # the next epoch goes on where this one ends
            yield batch if device is None else send_to_device(batch, device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
