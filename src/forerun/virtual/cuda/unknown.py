"""What is assumed of the device's values that nobody can know, and where a program asked for them.

Single numbers are 1 (floating) or 0 (integer); checks that reduce truth values pass (`all` is true, `any` is not); a
mask that is counted is true everywhere, unless it is of numbers that went wrong or of right guesses; choices among many
are balanced, so that a router of experts gives each the same number of tokens; results whose size depends on values are
as large as they can be.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import arange, empty, full
from torch._subclasses.fake_tensor import FakeTensor

from forerun.virtual.cuda.convergence import Convergence, ConvergenceLoops
from forerun.virtual.cuda.fused_cells import CELLS
from forerun.virtual.cuda.lines import is_within, program_line
from forerun.virtual.cuda.progress_loops import ProgressLoops
from forerun.virtual.cuda.shadow import CHANCE, MOST_ELEMENTS, set_shadow, shadow_of, tensors_in

aten = torch.ops.aten
RANDOM = {aten.randint, aten.randperm, aten.rand}
"""Operators whose results are drawn from a range: lengths, places and chances that decide what a program does."""
FEW = 16
"""Floating numbers are drawn where they are few: then they decide something."""
DISTINCT = {aten._unique2, aten.unique_consecutive, aten.unique_dim}
"""Operators whose results are largest when all values differ."""
CHECKS = {aten.all, aten._is_all_true}
"""Operators that say whether all is well."""
SUMS = {aten.sum, aten.count_nonzero}
"""Operators that count what is true in a mask."""
SELDOM = {aten.isnan.default, aten.isinf.default, aten.eq.Tensor}
"""Operators whose masks a program hopes to find empty, or counts to see how good it is: numbers that went wrong, and
guesses that are right."""
SAME = {aten._to_copy, aten.clone, aten.index_select, aten.index}
"""Operators whose results are numbers of their first argument."""
UNIONS = {aten.bitwise_or, aten.logical_or}
_IS_SELDOM = "_forerun_is_seldom"
"""Attribute of such a mask."""
COUNTED = {aten.nonzero, aten.repeat_interleave}
"""Operators that keep every element that is not zero."""
READ = "a {} read from the device"
CONVERGED = "when a loop has converged"
TRUTH = READ.format("bool")
"""What an assumption is of: a number of some dtype, and a truth value."""
FILTERS = "/torch/nn/modules/_functions.py"
"""SyncBatchNorm leaves out ranks without rows (2.13); ranks that are alike have some."""
KEPT_BOXES = ("torchvision::nms",)
"""Operators that return the positions of the boxes they keep: all of them."""


@dataclass
class Assumption:
    """A value of the device that nobody can know, and what was answered."""

    line: str
    what: str
    value: str
    times: int = 1
    loop: Convergence | None = None
    """How the loop was ended that asked, where one was."""


@dataclass
class Assumptions:
    """What was answered in place of values that nobody can know, one entry for each line that asks."""

    by_line: dict[tuple[str, str], Assumption] = field(default_factory=dict)
    truth: bool | None = None
    """Answer to every truth value that nobody can know and that is read; None: what `assume_values` says."""
    truth_is_stated: bool = False
    """The user says so: it is no assumption."""
    loops: ConvergenceLoops = field(default_factory=ConvergenceLoops)
    progress: ProgressLoops = field(default_factory=ProgressLoops)

    def note(self, what: str, value: Any, loop: Convergence | None = None) -> None:
        """Note an answer, the line that asked, and the loop that it ended."""
        if is_within(FILTERS):
            return
        line = program_line()
        entry = self.by_line.get((line, what))
        if entry is None:
            self.by_line[line, what] = Assumption(line, what, str(value), loop=loop)
        else:
            entry.times += 1


def assume_values(func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
    """Give results of an operator plausible values where a program is likely to ask for them."""
    packet = func._overloadpacket
    choose = _CHOICES.get(packet)
    if choose is not None:
        index, choices = choose(args, kwargs, outputs)
        if 0 < index.numel() <= MOST_ELEMENTS and choices > 0:
            with torch._C._DisableTorchDispatch():
                start = choices // 2 if packet is aten.multinomial else 0
                value = (arange(index.numel(), device="cpu") + start) % choices
                set_shadow(index, value.reshape(index.shape).to(index.dtype), is_assumed=True)
    if packet in RANDOM and 0 < outputs.numel() <= (FEW if outputs.is_floating_point() else MOST_ELEMENTS):
        set_shadow(outputs, _draw(func, args, kwargs), is_assumed=True)
    if packet in SUMS and outputs.numel() == 1 and shadow_of(outputs) is None:
        _assume_all(args[0], outputs)
    if func in SELDOM or (packet in UNIONS and any(getattr(each, _IS_SELDOM, False) for each in args)):
        setattr(outputs, _IS_SELDOM, True)
    _assume_chances(func, args, kwargs, outputs)
    unknown = [each for each in tensors_in((outputs,)) if isinstance(each, FakeTensor) and shadow_of(each) is None]
    assume_numbers(unknown, is_true=packet in CHECKS)


def _assume_chances(func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
    """Let chances be even, as those before training are: a program may draw from them on the host."""
    if func._overloadpacket is aten._softmax:
        setattr(outputs, CHANCE, 1 / max(1, _along(args, kwargs, 1, -1)))
    elif (func.is_view or func._overloadpacket in SAME) and hasattr(args[0], CHANCE):
        for each in tensors_in((outputs,)):
            setattr(each, CHANCE, getattr(args[0], CHANCE))


def _assume_all(mask: torch.Tensor, count: torch.Tensor) -> None:
    """Let a mask that nobody can know be true everywhere where it is counted, as it is where it picks."""
    if mask.dtype is torch.bool and shadow_of(mask) is None and not getattr(mask, _IS_SELDOM, False):
        with torch._C._DisableTorchDispatch():
            value = full(count.shape, mask.numel(), dtype=count.dtype, device="cpu")
        set_shadow(count, value, is_assumed=True)


def _draw(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Random numbers of the right range; the program's own generator of the host stays as it was."""
    here = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory", "generator")}
    with torch._C._DisableTorchDispatch():
        state = torch.get_rng_state()
        try:
            return getattr(torch, func._overloadpacket.__name__)(*args, **here, device="cpu")
        finally:
            torch.set_rng_state(state)


def assume_numbers(tensors: Iterable[torch.Tensor], *, is_true: bool = False) -> None:
    """Take single numbers for 1 where they are floating, for 0 otherwise, and truth values for `is_true`."""
    for tensor in tensors:
        if tensor.dim() <= 1 and tensor.numel() == 1:
            with torch._C._DisableTorchDispatch():
                one = tensor.dtype.is_floating_point or tensor.dtype.is_complex or is_true
                value = full(tensor.shape, 1 if one else 0, dtype=tensor.dtype, device="cpu")
            set_shadow(tensor, value, is_assumed=True)


def _along(args: Any, kwargs: dict[str, Any], place: int, missing: int | None) -> int:
    """Length of the dimension that an operator chooses from; of all elements where it names none."""
    dim = args[place] if len(args) > place else kwargs.get("dim", missing)
    source = args[0]
    return source.numel() if dim is None else source.shape[dim] if source.dim() else 1


_CHOICES: dict[Any, Any] = {
    aten.topk: lambda args, kwargs, out: (out[1], _along(args, kwargs, 2, -1)),
    aten.argmax: lambda args, kwargs, out: (out, _along(args, kwargs, 1, None)),
    aten.argmin: lambda args, kwargs, out: (out, _along(args, kwargs, 1, None)),
    aten.multinomial: lambda args, kwargs, out: (out, args[0].shape[-1]),
}
"""Operators that choose by value → their positions and how many there are to choose from."""


def assumed_results(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Results of an operator whose sizes depend on values, and whether some had to be assumed.

    Sizes are right where the values that decide them are known: an unknown tensor is indexed by a known mask. Results
    are on the host, or on `meta` where only their sizes mean something.
    """
    packet = func._overloadpacket
    with torch._C._DisableTorchDispatch():
        if func._schema.name in KEPT_BOXES:
            return arange(args[0].shape[0], device="cpu"), True
        if packet is aten.index:
            places = [_places(index) for index in args[1]]
            indices = [each for integers, _ in places for each in integers]
            source = empty(args[0].shape, dtype=args[0].dtype, device="meta")
            return func(source, indices), any(is_assumed for _, is_assumed in places)
        if packet is aten.masked_select:
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            count, is_assumed = _count(args[1])
            repeats = math.prod(shape) // max(1, args[1].numel())
            return empty(count * repeats, dtype=args[0].dtype, device="meta"), is_assumed
        if packet is aten.nonzero and args[0].numel() > MOST_ELEMENTS:
            count, is_assumed = _count(args[0])
            return empty(count, args[0].dim(), dtype=torch.int64, device="meta"), is_assumed
        return results_on_host(func, args, kwargs)


def _count(mask: torch.Tensor) -> tuple[int, bool]:
    """How many elements of a mask are true, and whether that is assumed."""
    shadow = shadow_of(mask)
    if shadow is None or shadow.value.shape != mask.shape:
        return mask.numel(), True
    return int(shadow.value.count_nonzero()), shadow.is_assumed


def _places(index: torch.Tensor | None) -> tuple[list[torch.Tensor | None], bool]:
    """An index as integer indices; a mask is one for each of its dimensions."""
    if index is None:
        return [None], False
    if index.dtype not in (torch.bool, torch.uint8):
        return [empty(index.shape, dtype=torch.int64, device="meta")], False
    count, is_assumed = _count(index)
    return [empty(count, dtype=torch.int64, device="meta")] * index.dim(), is_assumed


def results_on_host(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Results of the host's own kernel, and whether values had to be assumed: those that make the results largest."""
    packet, is_assumed = func._overloadpacket, False
    if packet in CELLS:
        return CELLS[packet](*args), False

    def on_host(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal is_assumed
        shadow = shadow_of(tensor)
        is_assumed = is_assumed or shadow is None or shadow.is_assumed
        if shadow is not None and shadow.value.shape == tensor.shape:
            return shadow.value
        if packet in DISTINCT:
            return arange(tensor.numel(), device="cpu").reshape(tensor.shape).to(tensor.dtype)
        counted = packet in COUNTED or tensor.dtype in (torch.bool, torch.uint8)
        return full((1,) * tensor.dim(), 1 if counted else 0, dtype=tensor.dtype, device="cpu").expand(tensor.shape)

    with torch._C._DisableTorchDispatch():
        host = pytree.tree_map_only(torch.Tensor, on_host, (args, kwargs))
        named = {name: torch.device("cpu") if name == "device" else value for name, value in host[1].items()}
        return func(*host[0], **named), is_assumed
