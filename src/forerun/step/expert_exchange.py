"""Rows on their way to the experts of other ranks and back: each is sent once to a rank, however many it has for it.

Over several machines it goes there once too, to the rank at the same place, which hands it on to its neighbours: k of E
experts over M machines of L ranks cost the network a row for each machine in place of one for each expert. What the
experts of a rank, then of a machine, make of a row is added up there, weighted, so that one row goes back each way.
DeepEP sends so (https://github.com/deepseek-ai/DeepEP, "normal kernels").

A trace knows no routing: there every choice of k different experts is as likely as any other.

Not covered: routers that choose machines before experts (DeepSeek-V3's groups) in a trace; capacities and dropped
tokens; exchanges hidden behind shared experts; exchanges in float8.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional


@dataclass(frozen=True)
class Stop:
    """Ranks among which rows are sent, each of which reaches experts of its own."""

    group: Any
    experts: int
    """How many each reaches; the first has those from 0 on."""
    share: float
    """Of all tokens, those that choose any of these, where routing is even."""


@dataclass(frozen=True)
class Arrivals:
    """What is known of rows where they are: how many tokens they were sent for, and how many choices they bring."""

    tokens: int
    choices: int


def stops_of(groups: Sequence[Any], own: int, per_token: int) -> list[Stop]:
    """The way through `groups`, from the widest to the one whose ranks have `own` experts each, of `per_token` each."""
    total = own * math.prod(group.size() for group in groups)
    stops, reached = [], total
    for group in groups:
        reached //= group.size()
        stops.append(Stop(group, reached, 1 - math.comb(total - reached, per_token) / math.comb(total, per_token)))
    return stops


class _Take(torch.autograd.Function):
    """Copies of rows; gradients of the copies of a row are added up in fp32, in their order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, row: Tensor, order: Tensor, first: Tensor) -> Tensor:
        """`row` of each copy; `order` sorts copies by it, and a row's begin there at `first`."""
        ctx.save_for_backward(order, first)
        return rows.index_select(0, row)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        order, first = ctx.saved_tensors
        return functional.embedding_bag(order, gradients[0].contiguous(), first, mode="sum"), None, None, None


class _Add(torch.autograd.Function):
    """The way back of `_Take`: the sum of a row's copies."""

    @staticmethod
    def forward(ctx: Any, copies: Tensor, row: Tensor, order: Tensor, first: Tensor) -> Tensor:
        """(copies, width) → (rows, width)."""
        ctx.save_for_backward(row)
        return functional.embedding_bag(order, copies.contiguous(), first, mode="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (row,) = ctx.saved_tensors
        return gradients[0].index_select(0, row), None, None, None


@dataclass(frozen=True)
class _Way:
    """From this rank's rows to copies of them on others, and back."""

    group: Any
    outgoing: list[int]
    incoming: list[int]
    copies: tuple[Tensor, Tensor, Tensor]
    """As `_Take` has them."""

    @torch.compiler.disable
    def there(self, rows: Tensor) -> Tensor:
        """(rows, width) → (rows of others, width)."""
        return self._exchanged(_Take.apply(rows, *self.copies), self.incoming, self.outgoing)

    @torch.compiler.disable
    def beside(self, notes: Tensor) -> Tensor:
        """The same of a few numbers beside each row."""
        return self._exchanged(notes.index_select(0, self.copies[0]), self.incoming, self.outgoing)

    @torch.compiler.disable
    def back(self, rows: Tensor) -> Tensor:
        """(rows of others, width) → (rows, width), the copies of each added up."""
        returned = self._exchanged(rows.contiguous(), self.outgoing, self.incoming)
        return _Add.apply(returned, *self.copies)  # type: ignore[no-any-return]

    def _exchanged(self, rows: Any, sizes: list[int], own_sizes: list[int]) -> Tensor:
        from torch.distributed._functional_collectives import all_to_all_single_autograd

        return all_to_all_single_autograd(rows, sizes, own_sizes, self.group)


@torch.compiler.disable(recursive=False)
def through(
    stops: Sequence[Stop], compute: Callable[..., Tensor], rows: Tensor, ids: Tensor, weights: Tensor
) -> Tensor:
    """Weighted sum of what experts make of `rows` (N, width), in the dtype of `rows`.

    `ids` (N, k) are their experts with `weights` (N, k). `compute` is given rows with one expert and weight each.
    """
    per_token, dtype, ways = ids.shape[1], rows.dtype, []
    here, first, own = Arrivals(len(rows), ids.numel()), 0, stops[-1].experts
    notes = torch.cat([ids.float(), weights.float()], dim=1)
    for stop in stops:
        way, here = _way(stop, notes[:, :per_token] - first, here)  # type: ignore[call-arg]
        rows, notes = way.there(rows), way.beside(notes)
        first += stop.group.rank() * stop.experts
        ways.append(way)
    local, weights = notes[:, :per_token] - first, notes[:, per_token:].to(weights.dtype)
    is_here = (local >= 0) & (local < own)
    row, place = is_here.nonzero_static(size=here.choices).unbind(1)
    copies = row, torch.arange(here.choices, device=row.device), _first(is_here)
    rows = _Take.apply(rows, *copies)
    rows = compute(rows, local[row, place].long().unsqueeze(1), weights[row, place].unsqueeze(1))
    rows = _Add.apply(rows.to(dtype), *copies)
    for way in reversed(ways):
        rows = way.back(rows)
    return rows


@torch.compiler.disable
def _way(stop: Stop, ids: Tensor, here: Arrivals) -> tuple[_Way, Arrivals]:
    """How rows go, and what is known of them there; `ids` count from the first expert that `stop` reaches."""
    size: int = stop.group.size()
    member = ids.div(stop.experts, rounding_mode="floor").clamp(-1, size).long() + 1
    tally = member.new_zeros(len(ids), size + 2).scatter_add_(1, member, torch.ones_like(member))[:, 1:-1]
    mask = tally > 0
    outgoing, incoming, there = _counts(stop, torch.stack([mask.sum(0), tally.sum(0)], dim=1), here)
    _, row = mask.T.nonzero_static(size=sum(outgoing)).unbind(1)
    return _Way(stop.group, outgoing, incoming, (row, row.argsort(stable=True), _first(mask))), there


def _first(mask: Tensor) -> Tensor:
    """Where the copies of each row begin, if `mask` (rows, places) says which there are and they lie row by row."""
    counts = mask.sum(1)
    return counts.cumsum(0) - counts


def _counts(stop: Stop, counts: Tensor, here: Arrivals) -> tuple[list[int], list[int], Arrivals]:
    """Rows that go to each rank, rows that come from it, and what is there then; `counts` are rows and choices."""
    from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

    from_all = wait_tensor(all_to_all_single(counts, None, None, stop.group))
    on_host = torch.stack([counts, from_all]).cpu()  # the host waits here for the exchange, as it must know sizes
    if is_fake(counts):
        size = len(counts)
        even = [math.ceil(here.tokens * stop.share)] * size
        return even, even, Arrivals(here.tokens * size, here.choices)
    outgoing, incoming = on_host[:, :, 0].tolist()
    return outgoing, incoming, Arrivals(0, int(on_host[1, :, 1].sum()))
