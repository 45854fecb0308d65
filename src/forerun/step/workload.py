"""What a workload must offer so that its step can be traced and trained; the generic workloads are in `heads.py`.

A workload builds its model on torch's current default device, names the batch that one micro-step consumes, and returns
its loss as a *sum*. The step divides by the count of the whole optimizer step, so that any split into micro-batches
gives the same gradient.

Where samples are compared with each other, a sum over micro-batches is another loss. Such a workload is a `SpansStep`:
its outputs are computed for every micro-batch first, the loss looks at all of them, and each micro-batch is run once
more to carry the gradient back (GradCache, Gao et al. 2021, arXiv 2101.06983). One whose loss needs only a mean over
them, without gradients, is an `AveragesStep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from forerun.settings.schema import Settings

Batch = dict[str, Tensor]
STEP_MEAN = "step_mean"
"""Key of a batch that holds the mean of an `AveragesStep`, a scalar."""
BLANK = "blank"
"""Key of a batch whose loss counts nothing: a rank without a micro-batch runs one beside its peers."""


@dataclass(frozen=True)
class LossSum:
    """Loss summed over the micro-batch; `details` are further detached scalars to log, already means."""

    sum: Tensor
    details: dict[str, Tensor] = field(default_factory=dict)


class Workload(Protocol):
    """One kind of training step."""

    name: str

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The model on the current default device; random weights unless `pretrained`."""
        ...

    def example_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """A batch of `size` samples padded to `length` tokens, on the current default device, values immaterial."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Loss of one micro-batch, summed over what `count` counts."""
        ...

    def count(self, batch: Batch) -> float:
        """Number that the loss sum is divided by: valid tokens or samples of this batch; read on the host."""
        ...

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The part that `schedule.frozen_encoder_epochs` freezes; None when there is none."""
        ...

    def learning_rate_scale(self, parameter_name: str) -> float:
        """Factor on the learning rate of a parameter."""
        ...


@runtime_checkable
class SpansStep(Protocol):
    """A workload whose loss compares the samples of the whole optimizer step with each other."""

    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        """Tensors of one micro-batch that the loss needs, samples along the first axis; all are differentiable."""
        ...

    def loss_of(self, outputs: tuple[Tensor, ...], batches: Sequence[Batch]) -> LossSum:
        """Loss of the whole step, summed over what `count` counts, from its outputs laid end to end."""
        ...


@runtime_checkable
class AveragesStep(Protocol):
    """A workload whose loss needs a mean over the whole optimizer step, which carries no gradient.

    It is computed for every micro-batch before the first micro-step, and each batch then has it under `STEP_MEAN`.
    """

    def summed(self, model: nn.Module, batch: Batch) -> Tensor:
        """What is averaged, summed over what `count` counts in one micro-batch; a scalar."""
        ...


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """A micro-batch cut in two between samples, or between packed rows; None when it cannot be cut.

    What is counted per sample follows its sample, and what is counted per packed document its row. `count` is left out:
    the whole step's is known before. `longest` stays: it is a bound.
    """
    ids = batch["input_ids"]
    size, length = ids.shape[:2]
    if size < 2:
        return None
    middle = size // 2
    parts: list[Batch] = []
    for begin, end in ((0, middle), (middle, size)):
        part = {key: value[begin:end] for key, value in batch.items() if value.ndim and len(value) == size}
        if "firsts" in batch:
            first = batch["firsts"]
            inside = (first >= begin * length) & (first < end * length)
            part["firsts"], part["labels"] = first[inside] - begin * length, batch["labels"][inside]
        if "boundaries" in batch:
            edges = batch["boundaries"]
            part["boundaries"] = edges[(edges >= begin * length) & (edges <= end * length)] - begin * length
            part["longest"] = batch["longest"]
        parts.append(part)
    return parts[0], parts[1]
