"""The step of NVIDIA's `run_squad.py`, which lambdal/deeplearning-benchmark times, as `forerun.forecast_step` takes it.

In fp16 the script asks apex for O2: weights, activations and gradients in fp16, Adam on fp32 copies of the weights. In
fp32 it takes a BertAdam of its own, parameter by parameter. Both clip by the norm of all gradients, which the host
waits for, and read the loss after each step. Sources: `PyTorch/LanguageModeling/BERT` of NVIDIA/DeepLearningExamples
and LambdaLabsML's fork, `run_squad.py`, `modeling.py` and `optimization.py`; the logs of the runs print the options.
"""

import torch
from torch import Tensor, nn

from forerun.models.library_import import import_library

SIZES = {
    "bert-base-uncased": {},
    "bert-large-uncased": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
    },
}  # fmt: skip
VOCABULARY = 30528
"""Padded to a multiple of 8, as the script does."""
LENGTH = 384
LOSS_SCALE = 2.0**16


def squad_training(*, model: str, batch: int, precision: str) -> tuple[nn.Module, object]:
    """A step of answering questions with BERT; `precision` is "fp16" (apex O2), "tf32" or "fp32"."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    transformers = import_library("transformers")
    config = transformers.BertConfig(vocab_size=VOCABULARY, attn_implementation="eager", **SIZES[model])
    network = transformers.BertForQuestionAnswering(config).train()
    if precision == "fp16":
        network.half()
    weights = list(network.parameters())
    update = HalfUpdate(weights) if precision == "fp16" else PlainUpdate(weights)
    ids, places = torch.zeros(batch, LENGTH, dtype=torch.long), torch.zeros(batch, dtype=torch.long)
    mask = torch.ones_like(ids)

    def step() -> None:
        outputs = network(input_ids=ids, token_type_ids=ids, attention_mask=mask)
        loss = sum(nn.functional.cross_entropy(logits, places) for logits in (outputs.start_logits, outputs.end_logits))
        assert isinstance(loss, Tensor)
        update.after(loss / 2)
        loss.item()

    return network, step


class HalfUpdate:
    """Scaled backward, gradients widened, clipped and given to Adam, whose weights are rounded to the network's."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.masters = [weight.detach().float().requires_grad_() for weight in weights]
        self.adam = torch.optim.Adam(self.masters, lr=0.0, fused=True)

    def after(self, loss: Tensor) -> None:
        """One update."""
        (loss.float() * LOSS_SCALE).backward()
        gradients = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(gradients, [_gradient(weight) for weight in self.weights])  # noqa: SLF001 - as apex
        clip(gradients)
        for master, gradient in zip(self.masters, gradients, strict=True):
            master.grad = gradient
        self.adam.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)  # noqa: SLF001
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.grad = master.grad = None


class PlainUpdate:
    """BertAdam: no bias correction, weight decay added to the step, one kernel for each operation."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.means = [torch.zeros_like(weight) for weight in weights]
        self.squares = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def after(self, loss: Tensor) -> None:
        """One update."""
        with torch.enable_grad():
            loss.backward()
        gradients = [_gradient(weight) for weight in self.weights]
        clip(gradients)
        norm = norm_of(list(self.weights))  # the script's second norm is of the weights
        for weight, gradient, mean, square in zip(self.weights, gradients, self.means, self.squares, strict=True):
            clipped = weight * 1.0 / norm  # and scales them
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            step = mean / (square.sqrt() + 1e-6)
            step += 0.01 * clipped
            clipped.add_(-0.0 * step)
            weight.grad = None


def norm_of(tensors: list[Tensor]) -> Tensor:
    """Norm of all values, which the host waits for."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))  # noqa: SLF001
    norm.item()
    return norm


def clip(gradients: list[Tensor]) -> None:
    """Scale gradients by their norm, in place; at the start of a fine-tuning it is over 1."""
    torch._foreach_mul_(gradients, 1 / norm_of(gradients))  # noqa: SLF001


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad
