"""One optimizer step: micro-steps, loss normalised over the whole step, scaling, clipping, update.

The virtual GPU traces this very code and the trainer runs it; only the tensors and the observer differ. The observer is
told each phase as it begins and ends.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from forerun.settings.schema import Settings
from forerun.step.parallel import holding_gradients, mean_over_ranks
from forerun.step.precision import POLICIES, PrecisionPolicy
from forerun.step.workload import Batch, Workload
from forerun.trace import Phase


class StepObserver:
    """Told about the phases of a step; does nothing."""

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Around one phase."""
        yield


@dataclass(frozen=True)
class StepResult:
    """Outcome of one optimizer step; tensors are detached and still on the device, so reading them waits for it."""

    loss: Tensor
    """Mean loss over everything the step counted."""
    gradient_norm: Tensor | None
    details: dict[str, Tensor] = field(default_factory=dict)
    """Details of the workload's loss, means over the micro-batches."""


class TrainingStep:
    """Model, optimizer and loss bound together; `run` makes one optimizer step."""

    def __init__(
        self, settings: Settings, workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, device: str
    ):
        self.settings = settings
        self.workload = workload
        self.model = model
        self.called = model
        """What the loss calls: the model, or what wraps it on one of several ranks."""
        self.optimizer = optimizer
        self.device_type = device
        self.policy: PrecisionPolicy = POLICIES[settings.precision]
        self.scaler = torch.amp.GradScaler(device) if self.policy.scales_loss else None

    def run(self, micro_batches: Sequence[Batch], observer: StepObserver) -> StepResult:
        """One optimizer step over `micro_batches`."""
        counted = sum(self.workload.count(batch) for batch in micro_batches)
        count = mean_over_ranks(counted, self.settings, self.device_type)
        total: Tensor | None = None
        details: dict[str, Tensor] = {}
        for index, batch in enumerate(micro_batches):
            with holding_gradients(self.called, is_last=index == len(micro_batches) - 1):
                loss, parts = self.micro_step(batch, count, index, observer)
            total = loss if total is None else total + loss
            for name, part in parts.items():
                share = part / len(micro_batches)
                details[name] = details[name] + share if name in details else share
        if total is None:
            raise ValueError("a step needs at least one micro-batch")
        with observer.phase(Phase.OPTIMIZER):
            norm = self._update()
        return StepResult(total, norm, details)

    def micro_step(
        self, batch: Batch, count: float | Tensor, index: int, observer: StepObserver
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and backward of one micro-batch, its loss divided by `count`; returns loss and details, detached."""
        with observer.phase(Phase.FORWARD, index), self.policy.autocast(self.device_type):
            result = self.workload.loss(self.called, batch)
            loss = result.sum / count
        with observer.phase(Phase.BACKWARD, index):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach(), result.details

    def _update(self) -> Tensor | None:
        norm = None
        limit = self.settings.optimizer.max_gradient_norm
        if limit is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
            norm = nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def freeze_encoder(self, frozen: bool) -> None:
        """Stop or resume gradients into the workload's encoder; what an adapter froze for good stays frozen."""
        encoder = self.workload.encoder(self.model)
        trained = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        for parameter in encoder.parameters() if encoder is not None else ():
            if id(parameter) in trained:
                parameter.requires_grad_(not frozen)
