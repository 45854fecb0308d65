"""DeepSpeed's ZeRO-3 as one rank of it on the virtual GPU: `split_weights` gathers, this reduces and updates.

Gradients are copied into one bucket that lives as long as the optimizer; a full bucket is put in the order of ranks,
which takes a copy of it, and reduce-scattered beside the backward pass, and the rank adds what it gets to the 16-bit
sums of its parts. The update works through groups of parts (`sub_group`), each flattened, widened, scaled, updated in
fp32 and copied back. With the optimizer offloaded sums, fp32 weights and moments are on the host; parts of the
gradients go there as they come, and once more in fp32 after the last micro-step.

Source: DeepSpeed 0.19.8, `runtime/zero/stage3.py`, `runtime/comm/coalesced_collectives.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forerun.settings.schema import Settings
from forerun.step.optimizer_in_backward import Make
from forerun.step.split_weights import SplitWeights, Weight, ZeroSizes, world
from forerun.step.zero import MASTER_BYTES, DeepSpeedOptimizer, sizes_of, step_alone
from forerun.trace import ADAM_PASSES, Category


@dataclass(eq=False)
class _SubGroup:
    """Parts that are updated together, in one dtype; `master` and `sums` are None where they are on the host."""

    group: dict[str, Any]
    weights: list[Weight]
    flat: Tensor | None
    """The 16-bit parts."""
    master: Tensor | None
    sums: Tensor | None


class ZeroThreeOptimizer(DeepSpeedOptimizer):
    """The optimizer of one rank, and the weights of `model`, which it splits; `make` makes the rule of its parts."""

    stage = 3

    def __init__(self, groups: list[dict[str, Any]], make: Make, settings: Settings, model: nn.Module):
        super().__init__(groups, {})
        parallel = settings.parallel
        self.ranks, self.is_on_host = parallel.world_size, parallel.offload != "none"
        self.limit = settings.optimizer.max_gradient_norm
        self.sizes: ZeroSizes = sizes_of(settings, model)
        together = [(group, each) for group in groups for each in self._together(group["params"])]
        on_host = parallel.offload == "parameters"
        self.weights = SplitWeights(model, self.ranks, self.sizes, [each for _, each in together], on_host=on_host)
        self.parts = [
            self._sub_group(group, [self.weights.of(p) for p in each], flat)
            for (group, each), flat in zip(together, self.weights.flats, strict=True)
        ]
        self._sums = {id(each): place for part in self.parts for each, place in _places(part)}
        self._micro_step = 0
        self._waiting: list[Weight] = []
        self._filled = 0
        first = self.parts[0].weights[0].whole
        self._device = torch.get_device_module(first.device)
        self._stream = self._device.Stream()
        self._bucket = torch.empty(self.sizes.reduce_bucket, dtype=first.dtype, device=first.device)
        self._rule: torch.optim.Optimizer | None = None
        if not self.is_on_host:
            self._rule = make([{**part.group, "params": [part.master]} for part in self.parts])
            self._rule.state = self.state
        for part in self.parts:
            for each in part.weights:
                each.parameter.register_post_accumulate_grad_hook(self._collect)

    def _together(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        """Parameters of one group in lists whose parts have at most `sub_group` elements."""
        lists: list[list[Tensor]] = [[]]
        size = 0
        for parameter in parameters:
            more = -(-parameter.numel() // self.ranks)
            if lists[-1] and size + more > self.sizes.sub_group:
                lists.append([])
                size = 0
            lists[-1].append(parameter)
            size += more
        return lists

    def _sub_group(self, group: dict[str, Any], weights: list[Weight], flat: Tensor | None) -> _SubGroup:
        if self.is_on_host:
            return _SubGroup(group, weights, flat, None, None)
        assert flat is not None
        master = torch.empty(flat.shape, dtype=torch.float32, device=flat.device)
        return _SubGroup(group, weights, flat, master, torch.empty_like(flat))

    def tensors_by_category(self) -> dict[Category, list[Tensor]]:
        """This rank's parts: of weights in fp32 and in 16 bits, and of the sums of gradients."""
        return {
            Category.OPTIMIZER_STATE: [part.master for part in self.parts if part.master is not None],
            Category.PARAMETER: [each.part for each in self.weights.weights if each.part.numel()],
            Category.GRADIENT: [part.sums for part in self.parts if part.sums is not None],
        }

    def end_micro_step(self, *, is_last: bool) -> None:
        """After a backward pass: send what waits; after the last one sums go to a host that updates."""
        self._reduce()
        self._micro_step += 1
        if is_last and self.is_on_host:
            for part in self.parts:
                for each in part.weights:
                    torch.ops.forerun.copy_to_host(each.whole.new_empty(each.size, dtype=torch.float32))

    @torch.no_grad()
    def _collect(self, parameter: Tensor) -> None:
        """Copy a gradient into the bucket, which is sent before it would overflow."""
        gradient, weight = parameter.grad, self.weights.of(parameter)
        assert gradient is not None
        if self._filled and self._filled + gradient.numel() > self.sizes.reduce_bucket:
            self._reduce()
        if gradient.numel() <= self.sizes.reduce_bucket:
            with self._device.stream(self._stream):
                place = self._bucket.narrow(0, self._filled, gradient.numel()).view(gradient.shape)
                place.copy_(gradient)
            parameter.grad = place
        self._filled += gradient.numel()
        self._waiting.append(weight)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Reduce-scatter what waits, and add what belongs to this rank to its sums."""
        if not self._waiting:
            return
        weights = sorted(self._waiting, key=self.weights.number)
        gradients = [each.parameter.grad.view(-1) for each in weights if each.parameter.grad is not None]
        with self._device.stream(self._stream):
            total = sum(each.size for each in weights) * self.ranks
            if len(gradients) == 1 and total == gradients[0].numel():
                flat = gradients[0]
            else:
                flat = gradients[0].new_empty(total)
                torch.cat(gradients, out=flat.narrow(0, 0, sum(each.numel() for each in gradients)))
            flat.div_(self.ranks)
            own = flat.narrow(0, 0, total // self.ranks)
            if self.ranks > 1:
                world()._reduce_scatter_base(own, flat, dist.ReduceScatterOptions())
            offset = 0
            for each in weights:
                self._keep(each, own.narrow(0, offset, each.size))
                offset += each.size
                each.parameter.grad = None
        self._waiting, self._filled = [], 0

    def _keep(self, weight: Weight, part: Tensor) -> None:
        sums = self._sums.get(id(weight))
        if sums is None:  # on the host; what was there is added here
            if self._micro_step:
                before = torch.empty_like(part)
                torch.ops.forerun.copy_from_host_(before)
                before.add_(part)
                part = before
            torch.ops.forerun.copy_to_host(part)
        elif self._micro_step:
            sums.add_(part)
        else:
            sums.copy_(part)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update this rank's parts and gather the small weights."""
        self.weights.release_all()
        self._micro_step = 0
        norms = [torch.linalg.vector_norm(sums.float()) for sums in self._sums.values()]
        norm = torch.stack(norms).square_().sum() if norms else torch.zeros((), device=self._bucket.device)
        if self.ranks > 1:
            dist.all_reduce(norm)
        for part in self.parts:
            if part.master is None:
                for each in part.weights:  # what the device has of it is not read
                    torch.ops.forerun.update_on_host_(each.whole.narrow(0, 0, each.size), ADAM_PASSES * MASTER_BYTES)
            else:
                self._update(part, norm)
        self.weights.gather_kept()

    def _update(self, part: _SubGroup, norm: Tensor) -> None:
        assert part.master is not None
        assert part.flat is not None
        assert self._rule is not None
        places = [place for _, place in _places(part)]
        part.master.grad = torch.cat(places).float()
        if self.limit is not None:
            part.master.grad.mul_(norm)
        step_alone(self._rule, part.master, part.group)
        part.master.grad = None
        part.flat.copy_(part.master)


def _places(part: _SubGroup) -> list[tuple[Weight, Tensor]]:
    """Each weight with its place in the sums."""
    places, offset = [], 0
    if part.sums is None:
        return []
    for each in part.weights:
        places.append((each, part.sums.narrow(0, offset, each.size)))
        offset += each.size
    return places
