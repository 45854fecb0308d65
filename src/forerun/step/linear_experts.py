"""Experts of a mixture as transformers had them before version 5: three linear layers each, run one after another.

Today's hold the weights of all experts of a block in two tensors, which bitsandbytes does not pack. Source:
`transformers/models/mixtral/modeling_mixtral.py`, 4.48.3 and 4.57.1 (MixtralSparseMoeBlock).

A trace knows no routing: there every expert has the same number of rows.

Not covered: the host's wait for each expert's rows; the router, a linear layer too then, whose few weights were packed
as well; names of those layers.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake


class LinearExpert(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int, act_fn: Any) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)
        self.act_fn = act_fn

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, width) → the same shape."""
        return self.w2(self.act_fn(self.w1(rows)) * self.w3(rows))  # type: ignore[no-any-return]


class LinearExperts(nn.ModuleList):
    """All experts of a block, each with the rows that are routed to it."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """(tokens, width), with the experts of each token and their weights, both (tokens, k)."""
        out = torch.zeros_like(hidden_states)
        mask = torch.nn.functional.one_hot(top_k_index, num_classes=len(self)).permute(2, 1, 0)
        for number, expert in enumerate(self):
            place, token = self._rows_of(mask[number])
            rows = expert(hidden_states[token]) * top_k_weights[token, place, None]
            out.index_add_(0, token, rows.to(out.dtype))
        return out

    def _rows_of(self, mask: Tensor) -> tuple[Tensor, ...]:
        """Places among the k experts of a token, and the tokens, of one expert's rows; `mask` is (k, tokens)."""
        if not is_fake(mask):
            return torch.where(mask)
        count = -(-mask.numel() // len(self))
        return mask.new_empty(count, dtype=torch.long), mask.new_empty(count, dtype=torch.long)


def experts_as_layers(model: nn.Module) -> None:
    """Put `LinearExperts` in place of each module that holds all experts of a block in two tensors."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(up := getattr(child, "gate_up_proj", None), nn.Parameter) and up.ndim == 3:
                setattr(parent, name, _as_layers(child, up))


def _as_layers(fused: Any, up: nn.Parameter) -> LinearExperts:
    down: nn.Parameter = fused.down_proj
    count, width, inner = down.shape
    with torch.device(up.device):
        experts = [LinearExpert(width, inner, fused.act_fn).to(up.dtype) for _ in range(count)]
    return LinearExperts(experts)
