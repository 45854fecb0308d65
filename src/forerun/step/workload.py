"""What a workload must offer so that its step can be traced and trained; the generic workloads are in `heads.py`.

A workload builds its model on torch's current default device, names the batch that one micro-step consumes, and returns
its loss as a *sum*. The step divides by the count of the whole optimizer step, so that any split into micro-batches
gives the same gradient.
"""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from forerun.settings.schema import Settings

Batch = dict[str, Tensor]


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
        """What the loss sum is divided by: valid tokens or samples of this batch; read on the host."""
        ...

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """The part that `schedule.frozen_encoder_epochs` freezes; None when there is none."""
        ...

    def learning_rate_scale(self, parameter_name: str) -> float:
        """Factor on the learning rate of a parameter."""
        ...
