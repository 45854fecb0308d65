"""DeepSpeed's ZeRO, stages 1 and 2, as one rank of it on the virtual GPU: what it keeps, copies and sends.

Stage 3 is in `zero_three`.

The weights of a group are views of one 16-bit buffer. Each rank keeps its part in fp32 with Adam's moments. Gradients
are copied into a bucket of `reduce_bucket_size` elements; a full bucket is all-reduced, and the rank keeps what belongs
to its part. Stage 1 does so after the last micro-step, so that all gradients exist until then; stage 2 as they come.
The update turns the part's gradients into fp32, updates, copies back to 16 bits and gathers all parts. With the
optimizer offloaded its state is on the host: gradients of the part go there in fp32, and 16-bit weights come back.

Source: DeepSpeed 0.19.8, `runtime/zero/stage_1_and_2.py` and `config.py`, with its defaults: contiguous gradients,
no overlap, gradients accumulated in the model's dtype; buckets of its defaults or of the Trainer's `auto`.

Not covered: overlapped communication of stages 1 and 2, MoE, a step that runs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forerun.errors import NotSupported
from forerun.settings.schema import Settings
from forerun.step.optimizer_in_backward import Make
from forerun.step.parallel import unwrapped
from forerun.step.split_weights import ZeroSizes
from forerun.trace import ADAM_PASSES, Category

ALIGNMENT = 2
"""`nccl_start_alignment_factor`: elements, for each rank."""
MASTER_BYTES = 4


def require_zero(settings: Settings) -> None:
    """Refuse what is not modelled of ZeRO.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    parallel = settings.parallel
    if not parallel.deepspeed_stage:
        return
    obstacles = [
        (parallel.zero == 3 and parallel.world_size == 1 and parallel.offload != "parameters", "stage 3 splits nothing "
         "over one device; found parallel.world_size=1. Set parallel.offload to parameters"),
        (parallel.zero == 3 and settings.quantization != "none", "stage 3 gathers weights of 16 bits; found "
         f"quantization={settings.quantization!r}. Set it to none"),
        (parallel.kind != "ddp", f"is data parallel; found parallel.kind={parallel.kind!r}. Set it to ddp"),
        (not settings.precision.endswith("-mixed"), "keeps 16-bit weights beside fp32 ones; found precision="
         f"{settings.precision!r}. Set it to bf16-mixed or fp16-mixed"),
        (settings.optimizer.name not in ("adamw", "sgd"), "updates parts of flat buffers, element by element; found "
         f"optimizer.name={settings.optimizer.name!r}. Set it to adamw or sgd"),
        (settings.compile != "none", f"is not modelled around compiled graphs; found compile={settings.compile!r}"),
        (settings.schedule.frozen_encoder_epochs > 0, "has fixed parts; found schedule.frozen_encoder_epochs above 0"),
    ]  # fmt: skip
    for applies, text in obstacles:
        if applies:
            raise NotSupported(f"parallel.zero: ZeRO {text}. Or set parallel.zero to 0.")


def sizes_of(settings: Settings, model: nn.Module) -> ZeroSizes:
    """ZeroSizes of buckets: DeepSpeed's own, or the Trainer's for a model of this width."""
    if settings.parallel.zero_buckets == "deepspeed":
        return ZeroSizes()
    config: Any = getattr(unwrapped(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    width = getattr(text, "hidden_size", None) or max(getattr(text, "hidden_sizes", None) or [0])
    if not width:
        raise NotSupported(
            f"parallel.zero_buckets: the Trainer takes sizes from a model's hidden_size; {settings.model.name} has "
            "none. Set it to deepspeed."
        )
    return ZeroSizes.automatic(width)


def step_alone(rule: torch.optim.Optimizer, master: Tensor, group: dict[str, Any]) -> None:
    """Update one fp32 tensor of `rule` with the present values of its parameter `group`."""
    rules = next(each for each in rule.param_groups if each["params"][0] is master)
    rules.update({name: value for name, value in group.items() if name != "params"})
    everything, rule.param_groups = rule.param_groups, [rules]
    rule.step()
    rule.param_groups = everything


class DeepSpeedOptimizer(torch.optim.Optimizer):
    """An optimizer that reduces gradients itself and keeps fp32 weights."""

    stage: int

    def tensors_by_category(self) -> dict[Category, list[Tensor]]:
        """What it keeps on the device beside parameters and the state of its rule, by what it is."""
        raise NotImplementedError

    def end_micro_step(self, *, is_last: bool) -> None:
        """After a backward pass."""
        raise NotImplementedError


class _Part:
    """One group's flat weights and this rank's part of them."""

    def __init__(self, group: dict[str, Any], ranks: int, *, is_on_host: bool):
        self.parameters: list[Tensor] = group["params"]
        elements = sum(p.numel() for p in self.parameters)
        aligned = -(-elements // (ALIGNMENT * ranks)) * ALIGNMENT * ranks
        first = self.parameters[0]
        self.flat = torch.empty(aligned, dtype=first.dtype, device=first.device)
        self.size = aligned // ranks
        offset = 0
        self.owned: set[int] = set()
        """Parameters of which this rank, the first, has a part."""
        for parameter in self.parameters:
            parameter.data = self.flat.narrow(0, offset, parameter.numel()).view(parameter.shape)
            if offset < self.size:
                self.owned.add(id(parameter))
            offset += parameter.numel()
        self.weights = self.flat.narrow(0, 0, self.size)
        self.master = None if is_on_host else torch.empty(self.size, dtype=torch.float32, device=first.device)
        self.gradients: Tensor | None = None


class ZeroOptimizer(DeepSpeedOptimizer):
    """The optimizer of one rank; `make` makes the rule that updates its parts."""

    def __init__(self, groups: list[dict[str, Any]], make: Make, settings: Settings, model: nn.Module):
        super().__init__(groups, {})
        self.bucket_elements = sizes_of(settings, model).reduce_bucket
        parallel = settings.parallel
        self.stage, self.is_on_host = parallel.deepspeed_stage, parallel.offload == "optimizer"
        self.limit = settings.optimizer.max_gradient_norm
        self.parts = [_Part(group, parallel.world_size, is_on_host=self.is_on_host) for group in groups]
        self._part_of = {id(p): part for part in self.parts for p in part.parameters}
        self._bucket: Tensor | None = None
        self._filled = 0
        self._waiting: list[Tensor] = []
        self._rule: torch.optim.Optimizer | None = None
        if not self.is_on_host:
            masters = [{**g, "params": [part.master]} for g, part in zip(groups, self.parts, strict=True)]
            self._rule = make(masters)
            self._rule.state = self.state
        if self.stage == 2:
            for part in self.parts:
                for parameter in part.parameters:
                    parameter.register_post_accumulate_grad_hook(self._collect)

    def tensors_by_category(self) -> dict[Category, list[Tensor]]:
        """The fp32 weights that this rank updates."""
        return {Category.OPTIMIZER_STATE: [part.master for part in self.parts if part.master is not None]}

    def end_micro_step(self, *, is_last: bool) -> None:
        """After a backward pass: send what waits; stage 1 sends everything after the last micro-step only."""
        if self.stage == 1:
            if not is_last:
                return
            for part in self.parts:
                for parameter in part.parameters:
                    if parameter.grad is not None:
                        self._collect(parameter)
        self._reduce()
        self._bucket = None

    @torch.no_grad()
    def _collect(self, parameter: Tensor) -> None:
        """Copy a gradient into the bucket, which is sent before it would overflow."""
        gradient = parameter.grad
        assert gradient is not None
        if self._filled + gradient.numel() > self.bucket_elements:
            self._reduce()
        if gradient.numel() <= self.bucket_elements:
            if self._bucket is None:
                self._bucket = torch.empty(self.bucket_elements, dtype=gradient.dtype, device=gradient.device)
            place = self._bucket.narrow(0, self._filled, gradient.numel())
            place.copy_(gradient.view(-1))
            parameter.grad = place.view(gradient.shape)
            self._filled += gradient.numel()
        self._waiting.append(parameter)

    @torch.no_grad()
    def _reduce(self) -> None:
        """All-reduce the bucket, or one gradient that is larger than it, and keep what belongs to this rank."""
        if not self._waiting:
            return
        if self._filled and self._bucket is not None:
            dist.all_reduce(self._bucket.narrow(0, 0, self._filled))
        for parameter in self._waiting:
            gradient = parameter.grad
            assert gradient is not None
            if gradient.numel() > self.bucket_elements:
                dist.all_reduce(gradient)
            if id(parameter) in self._part_of[id(parameter)].owned:
                self._keep(parameter, gradient)
            parameter.grad = None
        self._waiting, self._filled = [], 0

    def _keep(self, parameter: Tensor, gradient: Tensor) -> None:
        part = self._part_of[id(parameter)]
        count = min(gradient.numel(), part.size)
        if self.is_on_host:  # stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu: fp32 first, then out
            torch.ops.forerun.copy_to_host(gradient.view(-1).narrow(0, 0, count).float())
            return
        if part.gradients is None:
            part.gradients = torch.empty(part.size, dtype=gradient.dtype, device=gradient.device)
        part.gradients.narrow(0, 0, count).add_(gradient.view(-1).narrow(0, 0, count))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update this rank's parts and gather all weights."""
        for part, group in zip(self.parts, self.param_groups, strict=True):
            if part.master is None:
                torch.ops.forerun.update_on_host_(part.weights, ADAM_PASSES * MASTER_BYTES)
            else:
                self._update(part, group)
        for part in self.parts:
            _gather(part.flat, part.weights)

    def _update(self, part: _Part, group: dict[str, Any]) -> None:
        assert part.master is not None
        assert self._rule is not None
        gradients = part.gradients
        if gradients is None:
            gradients = torch.empty(part.size, dtype=part.weights.dtype, device=part.weights.device)
        norm = torch.linalg.vector_norm(gradients, dtype=torch.float32)
        dist.all_reduce(norm)
        part.master.grad = gradients.clone().float()  # flattened in 16 bits, then widened
        del gradients
        part.gradients = None
        if self.limit is not None:
            part.master.grad.mul_(norm)
        step_alone(self._rule, part.master, group)
        part.master.grad = None
        part.weights.copy_(part.master)


def _gather(whole: Tensor, part: Tensor) -> None:
    """Fill `whole` with the parts of all ranks, and wait for it: the next forward pass reads it."""
    group = dist.group.WORLD
    assert group is not None
    torch.ops._c10d_functional.all_gather_into_tensor_out(part, group.size(), group.group_name, out=whole)
