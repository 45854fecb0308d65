"""Weights of which every rank keeps a part, gathered and released module by module: DeepSpeed's ZeRO-3.

A weight is gathered when a module that has it begins its forward or its backward pass, on a stream of its own, and
released when the module has ended, unless it is used again soon (`reuse`). From the second pass on the order of modules
is known, and weights of the next ones are gathered before they are asked for (`prefetch`). Small weights (`kept`) stay
whole from one update to the next. Several weights that are gathered together go through one buffer, and are then copied
into places of their own.

Source: DeepSpeed 0.19.8, `runtime/zero/partitioned_param_coordinator.py`, `partition_parameters.py` and
`parameter_offload.py`; the sizes are those of `config.py`, and for `auto` those that the Trainer fills in
(transformers 5.24, `integrations/deepspeed.py`, `trainer_config_finalize`).

Not covered: weights that a module reads of another one (refused), groups of ranks with copies (hpZ), quantized gathers,
NVMe.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from forerun.errors import NotSupported

NEVER = -1


@dataclass(frozen=True)
class ZeroSizes:
    """Elements that DeepSpeed's configuration counts in, by its names without `stage3_` and `_size`."""

    reduce_bucket: int = 500_000_000
    prefetch_bucket: int = 50_000_000
    persistence: int = 100_000
    live: int = 10**9
    reuse: int = 10**9
    sub_group: int = 10**9

    @classmethod
    def automatic(cls, hidden_size: int) -> "ZeroSizes":
        """What the Trainer fills in where its configuration says `auto`."""
        square = hidden_size * hidden_size
        return cls(reduce_bucket=square, prefetch_bucket=int(0.9 * square), persistence=10 * hidden_size)


def world() -> dist.ProcessGroup:
    """The group of all ranks."""
    group = dist.group.WORLD
    assert group is not None
    return group


@dataclass(eq=False)
class Weight:
    """One parameter: `whole` has all its elements, padded to a multiple of the ranks, while it is gathered."""

    parameter: nn.Parameter
    whole: Tensor
    size: int
    """Elements of one rank's part."""
    is_kept: bool
    part: Tensor = field(default_factory=lambda: torch.empty(0))
    is_here: bool = False
    was_here: bool = False
    coming: "Gather | None" = None
    active: set[int] = field(default_factory=set)
    """Modules that are at work with it."""

    @property
    def elements(self) -> int:
        """Of the parameter."""
        return self.parameter.numel()

    def fill(self) -> None:
        """Give it the memory of its elements."""
        self.whole.untyped_storage().resize_(self.whole.numel() * self.whole.element_size())

    def empty(self) -> None:
        """Take its memory away; who saved it for a backward pass finds it filled again then."""
        self.whole.untyped_storage().resize_(0)
        self.is_here = False


@dataclass(eq=False)
class Gather:
    """One exchange under way: of one weight into its own memory, of several into a buffer."""

    work: Any
    weights: list[Weight]
    buffer: Tensor | None


class SplitWeights:
    """The weights of `model` on one of several ranks.

    Args:
        model: its parameters are on the device they are trained on.
        ranks: over which each is split.
        sizes: what decides when they are gathered and released.
        together: parameters whose parts lie in one buffer (`flats`), list by list; all others' are alone.
        on_host: parts are in host memory.
    """

    def __init__(
        self, model: nn.Module, ranks: int, sizes: ZeroSizes, together: Sequence[Sequence[Tensor]] = (), *,
        on_host: bool = False,
    ):  # fmt: skip
        self.ranks, self.sizes, self.on_host = ranks, sizes, on_host
        parameters = list(dict.fromkeys(model.parameters()))
        self._device = torch.get_device_module(parameters[0].device)
        self._stream = self._device.Stream()
        self._of = {id(p): self._split(p) for p in parameters}
        self._number = {each: n for n, each in enumerate(self._of.values())}
        self.flats = [self._place_parts([self.of(p) for p in each]) for each in together]
        inside = {id(p) for each in together for p in each}
        for key, weight in self._of.items():
            if key not in inside:
                self._place_parts([weight])
        self._of_module: dict[int, list[Weight]] = {}
        self._order: list[int] | None = None
        self._recorded: list[int] = []
        self._begin_pass()
        self._watch(model)
        self.gather_kept()

    @property
    def weights(self) -> list[Weight]:
        """All, in the order of the model."""
        return list(self._of.values())

    def of(self, parameter: Tensor) -> Weight:
        """The weight of a parameter."""
        return self._of[id(parameter)]

    def number(self, weight: Weight) -> int:
        """Its place in the order of the model."""
        return self._number[weight]

    def _split(self, parameter: nn.Parameter) -> Weight:
        size = -(-parameter.numel() // self.ranks)
        whole = torch.empty(size * self.ranks, dtype=parameter.dtype, device=parameter.device)
        parameter.data = whole.narrow(0, 0, parameter.numel()).view(parameter.shape)
        weight = Weight(parameter, whole, size, parameter.numel() <= self.sizes.persistence)
        weight.empty()
        return weight

    def _place_parts(self, weights: list[Weight]) -> Tensor | None:
        first = weights[0].whole
        if self.on_host:
            return None
        flat = torch.empty(sum(each.size for each in weights), dtype=first.dtype, device=first.device)
        offset = 0
        for each in weights:
            each.part = flat.narrow(0, offset, each.size)
            offset += each.size
        return flat

    def _watch(self, model: nn.Module) -> None:
        model.register_forward_pre_hook(lambda *_: self._begin_pass())
        for module in model.modules():
            weights = [self._of[id(p)] for p in dict.fromkeys(module.parameters(recurse=False))]
            if not weights:
                continue
            self._of_module[id(module)] = weights
            module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            module.register_forward_hook(self._after_forward)
        for each in self._of.values():
            if each.parameter.requires_grad:
                each.parameter.register_post_accumulate_grad_hook(self._after_gradient)

    def _begin_pass(self) -> None:
        if self._order is None and self._recorded:
            self._order = self._recorded
        self._step, self._here = 0, 0
        self._fetched: dict[Weight, int] = defaultdict(lambda: NEVER)
        self._queue: deque[tuple[Weight, int]] = deque()
        for step, module in enumerate(self._order or ()):
            self._queue.extend((each, step) for each in self._of_module[module])

    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.fetch(id(module))
        if any(not each.parameter.requires_grad for each in self._of_module[id(module)]):
            for each in tree_leaves((inputs, named)):  # frozen weights have no gradient that says when it is over
                if isinstance(each, Tensor) and each.requires_grad:
                    each.register_hook(lambda _: self.release(id(module)))

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        for each in tree_leaves(outputs):
            if isinstance(each, Tensor) and each.requires_grad:
                each.register_hook(lambda _: self.fetch(id(module)))
        self.release(id(module))

    def _after_gradient(self, parameter: Tensor) -> None:
        weight = self._of[id(parameter)]
        if not weight.was_here:  # its memory would be missing in silence
            raise NotSupported(
                f"parallel.zero: ZeRO stage 3 gathers the weights of a module that is called; found one of shape "
                f"{tuple(parameter.shape)} that another module reads. Set parallel.kind to fsdp, or parallel.zero to 2."
            )
        weight.active.clear()
        self._release([weight])

    @torch.no_grad()
    def fetch(self, module: int) -> None:
        """Gather what a module needs, wait for it, and begin to gather what the next ones need."""
        if self._order is None:
            self._recorded.append(module)
        of_module = self._of_module[module]
        self._gather([each for each in of_module if not each.is_here and each.coming is None])
        for each in of_module:
            each.active.add(module)
            if each.coming is not None:
                self._wait(each.coming)
        if self._order is not None:
            self._prefetch(of_module)
        self._step += 1

    def _prefetch(self, of_module: list[Weight]) -> None:
        new = {each for each in of_module if self._fetched[each] < self._step}
        while self._queue and new:
            each, step = self._queue.popleft()
            self._fetched[each] = step
            new.discard(each)
        room = min(self.sizes.live - self._here, self.sizes.prefetch_bucket)
        ahead: dict[Weight, None] = {}
        elements = 0
        while self._queue and elements < room:
            each, step = self._queue.popleft()
            self._fetched[each] = max(self._fetched[each], step)
            if not each.is_here and each.coming is None and each not in ahead:
                ahead[each] = None
                elements += each.elements
        self._gather(list(ahead))

    @torch.no_grad()
    def release(self, module: int) -> None:
        """Release what a module had, but for what is used again within `reuse` elements."""
        weights = self._of_module[module]
        for each in weights:
            each.active.discard(module)
        self._release(weights)

    def _release(self, weights: Iterable[Weight]) -> None:
        going = {each for each in weights if each.is_here and not each.is_kept and not each.active}
        if self._order is not None:
            going = {each for each in going if self._fetched[each] <= self._step}
            distance = 0
            for module in islice(self._order, self._step, None):
                if not going or distance >= self.sizes.reuse:
                    break
                going.difference_update(self._of_module[module])
                distance += sum(each.elements for each in self._of_module[module])
        for each in going:
            self._here -= each.elements
            each.empty()

    def release_all(self) -> None:
        """Before an update: parts are what is updated."""
        for each in self._of.values():
            if each.coming is not None:
                self._wait(each.coming)
            each.active.clear()
            if each.is_here:
                each.empty()

    @torch.no_grad()
    def gather_kept(self) -> None:
        """After an update: small weights are whole until the next."""
        small = [each for each in self._of.values() if each.is_kept]
        for each in small:
            self._gather([each])
        for each in small:
            if each.coming is not None:
                self._wait(each.coming)

    def _gather(self, weights: list[Weight]) -> None:
        if not weights:
            return
        weights = sorted(weights, key=self._number.__getitem__)
        for dtype in dict.fromkeys(each.whole.dtype for each in weights):
            self._begin([each for each in weights if each.whole.dtype == dtype])
        self._here += sum(each.elements for each in weights)

    def _begin(self, weights: list[Weight]) -> None:
        work, buffer = None, None
        with self._device.stream(self._stream):
            if self.ranks == 1:  # nobody else has anything of it
                for each in weights:
                    each.fill()
                    torch.ops.forerun.copy_from_host_(each.whole)
            else:
                work, buffer = self._exchange(weights)
        gather = Gather(work, weights, buffer)
        for each in weights:
            each.coming = gather

    def _exchange(self, weights: list[Weight]) -> tuple[Any, Tensor | None]:
        """Begin to gather: the work, and the buffer of several weights."""
        first, size = weights[0], sum(each.size for each in weights)
        buffer = first.whole.new_empty(size * self.ranks) if len(weights) > 1 else None
        if buffer is None:
            first.fill()
        target = first.whole if buffer is None else buffer
        part = first.part if buffer is None else buffer.narrow(0, 0, size)
        if self.on_host:
            part = first.whole.new_empty(size) if buffer is None else part
            torch.ops.forerun.copy_from_host_(part)
        elif buffer is not None:
            torch.cat([each.part for each in weights], out=part)
        return world()._allgather_base(target, part), buffer

    def _wait(self, gather: Gather) -> None:
        if gather.work is not None:
            gather.work.wait()
        offset = 0
        with self._device.stream(self._stream):
            for each in gather.weights:
                if gather.buffer is not None:
                    each.fill()
                    each.whole.copy_(gather.buffer.narrow(0, offset, each.whole.numel()))
                    offset += each.whole.numel()
                each.coming, each.is_here, each.was_here = None, True, True
        gather.buffer = None
