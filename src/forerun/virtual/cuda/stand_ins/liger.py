"""The kernels of Liger (linkedin/Liger-Kernel, 0.6 to 0.8): what each keeps, launches and multiplies.

- `fused_linear_cross_entropy` works through the tokens in chunks, so that the logits of one chunk take about as much as
  the hidden states, and computes the gradients in the forward pass (`ops/fused_linear_cross_entropy.py`): it keeps
  those and neither hidden states nor logits.
- `cross_entropy` writes the gradient over the logits. `gate_mul` keeps both inputs, for their gradients to overwrite.
  `rms_norm` keeps input and one fp32 number for each row, and writes the gradient over the upstream one.
- `liger_rotary_pos_emb` rotates query and key in place.

Not covered: reduction "none", Liger's distillation and preference losses.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException

from forerun.virtual.attention import current_target
from forerun.virtual.cuda.stand_ins.registry import launch

FLOAT = torch.float32
ACCUMULATES_IN_PLACE = (8, 0)
"""Least compute capability where the weight's gradient is summed without a temporary (`addmm(out=)`, ibid.)."""


class _RmsNorm(torch.autograd.Function):
    """Root-mean-square normalisation (`ops/rms_norm.py`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_in_place: bool) -> Tensor:
        out = torch.empty_like(x)
        rows = torch.empty(x.numel() // x.shape[-1], dtype=FLOAT, device=x.device)
        launch("liger_rms_norm", [out, rows], [x, weight])
        ctx.save_for_backward(x, weight, rows)
        ctx.is_in_place = is_in_place
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        x, weight, rows = ctx.saved_tensors
        slope = upstream[0].contiguous()
        gradient = slope if ctx.is_in_place else torch.zeros_like(slope)
        processors = current_target().processors
        partial = torch.empty((processors, weight.numel()), dtype=FLOAT, device=x.device)
        launch("liger_rms_norm_backward", [gradient, partial], [slope, x, weight, rows])
        return gradient, partial.sum(dim=0).to(weight.dtype), None


class _GateMul(torch.autograd.Function):
    """Activation of one tensor times the other (`ops/swiglu.py`, `ops/geglu.py`)."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kernel: str) -> Tensor:
        out = torch.empty_like(gate)
        launch(kernel, [out], [gate, up])
        ctx.save_for_backward(gate, up)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        gate, up = ctx.saved_tensors
        launch(f"{ctx.kernel}_backward", [gate, up], [gate, up, *upstream])
        return gate.detach(), up.detach(), None


class _Rope(torch.autograd.Function):
    """Rotary positions of (B, H, T, D), in place (`ops/rope.py`)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> Any:
        # the kernel wants (B, T, H, D) in memory, which is how projections leave them
        results = [each.transpose(1, 2).contiguous() for each in (query, key)]
        launch("liger_rope", results, [*results, cosine, sine])
        ctx.save_for_backward(cosine, sine)
        return tuple(each.transpose(1, 2) for each in results)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        gradients = [each.transpose(1, 2).contiguous() for each in upstream]
        launch("liger_rope_backward", gradients, [*gradients, *ctx.saved_tensors])
        return *(each.transpose(1, 2) for each in gradients), None, None


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of logits that exist; their gradient takes their place (`ops/cross_entropy.py`)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
        losses = torch.zeros(logits.shape[0], dtype=FLOAT, device=logits.device)
        (target != ignore_index).sum().item()
        launch("liger_cross_entropy", [logits, losses], [logits, target])
        ctx.save_for_backward(logits.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        (logits,) = ctx.saved_tensors
        _scale([logits], upstream[0])
        return logits, None, None


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The last linear layer and the loss, a chunk of tokens at a time, gradients included."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, bias: Any, ignore_index: int) -> Tensor:
        tokens, size = hidden.shape
        vocabulary = weight.shape[0]
        ratio = -(-vocabulary // size)
        chunk = min(tokens, 1 << (-(-tokens // ratio) - 1).bit_length())
        needs = ctx.needs_input_grad
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if needs[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and needs[3] else None
        losses = torch.zeros(tokens, dtype=FLOAT, device=hidden.device)
        (target != ignore_index).sum().item()
        storage = None
        if not torch.is_autocast_enabled():
            storage = torch.empty((chunk, vocabulary), dtype=hidden.dtype, device=hidden.device)
        for start in range(0, tokens, chunk):
            part = hidden[start : start + chunk]
            if storage is None:
                logits = part @ weight.t()
            else:
                logits = storage[: part.shape[0]]
                torch.mm(part, weight.t(), out=logits)
            logits = logits if bias is None else logits.add_(bias)
            launch("liger_cross_entropy", [logits, losses], [logits, target[start : start + chunk]])
            if needs[0]:
                gradient[start : start + chunk] = logits @ weight
            _add_weight_gradient(of_weight, logits, part)
            if of_bias is not None:
                of_bias.add_(logits.sum(dim=0))
        ctx.save_for_backward(gradient, of_weight, of_bias)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        gradients = ctx.saved_tensors
        _scale([each for each in gradients if each is not None], upstream[0])
        return gradients[0], gradients[1], None, gradients[2], None


def _add_weight_gradient(total: Tensor | None, logits: Tensor, part: Tensor) -> None:
    """Add a chunk's share: in place on newer cards, whose sum may be fp32 and its factors 16-bit (0.8.5, :325-360)."""
    if total is None:
        return
    part = part.to(logits.dtype)
    if current_target().capability < ACCUMULATES_IN_PLACE:
        total.add_(torch.mm(logits.t(), part).float())
    elif total.dtype == logits.dtype:
        total.addmm_(logits.t(), part)
    else:
        torch.addmm(total, logits.t(), part, out_dtype=total.dtype, out=total)


def _scale(tensors: list[Tensor], upstream: Tensor) -> None:
    """Gradients are multiplied by the upstream one unless that is 1; one that nobody knows is not."""
    try:
        is_one = torch.equal(upstream, torch.ones_like(upstream))
    except DataDependentOutputException:
        is_one = False
    if not is_one:
        for each in tensors:
            launch("liger_element_mul", [each], [each, upstream])


def rms_norm(x: Tensor, weight: Tensor, *, is_in_place: bool = True) -> Any:
    """Normalised `x`; its gradient takes the place of the upstream one, or does not."""
    return _RmsNorm.apply(x, weight, is_in_place)


def gate_mul(gate: Tensor, up: Tensor, kernel: str) -> Any:
    """Activation of `gate` times `up`."""
    return _GateMul.apply(gate, up, kernel)


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Any:
    """Loss of logits that exist."""
    return _CrossEntropy.apply(logits, target, ignore_index)


def fused_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, ignore_index: int = -100
) -> Any:
    """Loss of logits that never exist as a whole."""
    return _FusedLinearCrossEntropy.apply(hidden, weight, target, bias, ignore_index)


class LigerRMSNorm(nn.Module):
    """Root-mean-square normalisation."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, offset: float = 0.0, **options: Any):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps
        self.is_in_place = bool(options.get("in_place", True))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalised input."""
        return rms_norm(hidden_states, self.weight, is_in_place=self.is_in_place)


class LigerCrossEntropyLoss(nn.Module):
    """Cross entropy that writes its gradient over the logits."""

    def __init__(self, weight: Any = None, ignore_index: int = -100, **options: Any):
        super().__init__()
        self.ignore_index = ignore_index

    def forward(self, _input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return cross_entropy(_input, target, self.ignore_index)


class LigerFusedLinearCrossEntropyLoss(nn.Module):
    """Cross entropy of a linear layer's output that never exists as a whole."""

    def __init__(self, ce_weight: Any = None, ignore_index: int = -100, **options: Any):
        super().__init__()
        if options.get("reduction") == "none":
            raise NotImplementedError("LigerFusedLinearCrossEntropyLoss: reduction='none' has no stand-in; use 'mean'.")
        self.ignore_index = ignore_index

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Any = None) -> Tensor:
        """The loss."""
        return fused_linear_cross_entropy(_input, lin_weight, target, bias, self.ignore_index)


class LigerSwiGLUMLP(nn.Module):
    """Gated feed-forward layer of LLaMA and its like."""

    kernel = "liger_silu_mul"

    def __init__(self, config: Any):
        super().__init__()
        self.config = config
        self.gate_proj, self.up_proj = (
            nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for _ in range(2)
        )
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        return self.down_proj(gate_mul(self.gate_proj(x), self.up_proj(x), self.kernel))


class LigerGEGLUMLP(LigerSwiGLUMLP):
    """Gated feed-forward layer of Gemma."""

    kernel = "liger_gelu_mul"


def liger_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> Any:
    """Rotated query and key."""
    return _Rope.apply(q, k, cos, sin)
