"""Direct feedback alignment: lower parts of a network learn from a fixed random projection of the error at the top.

    backpropagation   δ_l = (∂h_L/∂h_l)ᵀ e
    direct feedback   δ_l = e B                  e = ∂L/∂h_L, B fixed, drawn once

e is the error at the output of the last block (d numbers a token, not a vocabulary), B one matrix shared by all parts,
uniform in [−1, 1] divided by √d (Nøkland 2016, arXiv 1609.01596; Launay et al. 2020, arXiv 2006.12878).

The parts are detached from one another; `DirectFeedback` ties their outputs to the top, so that the single backward
pass of the training step hands each its δ. Every part's saved activations go as soon as its own backward is done, and
nothing waits for the part above it.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

LearningRule = Literal["backpropagation", "dfa-macro", "dfa-micro", "shallow"]
"""`dfa-macro` cuts between blocks, `dfa-micro` between attention and feed-forward too, `shallow` trains the last block
and the head only."""

Feedback = Literal["random", "positive", "identity"]
"""`random` as above; `positive` is A Aᵀ of a Gaussian A divided by √d: random too, but e B eᵀ > 0 for every e, so
that no part is ever driven against the error; `identity` hands every part the error itself, which is what a
residual stream carries down if the blocks above add little. Random signs do worse than no feedback here: README.md."""


class DirectFeedback(torch.autograd.Function):
    """The identity on the top's output; its backward pass gives every tied output the projected error."""

    @staticmethod
    def forward(ctx: Any, top: Tensor, matrix: Tensor, *outputs: Tensor) -> Tensor:
        """`top` and `outputs` (B, T, d), `matrix` (d, d)."""
        ctx.save_for_backward(matrix)
        # torch/amp/autocast_mode.py (2.13), custom_bwd: autograd runs backward without the autocast state of forward.
        kind = top.device.type
        ctx.dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else top.dtype
        ctx.tied = len(outputs)
        return top.view_as(top)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The error for the top, and the same projection of it for every output."""
        (matrix,) = ctx.saved_tensors
        error = gradients[0]
        projected = (error.to(ctx.dtype) @ matrix.to(ctx.dtype)).to(error.dtype)
        return (error, None, *([projected] * ctx.tied))


def feedback_matrix(width: int, kind: Feedback) -> Tensor:
    """B, (`width`, `width`), on the current default device."""
    if kind == "identity":
        return torch.eye(width)
    if kind == "positive":
        gaussian = torch.randn(width, width) / math.sqrt(max(width, 1))
        return gaussian @ gaussian.mT
    return (torch.rand(width, width) * 2 - 1) / math.sqrt(width)
