"""Is the mechanism that a run is named after at work? What is asked of a model with kernel attention and feedback.

- *Gradient*: with feedback on, the gradient of every block but the last differs from backpropagation's, and that of the
  last block (of `dfa-micro` its feed-forward) and the final norm is the same; with backpropagation all are the same.
  Cosines say how far they agree.
- *Attention*: whatever its weights, if they sum to one the first token gets its own value. So ‖output‖ / ‖values‖ is at
  least about 1/√T; far below that the attention is dead.
- *Kernel*: relative error of the output of `favor` against softmax attention on the same queries, keys and values.
- *Effective rank* of the states before the output layer: exp of the entropy of their normalised singular values
  (Roy and Vetterli 2007).

The public original of okadfa failed both of the first two for all of its runs: its feedback was never switched on, and
its attention's output was 1e-12 of its values.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forerun.errors import MechanismDead
from forerun.recipes.okadfa.model.feedback import LearningRule
from forerun.recipes.okadfa.model.kernel_decoder import Attention, DecoderBlock, KernelDecoder
from forerun.step.workload import Batch, Workload

DEAD_SHARE = 0.1
"""Least ratio that passes for alive, as a share of the 1/√T that weights which sum to one give."""
SAME = 1e-5
"""Relative difference of gradients that rounding makes, with room; feedback's differ by about 1."""


@dataclass(frozen=True)
class GradientCheck:
    """The run's gradient beside backpropagation's, on one batch."""

    cosines: tuple[float, ...]
    """Cosine of both gradients by block; 1 where they are the same, nan where the rule trains nothing."""
    differences: tuple[float, ...]
    """‖g − g_bp‖ / ‖g_bp‖ by block."""
    top_difference: float
    """Relative difference of the final norm's gradient, which is the true one under every rule."""


def check_gradient(model: KernelDecoder, workload: Workload, batch: Batch) -> GradientCheck:
    """Both gradients of one batch; `.grad` of the model is not touched."""
    rule = model.learning_rule
    was_training = model.training
    model.eval()  # dropout would make the two gradients differ
    with torch.enable_grad():
        own = _gradients(model, workload, batch, rule)
        true = _gradients(model, workload, batch, "backpropagation")
    model.train(was_training)
    names = [f"blocks.{number}." for number in range(len(model.blocks))]
    pairs = [(_joined(own, true, name), _joined(true, true, name)) for name in names]
    top = (_joined(own, true, "final_norm."), _joined(true, true, "final_norm."))
    return GradientCheck(
        cosines=tuple(_cosine(*pair) for pair in pairs),
        differences=tuple(_difference(*pair) for pair in pairs),
        top_difference=_difference(*top),
    )


def _gradients(model: KernelDecoder, workload: Workload, batch: Batch, rule: LearningRule) -> dict[str, Tensor | None]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with model.trained_by(rule):
        loss = workload.loss(model, batch).sum / workload.count(batch)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, gradients, strict=True))


def _joined(gradients: Mapping[str, Tensor | None], like: Mapping[str, Tensor | None], prefix: str) -> Tensor:
    parts = []
    for name, shape in like.items():
        if name.startswith(prefix) and shape is not None:
            gradient = gradients[name]
            parts.append((torch.zeros_like(shape) if gradient is None else gradient).float().flatten())
    return torch.cat(parts) if parts else torch.zeros(0)


def _cosine(own: Tensor, true: Tensor) -> float:
    length = float(own.norm() * true.norm())
    return float(own @ true) / length if length > 0 else math.nan


def _difference(own: Tensor, true: Tensor) -> float:
    length = float(true.norm())
    return float((own - true).norm()) / length if length > 0 else 0.0


def require_rule(check: GradientCheck, rule: LearningRule) -> None:
    """Stop a run whose gradient is not that of its rule.

    Raises:
        MechanismDead: feedback is on and the gradient is backpropagation's, or off and it is not.
    """
    below = check.differences[:-1]
    if rule.startswith("dfa"):
        same = [number for number, difference in enumerate(below) if difference < SAME]
        if same:
            raise MechanismDead(
                f"recipe.learning_rule: {rule} is set, but the gradient of block {same[0]} is that of backpropagation "
                f"(relative difference {below[same[0]]:.1e}). The feedback is not connected; no figure of this run "
                f"would say anything about it."
            )
    exact = [check.top_difference]
    exact += check.differences if rule == "backpropagation" else check.differences[-1:] if rule != "dfa-micro" else []
    if max(exact) > SAME:
        raise MechanismDead(
            f"recipe.learning_rule: {rule} must give the true gradient where it does not use feedback; it is off by "
            f"{max(exact):.1e} of its length."
        )


def require_attention(ratio: float, length: int, kind: str) -> None:
    """Stop a run whose attention gives nothing.

    Raises:
        MechanismDead: the least ‖output‖ / ‖values‖ of its blocks is far below 1/√T, or not a number.
    """
    floor = attention_floor(length)
    if not ratio >= floor:  # also true of nan, unlike `ratio < floor`
        raise MechanismDead(
            f"recipe.attention: {kind} is dead: the norm of its output is {ratio:.1e} of that of its values, and any "
            f"attention whose weights sum to one has at least about {1 / math.sqrt(length):.1e} at {length} tokens. "
            f"Use favor, elu or softmax."
        )


def attention_floor(length: int) -> float:
    """Least ratio that passes for alive at that many tokens."""
    return DEAD_SHARE / math.sqrt(length)


@torch.no_grad()
def kernel_error(model: KernelDecoder, batch: Batch) -> float | None:
    """Mean over blocks of ‖favor − softmax‖ / ‖softmax‖ of attention outputs; None where it is no estimate."""
    if model.config.attention not in ("favor", "unscaled"):
        return None
    errors: list[float] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        assert isinstance(module, Attention)
        query, key, value = module.heads_of(inputs[0])
        exact = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        errors.append(float((module.mix(query, key, value) - exact).norm() / exact.norm()))

    handles = [b.attention.register_forward_hook(compare) for b in model.blocks if isinstance(b, DecoderBlock)]
    try:
        model(batch["input_ids"])
    finally:
        for handle in handles:
            handle.remove()
    return sum(errors) / len(errors)


@torch.no_grad()
def effective_rank(model: KernelDecoder, batch: Batch) -> float:
    """Effective rank of the centred states before the output layer, between 1 and the model's width."""
    before, model.returns_states = model.returns_states, True
    try:
        states = model(batch["input_ids"]).logits
    finally:
        model.returns_states = before
    flat = states.reshape(-1, states.shape[-1]).float().cpu()
    values = torch.linalg.svdvals(flat - flat.mean(dim=0))
    shares = values / values.sum()
    return float(torch.exp(-(shares * shares.clamp(min=1e-12).log()).sum()))
