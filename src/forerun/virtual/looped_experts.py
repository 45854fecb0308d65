"""Experts that transformers runs in a loop whose turns values decide: Switch, NLLB-MoE, LongCat, JetMoE, DBRX.

Question: what a step of them issues and allocates where no value is known. transformers gives most mixtures one grouped
product; these ask which experts have rows (`nonzero`) and how many. The loop is the library's (5.24), with the
counts of even routing in place of what it would read: rows / experts each, the first ones one more where that leaves
a rest. Both are in `Routing`, and what is assumed stands in the trace.

Capacity: Switch drops what is beyond `expert_capacity` for each expert and sequence. NLLB-MoE 5.24 hands its experts
the mask of the best expert in place of its number, so that the rows of all pairs of token and expert that are *not*
chosen go through expert 0, the chosen through expert 1 and none through the others (modeling_nllb_moe.py,
`NllbMoeExperts.forward`); so it is traced, as it runs, and the message says so.

Not covered: uneven routing, which moves time between products and, with a capacity, drops more rows; experts that get
no row in a real batch are given one each here as long as there are as many rows.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from forerun.hardware.catalogue import Device
from forerun.settings.schema import Settings
from forerun.trace import ROUTING
from forerun.virtual.fake_results import nonzero_elements
from forerun.virtual.fused_kernels import fused_kernels
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder


@dataclass(frozen=True)
class Routing:
    """Rows of each expert that has some, by its index, and what was assumed of them."""

    rows: dict[int, int]
    text: str


def even(rows: int, experts: int) -> dict[int, int]:
    """Rows of each expert where they are dealt evenly; experts without any are left out."""
    share, rest = divmod(rows, experts)
    return {index: share + (index < rest) for index in range(experts) if share + (index < rest)}


def _switch(experts: Any, tokens: int, length: int, capacity: int) -> Routing:
    of_sequence = even(length, experts.num_experts)
    rows = {index: min(count, capacity) * (tokens // length) for index, count in of_sequence.items()}
    overflow = tokens - sum(rows.values())
    text = f"; {overflow:,} of {tokens:,} are beyond the capacity of {capacity} and dropped" if overflow else ""
    return Routing(rows, f"{ROUTING}tokens are routed evenly over {experts.num_experts} experts{text}.")


def _nllb(experts: Any, tokens: int, capacity: int) -> Routing:
    selection = sum(min(count, capacity) for count in even(tokens, experts.num_experts).values())
    other = tokens * experts.num_experts - selection
    text = (
        f"{ROUTING}{selection:,} of {tokens:,} tokens are routed, evenly, within a capacity of {capacity} for each of "
        f"{experts.num_experts} experts. transformers 5.24 takes their mask for numbers of experts: it runs the "
        f"{other:,} pairs of token and expert that are not chosen through expert 0, the others through expert 1."
    )
    return Routing({0: other, 1: selection}, text)


def _expert_rows(mask: torch.Tensor, routing: Routing) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Index of each expert that has rows, with their choice and token, asked for as transformers asks."""
    with nonzero_elements(len(routing.rows), routing.text):
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for index, expert in zip(routing.rows, hit, strict=True):
        expert[0].item()  # by its number the module, or the slice of weights, is found
        with nonzero_elements(routing.rows[index], routing.text):
            choice, token = torch.where(mask[expert].squeeze(0))
        yield index, choice, token


def _run_modules(
    experts: Any, hidden: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor, routing: Routing
) -> torch.Tensor:
    """The loop of Switch and NLLB-MoE over modules of two linear layers; (tokens, width) in and out."""
    final = torch.zeros_like(hidden)
    for index, choice, token in _expert_rows(mask, routing):
        rows = hidden[None, token].reshape(-1, hidden.shape[-1])
        result = experts[f"expert_{index}"](rows) * weights[token, choice, None]
        if getattr(experts, "moe_token_dropout", 0) > 0:
            result = experts.token_dropout(result)
        final.index_add_(0, token, result.to(hidden.dtype))
    return final


def _switch_layer(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """`SwitchTransformersSparseMLP.forward`."""
    batch, length, width = hidden_states.shape
    selection, weights, _ = self.router(hidden_states)
    mask = selection.view(-1, 1, self.router.num_experts).permute(2, 1, 0)
    routing = _switch(self.experts, batch * length, length, self.router.expert_capacity)
    rows = hidden_states.view(-1, width)
    return _run_modules(self.experts, rows, mask, weights.view(-1, 1), routing).reshape(batch, length, width)


def _nllb_layer(self: Any, hidden_states: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
    """`NllbMoeSparseMLP.forward`."""
    batch, length, width = hidden_states.shape
    rows = hidden_states.view(-1, width)
    selection, weights, _ = self.router(rows, padding_mask)
    mask = F.one_hot(selection, num_classes=self.num_experts).permute(2, 1, 0)
    routing = _nllb(self.experts, batch * length, self.router.expert_capacity)
    return _run_modules(self.experts, rows, mask, weights, routing).reshape(batch, length, width)


def _longcat_experts(self: Any, hidden_states: torch.Tensor, top_k_index: Any, top_k_weights: Any) -> torch.Tensor:
    """`LongcatFlashExperts.forward`: some experts hand rows on as they are."""
    final = torch.zeros_like(hidden_states)
    mask = F.one_hot(top_k_index, num_classes=self.total_experts).permute(2, 1, 0)
    rows_of_experts = even(top_k_index.numel(), self.total_experts)
    text = f"rows are routed evenly over {self.total_experts} experts, {self.zero_expert_num} of which compute nothing."
    for index, choice, token in _expert_rows(mask, Routing(rows_of_experts, f"{ROUTING}{text}")):
        rows = hidden_states[token]
        if index >= self.num_routed_experts:
            rows = self.identity_expert(rows)
        else:
            gate, up = F.linear(rows, self.gate_up_proj[index]).chunk(2, dim=-1)
            rows = F.linear(self.act_fn(gate) * up, self.down_proj[index])
        rows = rows * top_k_weights[token, choice, None]
        final.index_add_(0, token, rows.to(hidden_states.dtype))
    return final


def _dbrx_experts(self: Any, hidden_states: torch.Tensor, top_k_index: Any, top_k_weights: Any) -> torch.Tensor:
    """`DbrxExperts.forward`: weights of all experts lie in one matrix."""
    batch, shape = hidden_states.shape[0], (-1, self.ffn_hidden_size, self.hidden_size)
    rows = hidden_states.reshape(-1, self.hidden_size)
    final = torch.zeros_like(rows)
    with torch.no_grad():
        mask = F.one_hot(top_k_index, num_classes=self.num_experts + 1).permute(2, 1, 0)
    text = f"{ROUTING}rows are routed evenly over {self.num_experts} experts."
    for index, choice, token in _expert_rows(mask, Routing(even(top_k_index.numel(), self.num_experts), text)):
        weights = [weight.view(shape)[index] for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2)]
        result = self.mlp(rows[token], *weights).view(-1, self.hidden_size) * top_k_weights[token, choice, None]
        final.index_add_(0, token, result)
    return final.view(batch, -1, self.hidden_size)


def _jetmoe_experts(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`JetMoeParallelExperts.forward`, with even counts of rows; what read them read nothing."""

    def run(self: Any, inputs: torch.Tensor, expert_size: list[int]) -> torch.Tensor:
        share, rest = divmod(inputs.shape[0], self.num_experts)
        return forward(self, inputs, [share + (index < rest) for index in range(self.num_experts)])

    return run


LAYERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "SwitchTransformersSparseMLP": lambda _: _switch_layer,
    "NllbMoeSparseMLP": lambda _: _nllb_layer,
    "LongcatFlashExperts": lambda _: _longcat_experts,
    "DbrxExperts": lambda _: _dbrx_experts,
    "JetMoeParallelExperts": _jetmoe_experts,
}
"""Class of transformers → its forward pass with even routing, made of its own."""


@contextlib.contextmanager
def evenly_routed(model: nn.Module, assumptions: list[str]) -> Iterator[None]:
    """Experts of a model whose loop values decide get rows as even routing deals them; that it does, is added."""
    classes = {type(module) for module in model.modules() if type(module).__name__ in LAYERS}
    if any(kind.__name__ == "JetMoeParallelExperts" for kind in classes):
        assumptions.append(f"{ROUTING}rows are routed evenly over the experts of each layer.")
    with contextlib.ExitStack() as stack:
        for kind in classes:
            stack.enter_context(replaced(kind, "forward", LAYERS[kind.__name__](kind.forward)))
        yield


@contextlib.contextmanager
def layers_as_run(model: nn.Module, settings: Settings, device: Device, recorder: Recorder) -> Iterator[None]:
    """Layers do what they do in a run where the trace knows no value: fused kernels, and experts in a loop."""
    with evenly_routed(model, recorder.trace.assumed_values), fused_kernels(model, settings, device, recorder):
        yield
