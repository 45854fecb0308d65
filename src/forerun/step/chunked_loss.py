"""Cross-entropy over a large vocabulary without ever holding the logits of all tokens; exact gradients.

The logits of one chunk of tokens are made, their loss is summed and their gradient pushed through the output layer at
once, so that only one chunk's logits are alive: at 256,000 tokens of vocabulary the logits of 4 × 768 tokens take 3.1
GB in fp32, and the usual loss holds three such copies. The price is one buffer for the gradient of the output layer,
where that is trained; no arithmetic is done twice.

The loss of every chunk is fp32. Gradients of the output layer are summed in fp32 over chunks.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.data.token_data import IGNORED
from forerun.errors import NotSupported
from forerun.step.decoder_types import DECODER_TYPES
from forerun.units import MIB

CHUNK_BYTES = 256 * MIB
"""Bytes of fp32 logits in one chunk: large enough to keep a GPU busy."""
FP16_FACTOR = 16.0
"""Gradients of logits begin near one over the vocabulary, where fp16 has few digits left; undone in fp32."""
CAP = "final_logit_softcapping"
"""Field by which configurations of transformers bend logits after the output layer (Gemma 2)."""
OTHER_DECODERS = frozenset({
    "bloom", "falcon_h1", "falcon_mamba", "gemma3", "internvl", "lfm2", "llava", "mistral3", "qwen2_5_vl", "qwen2_vl",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_vl", "smolvlm",
})  # fmt: skip
"""Those that see, or whose layers keep a state: documents side by side would meet there, losses do not."""
FAMILIES = DECODER_TYPES | OTHER_DECODERS | {
    "bert", "distilbert", "electra", "modernbert", "roberta", "t5", "xlm-roberta",
}  # fmt: skip
"""Model types whose logits are the output layer's, but for what is named above; each is tested."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, cap: float,
        wants_gradients: bool,
    ) -> Tensor:  # fmt: skip
        dtype = _compute_dtype(hidden, weight)
        wants = [wants_gradients and is_required for is_required in ctx.needs_input_grad[:3]]
        cast = weight.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        keeps = torch.float32 if dtype == torch.float16 else hidden.dtype
        of_hidden = torch.empty_like(hidden, dtype=keeps) if wants[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        of_bias = torch.zeros_like(weight[:, 0], dtype=torch.float32) if wants[2] else None
        undo = FP16_FACTOR if dtype == torch.float16 else 1.0
        rows = max(1, CHUNK_BYTES // (4 * weight.shape[0]))
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(hidden), rows):
                part = hidden[begin : begin + rows].to(dtype)
                logits = F.linear(part, cast, None if bias is None else bias.to(dtype)).float()
                loss, slope = _loss_and_slope(logits, labels[begin : begin + rows], cap, any(wants))
                total += loss
                if slope is None:
                    continue
                if of_bias is not None:
                    of_bias += slope.sum(dim=0)
                slope = (slope if undo == 1.0 else slope.mul_(undo)).to(dtype)
                if of_hidden is not None:
                    of_hidden[begin : begin + rows] = _unscaled(slope @ cast, undo)
                if of_weight is not None:
                    of_weight += _unscaled(slope.T @ part, undo)
        ctx.gradients = (of_hidden, of_weight, of_bias)
        ctx.dtypes = (hidden.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        scale = gradients[0]
        # plain attributes, not `save_for_backward`: they are written over here and freed as soon as they are returned
        stored, ctx.gradients = ctx.gradients, None
        input_gradients = [
            None if g is None else g.mul_(scale).to(dtype) for g, dtype in zip(stored, ctx.dtypes, strict=True)
        ]  # fmt: skip
        return (*input_gradients, None, None, None)


def _compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _unscaled(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1.0 else value.float() / factor


def _loss_and_slope(logits: Tensor, labels: Tensor, cap: float, wants_slope: bool) -> tuple[Tensor, Tensor | None]:
    """Summed loss of a chunk's fp32 `logits` (n, V) and its gradient by what the output layer gave."""
    bend = None
    if cap:
        logits = logits.div_(cap).tanh_()
        bend = 1 - logits * logits if wants_slope else None
        logits = logits.mul_(cap)
    valid = labels != IGNORED
    target = labels.clamp(min=0).unsqueeze(1)
    # from here on in place where it can be: the chunk's logits become its gradient, softmax minus one-hot
    whole = torch.logsumexp(logits, dim=1, keepdim=True)
    loss = ((whole - logits.gather(1, target)).squeeze(1) * valid).sum()
    if not wants_slope:
        return loss, None
    slope = logits.sub_(whole).exp_()
    slope.scatter_add_(1, target, torch.full_like(target, -1.0, dtype=slope.dtype))
    slope.mul_(valid.unsqueeze(1))
    if bend is not None:
        slope.mul_(bend)
    return loss, slope


def chunked_cross_entropy(hidden: Tensor, head: nn.Linear, labels: Tensor, *, cap: float = 0.0) -> Tensor:
    """Cross-entropy summed over valid `labels` (N,) of the logits that `head` makes of `hidden` (N, D); fp32 scalar.

    Where `cap` is not 0, logits are bent to cap · tanh(logit / cap).
    """
    return _ChunkedCrossEntropy.apply(hidden, head.weight, head.bias, labels, cap, torch.is_grad_enabled())


def require_chunkable(model: nn.Module, workload: str) -> None:
    """Refuse models whose logits are not known to be those of their output layer.

    Raises:
        NotSupported: naming the family and the remedy.
    """
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if kind not in FAMILIES or type(head) is not nn.Linear:
        raise NotSupported(
            f"cross_entropy: chunks need an output layer over a vocabulary that is known here; found {kind} for "
            f"{workload}. Set cross_entropy to full."
        )


@contextlib.contextmanager
def hidden_for_logits(model: nn.Module) -> Iterator[tuple[nn.Linear, float]]:
    """Let `model` return the output layer's inputs as its logits; yields that layer and its cap.

    What a model multiplies its logits by (Granite, Cohere) it then multiplies these inputs by, which is the same.
    """
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    config: Any = model.config
    if type(head) is not nn.Linear:
        raise NotSupported(
            f"cross_entropy: chunks need a plain output layer; found {type(head).__name__}. Take it out of "
            f"adapter.targets and adapter.modules_to_save, or set cross_entropy to full."
        )
    cap = getattr(config, CAP, None)
    if cap is not None:
        setattr(config, CAP, None)
    head.forward = _same
    try:
        yield head, cap or 0.0
    finally:
        del head.forward
        if cap is not None:
            setattr(config, CAP, cap)


def _same(input: Tensor) -> Tensor:
    return input
