"""Results of one step of a recurrent cell, which CUDA computes in one kernel that has neither fake nor host twin.

Source: aten/src/ATen/native/cuda/RNN.cu (PyTorch 2.13): what is kept for the backward pass is 5 (GRU) or 4 (LSTM)
times as wide as the state.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
GRU_WORKSPACE, LSTM_WORKSPACE, GRU_GATES = 5, 4, 3


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device="meta")


def _gru(input_gates: Tensor, hidden_gates: Tensor, state: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, width = state.shape
    return _empty(state, batch, width), _empty(state, batch, GRU_WORKSPACE * width)


def _gru_backward(gradient: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    batch, width = gradient.shape
    gates = [_empty(gradient, batch, GRU_GATES * width) for _ in range(2)]
    biases = [_empty(gradient, GRU_GATES * width) if has_bias else None for _ in range(2)]
    return *gates, _empty(gradient, batch, width), *biases


def _lstm(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, width = cell.shape
    return _empty(cell, batch, width), _empty(cell, batch, width), _empty(cell, batch, LSTM_WORKSPACE * width)


def _lstm_backward(
    gradient: Tensor | None,
    cell_gradient: Tensor | None,
    cell: Tensor,
    new_cell: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, ...]:
    bias = _empty(workspace, workspace.shape[1]) if has_bias else None
    return _empty(workspace, *workspace.shape), _empty(cell, *cell.shape), bias


CELLS: dict[Any, Callable[..., tuple[Tensor | None, ...]]] = {
    aten._thnn_fused_gru_cell: _gru,
    aten._thnn_fused_gru_cell_backward: _gru_backward,
    aten._thnn_fused_lstm_cell: _lstm,
    aten._thnn_fused_lstm_cell_backward_impl: _lstm_backward,
}
"""Operators → their results on `meta`."""
