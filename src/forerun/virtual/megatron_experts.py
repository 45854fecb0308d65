"""Mixtures as Megatron-Core runs them: its flex dispatcher and Transformer Engine's grouped layers, on a virtual GPU.

- Rows go to the ranks of their experts, over machines and on to neighbours, in one kernel (DeepEP's "normal kernels",
  HybridEP): no copies are made for it, and sums on the way back are made in it. Both hops are taken one after the
  other, which is 1 to 13 % slower than HybridEP's figures on 16 to 64 H100, as parts are handed on while others come.
- Rows are put in order of their experts by one kernel, and added up by one (`fused_permute`, `fused_unpermute`).
- Weights of experts are multiplied within the activation, of which nothing else is held (`weighted_bias_swiglu`).
- With float8, grouped products are in float8 too: inputs are cast once, by rows and by columns, and held so; weights
  once a step (`transformer_engine/pytorch/module/grouped_linear.py`).

Every choice of experts is as likely as any other.

Not covered: experts with biases, or that are split, which run as transformers has them; the dispatcher's own buffers,
outside PyTorch's allocator; products whose sums of gradients are wider than they are.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forerun.settings.schema import Settings
from forerun.step.expert_exchange import stops_of
from forerun.step.expert_parallel import COUNT, over_ranks
from forerun.trace import Issuer
from forerun.virtual.cuda.stand_ins.registry import launch

FLOAT8 = torch.float8_e4m3fn
GATE_AND_UP = 2


@dataclass(frozen=True)
class Hop:
    """A part of the way of rows to their experts, among the ranks of a group."""

    group: Any
    before: int
    """Rows of a rank that go."""
    after: int
    """Rows that come to it."""


def hops_of(groups: Sequence[Any], own: int, rows: int, per_token: int) -> list[Hop]:
    """The way of `rows` tokens through `groups` to ranks with `own` experts each."""
    hops: list[Hop] = []
    tokens, before = rows, rows
    for stop in stops_of(groups, own, per_token):
        size: int = stop.group.size()
        after = math.ceil(tokens * stop.share) * size
        hops.append(Hop(stop.group, before, after))
        tokens, before = tokens * size, after
    return hops


class _Sent(torch.autograd.Function):
    """Rows to the ranks of their experts, or back with what these made of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: "Dispatcher", hops: list[Hop], is_back: bool) -> Tensor:  # type: ignore[override]
        ctx.own, ctx.hops, ctx.is_back = own, hops, is_back
        return _exchanged(rows, hops, is_back)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.own.launching():
            return _exchanged(gradients[0].contiguous(), ctx.hops, not ctx.is_back), None, None, None


def _exchanged(rows: Tensor, hops: list[Hop], is_back: bool) -> Tensor:
    """What comes of rows on their way."""
    for hop in reversed(hops) if is_back else hops:
        size = hop.group.size()
        ends = (hop.after, hop.before) if is_back else (hop.before, hop.after)
        sizes = [[end // size + (place < end % size) for place in range(size)] for end in ends]
        exchange = torch.ops._c10d_functional.all_to_all_single
        rows = exchange(rows, sizes[1], sizes[0], hop.group.group_name)
        rows = torch.ops._c10d_functional.wait_tensor(rows)
    return rows


class _Moved(torch.autograd.Function):
    """Rows in another order or number, by one kernel each way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: "Dispatcher", places: Tensor, count: int, name: str) -> Tensor:  # type: ignore[override]
        ctx.own, ctx.count = own, len(rows)
        ctx.save_for_backward(places)
        return _moved(rows, places, count, name)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.own.launching():
            (places,) = ctx.saved_tensors
            return _moved(gradients[0], places, ctx.count, "permute"), None, None, None, None


def _moved(rows: Tensor, places: Tensor, count: int, name: str) -> Tensor:
    moved = rows.new_empty((count, rows.shape[1]))
    launch(name, [moved], [rows, places])
    return moved


class _Activated(torch.autograd.Function):
    """The activation of gate times up, times the weight of each row's expert."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: "Dispatcher", weights: Tensor, width: int) -> Tensor:  # type: ignore[override]
        activated = rows.new_empty((len(rows), width))
        launch("weighted_activation", [activated], [rows, weights])
        ctx.own = own
        ctx.save_for_backward(rows, weights)
        return activated

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows, weights = ctx.saved_tensors
        with ctx.own.launching():
            of_rows, of_weights = torch.empty_like(rows), torch.empty_like(weights)
            launch("weighted_activation_gradient", [of_rows, of_weights], [gradients[0], rows, weights])
        return of_rows, None, of_weights, None


class _Product(torch.autograd.Function):
    """Rows of each expert times its weight (experts, inputs, outputs)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: "Dispatcher", weight: Tensor, counts: Tensor) -> Tensor:  # type: ignore[override]
        ctx.own = own
        ctx.save_for_backward(rows, weight, counts)
        return torch.nn.functional.grouped_mm(rows, weight, offs=counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        rows, weight, counts = ctx.saved_tensors
        with ctx.own.launching():
            of_rows = torch.nn.functional.grouped_mm(gradients[0], weight.transpose(1, 2), offs=counts)
            if weight.is_contiguous():
                of_weight = torch.nn.functional.grouped_mm(rows.T, gradients[0], offs=counts)
            else:  # as it lies in memory
                of_weight = torch.nn.functional.grouped_mm(gradients[0].T, rows, offs=counts).transpose(1, 2)
        return of_rows, None, of_weight, None


class _Float8Product(torch.autograd.Function):
    """The same where `narrow` holds the weight in float8."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, own: "Dispatcher", weight: Tensor, narrow: Tensor) -> Tensor:  # type: ignore[override]
        by_rows, by_columns = _cast(rows)
        product = rows.new_empty((len(rows), weight.shape[2]))
        _multiply(product, by_rows, narrow, len(rows) * weight.shape[1:].numel())
        ctx.own = own
        ctx.save_for_backward(by_columns, narrow)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        columns, narrow = ctx.saved_tensors
        with ctx.own.launching():
            by_rows, by_columns = _cast(gradients[0])
            pairs = len(columns) * narrow.shape[1:].numel()
            of_rows = gradients[0].new_empty((len(columns), narrow.shape[1]))
            _multiply(of_rows, by_rows, narrow, pairs)
            of_weight = torch.empty_like(narrow, dtype=gradients[0].dtype)
            _multiply(of_weight, by_columns, columns, pairs)
        return of_rows, None, of_weight, None


def _cast(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Both copies in float8 that products need: for sums over columns, and over rows."""
    copies = torch.empty_like(rows, dtype=FLOAT8), torch.empty_like(rows, dtype=FLOAT8)
    launch("quantize", [*copies], [rows])
    return copies


def _multiply(product: Tensor, left: Tensor, right: Tensor, pairs: int) -> None:
    launch("grouped_mm", [product], [left, right], flops=2 * pairs, dtype="float8_e4m3fn")


@dataclass(frozen=True)
class Dispatcher:
    """The experts of one block that this rank has, among the ranks of all."""

    module: Any
    groups: Sequence[Any]
    casts: Any
    is_narrow: bool
    """Whether products are in float8."""

    @torch.compiler.disable
    def __call__(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """As `over_ranks`: (tokens, width), with the experts of each token and their weights."""
        with self.launching():
            return self._compute(hidden_states, top_k_index, top_k_weights.reshape(-1))

    def launching(self) -> contextlib.AbstractContextManager[None]:
        """Who launches the kernels inside."""
        issued: contextlib.AbstractContextManager[None] = self.casts.recorder.issued_by(Issuer.EXPERTS)
        return issued

    def _compute(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        own: int = getattr(self.module, COUNT)
        hops = hops_of(self.groups, own, len(rows), ids.shape[1])
        counts = ids.new_empty(own, dtype=torch.int32)
        launch("dispatch_layout", [counts], [ids])
        rows = _Sent.apply(rows, self, hops, False)
        counts.cpu()  # the host waits, as it gives products their sizes
        arrived, places = len(rows), ids.new_empty(ids.numel(), dtype=torch.int32)
        launch("row_places", [places], [ids])
        rows = _Moved.apply(rows, self, places, ids.numel(), "permute")
        is_gated: bool = self.module.has_gate
        rows = self._product(rows, self.module.gate_up_proj if is_gated else self.module.up_proj, counts)
        rows = _Activated.apply(rows, self, weights, rows.shape[1] // (GATE_AND_UP if is_gated else 1))
        rows = self._product(rows, self.module.down_proj, counts)
        rows = _Moved.apply(rows, self, places, arrived, "unpermute")
        return _Sent.apply(rows, self, hops, True)  # type: ignore[no-any-return]

    def _product(self, rows: Tensor, weight: Any, counts: Tensor) -> Tensor:
        weight = weight.to_local() if hasattr(weight, "to_local") else weight
        by_expert = weight if self.module.is_transposed else weight.transpose(1, 2)
        if not self.is_narrow:
            return _Product.apply(rows, self, by_expert, counts)  # type: ignore[no-any-return]
        of_step = self.casts.values(self, [weight])
        casts = {} if of_step is None else of_step
        if not casts:
            casts["narrow"] = torch.empty_like(by_expert, dtype=FLOAT8)
            launch("quantize", [casts["narrow"]], [weight])
        return _Float8Product.apply(rows, self, by_expert, casts["narrow"])  # type: ignore[no-any-return]


def use_dispatcher(model: nn.Module, settings: Settings, casts: Any) -> None:
    """Have the dealt experts of `model` computed so, in place."""
    is_narrow = settings.float8.recipe != "none"
    modules: list[Any] = list(model.modules())
    for module in modules:
        if getattr(module.forward, "func", None) is over_ranks and not module.has_bias:
            module.forward = Dispatcher(module, module.forward.args[0], casts, is_narrow)
