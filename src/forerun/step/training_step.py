"""One optimizer step: micro-steps, loss normalised over the whole step, scaling, clipping, update.

The virtual GPU traces this very code and the trainer runs it; only the tensors and the observer differ. The observer is
told each phase as it begins and ends.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.graph import save_on_cpu

from forerun.errors import InvalidSettings
from forerun.settings.schema import Settings
from forerun.step.attention import DocumentKernel, kernels_of
from forerun.step.context_parallel import SHARED, SharedSequence
from forerun.step.float8 import find_scales
from forerun.step.parallel import by_mesh, holding_gradients, mean_over_ranks, of_all_ranks, unwrapped, whole
from forerun.step.pipeline import Pipeline
from forerun.step.precision import PrecisionPolicy, policy_of
from forerun.step.tensor_parallel import split_loss
from forerun.step.workload import BLANK, STEP_MEAN, AveragesStep, Batch, SpansStep, Workload
from forerun.step.zero import DeepSpeedOptimizer
from forerun.trace import Phase


class StepObserver:
    """Told about the phases of a step; does nothing."""

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        """Around one phase."""
        yield

    def accepts(self, loss: Tensor, norm: Tensor | None) -> bool:
        """Whether a step of such a mean loss and gradient norm may update the weights; asking waits for the device.

        The norm is None where loss scaling skips what overflows.
        """
        return True


@dataclass(frozen=True)
class StepResult:
    """Outcome of one optimizer step; tensors are detached and still on the device, so reading them waits for it."""

    loss: Tensor
    """Mean loss over everything the step counted."""
    gradient_norm: Tensor | None
    details: dict[str, Tensor] = field(default_factory=dict)
    """Details of the workload's loss, means over the micro-batches."""
    is_skipped: bool = False
    """The observer did not accept it: gradients were dropped and the weights are as before."""


class TrainingStep:
    """Model, optimizer and loss bound together; `run` makes one optimizer step."""

    def __init__(
        self, settings: Settings, workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, device: str
    ):
        self.settings = settings
        self.workload = workload
        self.model = model
        self.called = model
        """Module that the loss calls: the model, or what wraps it on one of several ranks."""
        self.optimizer = optimizer
        # now, as FSDP2 shows gathered weights under these names after a forward pass without a backward one
        self.parameter_names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.device_type = device
        self.policy: PrecisionPolicy = policy_of(settings)
        self.scaler = torch.amp.GradScaler(device) if self.policy.scales_loss else None
        self.pipeline: Pipeline | None = None
        """What runs the stages of this rank; None where it has the whole model."""
        self.capability: tuple[int, int] | None = None
        """Compute capability of the GPU, virtual or not; None elsewhere."""
        self.documents: DocumentKernel | None = None
        """How packed documents are kept apart; None where nothing is packed."""

    def run(self, micro_batches: Sequence[Batch], observer: StepObserver, counted: float | None = None) -> StepResult:
        """One optimizer step over `micro_batches`; `counted` is what their losses are divided by, if known before."""
        if not micro_batches:
            raise ValueError("a step needs at least one micro-batch")
        counted = self.counted(micro_batches) if counted is None else counted
        count = mean_over_ranks(counted, self.settings, self.device_type)
        if self.settings.parallel.context > 1:
            count = count / self.settings.parallel.context  # each of them counted whole rows, and has a part of them
        several = not self.settings.parallel.is_alone
        with self.around_passes():
            if self.pipeline is not None:
                total, details = self.pipeline.run(self.workload, micro_batches, count, observer), {}
            elif (len(micro_batches) > 1 or several) and isinstance(self.workload, SpansStep):
                total, details = self._spanning(self.workload, micro_batches, count, observer)
            else:
                if isinstance(self.workload, AveragesStep):
                    micro_batches = self._with_mean(self.workload, micro_batches, count, observer)
                total, details = self._summed(micro_batches, count, observer)
        if several:
            total = mean_over_ranks(total, self.settings, self.device_type)
        with observer.phase(Phase.OPTIMIZER):
            if self.scaler is None:
                norm = self._gradient_norm()
                is_good = observer.accepts(total, norm)
            else:  # it skips what overflows itself, and must update after gradients are unscaled
                is_good = observer.accepts(total, None)
                norm = self._gradient_norm() if is_good else None
            if is_good:
                self._update()
            self.optimizer.zero_grad(set_to_none=True)
        return StepResult(total, norm, details, is_skipped=not is_good)

    def counted(self, micro_batches: Sequence[Batch]) -> float:
        """Count of tokens or samples that the losses of an optimizer step are divided by."""
        return sum((self.workload.count(batch) for batch in micro_batches if BLANK not in batch), start=0.0)

    def _summed(
        self, micro_batches: Sequence[Batch], count: float | Tensor, observer: StepObserver
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and backward of each micro-batch in turn; mean loss and details."""
        total: Tensor | None = None
        details: dict[str, Tensor] = {}
        for index, batch in enumerate(micro_batches):
            with holding_gradients(self.called, self.settings, is_last=index == len(micro_batches) - 1):
                loss, parts = self.micro_step(batch, count, index, observer)
            self._end_micro_step(index, observer, is_last=index == len(micro_batches) - 1)
            total = loss if total is None else total + loss
            for name, part in parts.items():
                share = part / len(micro_batches)
                details[name] = details[name] + share if name in details else share
        assert total is not None
        return total, details

    def _with_mean(
        self, workload: AveragesStep, micro_batches: Sequence[Batch], count: float | Tensor, observer: StepObserver
    ) -> list[Batch]:
        """The micro-batches with the mean over the step of all ranks, so that any split of it has the same loss."""
        total: Tensor | None = None
        for index, batch in enumerate(micro_batches):
            with observer.phase(Phase.FORWARD, index), self.policy.autocast(self.device_type), torch.no_grad():
                part = workload.summed(self.called, without_blank(batch))
                part = part * 0 if BLANK in batch else part
                total = part if total is None else total + part
        assert total is not None
        mean = mean_over_ranks(total, self.settings, self.device_type) / count
        return [{**batch, STEP_MEAN: mean} for batch in micro_batches]

    def _end_micro_step(self, index: int, observer: StepObserver, *, is_last: bool) -> None:
        if isinstance(self.optimizer, DeepSpeedOptimizer):  # stage 1 sends once a step, beside the last micro-step
            with observer.phase(Phase.BACKWARD, -1 if self.optimizer.stage == 1 else index):
                self.optimizer.end_micro_step(is_last=is_last)

    def _spanning(
        self, workload: SpansStep, micro_batches: Sequence[Batch], count: float | Tensor, observer: StepObserver
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs of all micro-batches, one loss over them, then each micro-batch again with its gradient.

        Of several ranks each computes the loss over all, and carries back the gradient of its own outputs.
        """
        states: list[list[Tensor]] = []
        leaves: list[tuple[Tensor, ...]] = []
        for index, batch in enumerate(micro_batches):
            with observer.phase(Phase.FORWARD, index), self.policy.autocast(self.device_type), torch.no_grad():
                states.append(generator_states(self.device_type))
                outputs = workload.outputs(self.called, without_blank(batch))
            leaves.append(tuple(value.detach().requires_grad_() for value in outputs))
        with observer.phase(Phase.FORWARD, 0), self.policy.autocast(self.device_type):
            parts, batches = self._with_peers(leaves, micro_batches)
            result = workload.loss_of(tuple(torch.cat(part) for part in zip(*parts, strict=True)), batches)
            loss = result.sum / count
        with observer.phase(Phase.BACKWARD, 0):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        after = generator_states(self.device_type)
        for index, (batch, state, leaf) in enumerate(zip(micro_batches, states, leaves, strict=True)):
            restore_generators(self.device_type, state)
            with holding_gradients(self.called, self.settings, is_last=index == len(micro_batches) - 1):
                with observer.phase(Phase.FORWARD, index), self.policy.autocast(self.device_type), self._offloading():
                    again = workload.outputs(self.called, without_blank(batch))
                with observer.phase(Phase.BACKWARD, index):
                    slopes = [torch.zeros_like(v) if v.grad is None else v.grad for v in leaf]
                    torch.autograd.backward(again, slopes)  # type: ignore[arg-type]
            self._end_micro_step(index, observer, is_last=index == len(micro_batches) - 1)
        restore_generators(self.device_type, after)
        return loss.detach() / self.settings.parallel.world_size, result.details

    def _with_peers(
        self, leaves: Sequence[tuple[Tensor, ...]], micro_batches: Sequence[Batch]
    ) -> tuple[list[tuple[Tensor, ...]], list[Batch]]:
        """Outputs and batches of the whole step, blanks left out; those of other ranks carry no gradient."""
        own = [(leaf, batch) for leaf, batch in zip(leaves, micro_batches, strict=True) if BLANK not in batch]
        if self.settings.parallel.is_alone or any(is_fake(value) for leaf, _ in own for value in leaf):
            return [leaf for leaf, _ in own], [batch for _, batch in own]  # the virtual GPU has no peers to ask
        on_progress = [
            (tuple(value.detach().cpu() for value in leaf), {key: value.cpu() for key, value in batch.items()})
            for leaf, batch in own
        ]
        everyone = of_all_ranks(on_progress)
        here = dist.get_rank() if len(everyone) > 1 else 0
        parts, batches = [], []
        for number, theirs in enumerate(everyone):
            if number == here:
                parts += [leaf for leaf, _ in own]
                batches += [batch for _, batch in own]
                continue
            for leaf, batch in theirs:
                parts.append(tuple(value.to(self.device_type) for value in leaf))
                batches.append({key: value.to(self.device_type) for key, value in batch.items()})
        return parts, batches

    def micro_step(
        self, batch: Batch, count: float | Tensor, index: int, observer: StepObserver
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Forward and backward of one micro-batch, its loss divided by `count`; returns loss and details, detached."""
        with observer.phase(Phase.FORWARD, index), self.policy.autocast(self.device_type), self._offloading():
            result = self.workload.loss(self.called, without_blank(batch))
            loss = result.sum / (torch.inf if BLANK in batch else count)
        with observer.phase(Phase.BACKWARD, index):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach(), result.details

    @contextlib.contextmanager
    def around_passes(self) -> Iterator[None]:
        """Around forward and backward passes: which kernels may attend, and what ranks share."""
        with kernels_of(self.settings), split_loss(self.settings), self._sharing_sequences():
            yield

    def _sharing_sequences(self) -> contextlib.AbstractContextManager[None]:
        """Around passes whose sequences are split over ranks."""
        bare: nn.Module = unwrapped(self.model)
        shared: SharedSequence | None = getattr(bare, SHARED, None)
        return contextlib.nullcontext() if shared is None else shared.during_step(bare, self.capability)

    def _offloading(self) -> contextlib.AbstractContextManager[object]:
        """Around a forward pass whose saved tensors may live in pinned host memory."""
        return save_on_cpu(pin_memory=True) if self.settings.activation_offload else contextlib.nullcontext()

    def _gradient_norm(self) -> Tensor | None:
        """Norm of the whole gradient, clipped where the settings say so; None where only loss scaling guards it."""
        if self.settings.optimizer.in_backward or self.settings.parallel.deepspeed_stage:
            return None
        limit = self.settings.optimizer.max_gradient_norm
        if self.scaler is not None:
            if limit is None:
                return None
            self.scaler.unscale_(self.optimizer)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        groups = by_mesh(parameters)  # experts lie over other ranks than the rest
        if self.pipeline is not None or len(groups) > 1:
            norms = [whole(nn.utils.get_total_norm(gradients_of(group), foreach=True)) for group in groups]
            norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
            if self.pipeline is not None:
                norm = self.pipeline.norm_of_all(norm)
            for group in groups if limit is not None else ():
                nn.utils.clip_grads_with_norm_(group, limit or 0.0, norm, foreach=True)
            return norm
        if limit is not None:
            return whole(nn.utils.clip_grad_norm_(parameters, limit, foreach=True))
        return whole(nn.utils.get_total_norm(gradients_of(parameters), foreach=True))

    def _update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        find_scales(self.model, self.settings)

    def freeze_encoder(self, frozen: bool) -> None:
        """Stop or resume gradients into the workload's encoder; what an adapter froze for good stays frozen.

        Raises:
            InvalidSettings: nothing would be left to train.
        """
        encoder = self.workload.encoder(self.model)
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        inside = {id(p) for p in encoder.parameters()} if encoder is not None else set[int]()
        if frozen and (encoder is None or all(id(p) in inside for p in trained)):
            raise InvalidSettings(
                f"schedule.frozen_encoder_epochs: needs a head that is trained beside an encoder; found none of the "
                f"{len(trained)} trained tensors of {self.workload.name} in one. Set it to 0, or name a head in "
                f"adapter.modules_to_save."
            )
        for parameter in trained:
            if id(parameter) in inside:
                parameter.requires_grad_(not frozen)


def without_blank(batch: Batch) -> Batch:
    """A batch as the workload knows it."""
    return {key: value for key, value in batch.items() if key != BLANK} if BLANK in batch else batch


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def generator_states(device_type: str) -> list[Tensor]:
    """States of the random generators that a step on that device draws from; of a virtual device, none."""
    states = [torch.get_rng_state()] if device_type in ("cpu", "cuda") else []
    return [*states, torch.cuda.get_rng_state()] if device_type == "cuda" else states


def restore_generators(device_type: str, states: list[Tensor]) -> None:
    """Set them back."""
    if states:
        torch.set_rng_state(states[0])
    if device_type == "cuda":
        torch.cuda.set_rng_state(states[1])
