"""Which counts of a model do claims depend on? Exact ones of an architecture on `meta`, and FLOP and bytes from them.

Shapes of the recipe `okadfa` count too. FLOP: one multiply-add is 2. Forward pass of a token 2 x matrix parameters plus
attention, 4 x layers x length x width (half of it where it is causal); a full training step does three such passes, one
with frozen weights two, one that recomputes its blocks one more (Chowdhery et al. 2022, appendix B).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from forerun.errors import UnknownModel
from forerun.extensions import ARCHITECTURES, extensions
from forerun.models.build import WORKLOADS, build_model
from forerun.models.catalogue import architecture, model_config
from forerun.settings.schema import AdapterSettings, Settings

BYTES_OF = {"float32": 4.0, "tfloat32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# bitsandbytes/functional.py:940 (0.50.2): double quantisation packs the constants of 256 blocks together.
NF4_BYTES, NF4_DOUBLE_BYTES, INT8_BYTES = 0.5 + 4 / 64, 0.5 + 1 / 64 + 4 / (64 * 256), 1.0
"""Bytes of a packed weight with constants: blocks of 64 (Dettmers et al. 2023, section 3); int8 without row scales."""


@dataclass(frozen=True)
class Linear:
    """One matrix of a model."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class ArchitectureCounts:
    """Counts of one architecture with its head."""

    name: str
    total: int
    """All parameters, each shared tensor once."""
    embedding: int
    """Parameters of the token embedding."""
    positions: int
    """Parameters of learned position embeddings."""
    head_is_tied: bool
    linears: tuple[Linear, ...]
    """All matrices but the output layer over the vocabulary."""
    convolutions: int
    layers: int
    width: int
    heads: int
    vocabulary: int
    has_logits: bool
    """Whether the model scores the vocabulary at every token."""
    is_causal: bool

    @property
    def untied(self) -> int:
        """All parameters with a shared embedding counted twice, as some papers do."""
        return self.total + (self.embedding if self.head_is_tied else 0)

    @property
    def non_embedding(self) -> int:
        """Parameters without token and position embeddings."""
        return self.total - self.embedding - self.positions

    @property
    def matrix_parameters(self) -> int:
        """Parameters that every token is multiplied by, the output layer included."""
        inner = sum(linear.inputs * linear.outputs for linear in self.linears)
        return inner + (self.vocabulary * self.width if self.has_logits else 0)

    def forward_flops(self, length: float) -> float:
        """FLOP of one token's forward pass in a sequence of `length` tokens."""
        attention = 4 * self.layers * length * self.width * (0.5 if self.is_causal else 1)
        return 2 * self.matrix_parameters + attention

    def adapter_parameters(self, adapter: AdapterSettings) -> int:
        """Trainable parameters that LoRA adds to its target matrices."""
        if adapter.kind == "none":
            return 0
        return sum(adapter.rank * (linear.inputs + linear.outputs) for linear in self.linears if _hit(linear, adapter))

    def weight_bytes(self, precision: str, quantization: str) -> float:
        """Bytes of the weights as stored: quantised matrices packed, all else in the precision's own format."""
        width = 4.0 if precision in ("fp32", "tf32") or precision.endswith("-mixed") else 2.0
        if quantization == "none":
            return width * self.total
        packed = sum(linear.inputs * linear.outputs for linear in self.linears)
        each = {"nf4": NF4_BYTES, "nf4-double": NF4_DOUBLE_BYTES, "int8": INT8_BYTES}[quantization]
        # transformers' bitsandbytes integration replaces linear layers only; embeddings and norms stay in 16 bits.
        return each * packed + 2.0 * (self.total - packed)


def _hit(linear: Linear, adapter: AdapterSettings) -> bool:
    return adapter.targets == "all-linear" or linear.name.rpartition(".")[2] in adapter.targets


def passes(settings: Settings) -> float:
    """Forward passes that a training step is worth."""
    base = 2.0 if settings.adapter.kind != "none" else 3.0
    return base + (1.0 if settings.activation_checkpointing == "blocks" else 0.0)


def architecture_of(settings: Settings) -> ArchitectureCounts:
    """Counts of the settings' model, with the head of their workload where that is a general one.

    Raises:
        UnknownModel: it is neither in the catalogue nor a shape of a recipe.
    """
    head = settings.workload if settings.workload in WORKLOADS else ""
    return count_architecture(settings.model.name, tuple(sorted(settings.model.config.items())), head)


@lru_cache(maxsize=64)
def count_architecture(name: str, overrides: tuple[tuple[str, Any], ...] = (), head: str = "") -> ArchitectureCounts:
    """Counts of a catalogue name, directory, hub id or shape; without `head` with the one of its published count.

    Raises:
        UnknownModel: none of these.
    """
    for extension in extensions(ARCHITECTURES).values():
        architecture_of_recipe = extension.load()(name, dict(overrides))
        if architecture_of_recipe is not None:
            return architecture_of_recipe
    config = model_config(name, dict(overrides), "eager")
    return _of_config(name, config, head or _published_head(name))


def _published_head(name: str) -> str:
    try:
        return architecture(name).parameters_of
    except UnknownModel:
        return "causal-lm"


def _of_config(name: str, config: Any, head: str) -> ArchitectureCounts:
    with torch.device("meta"):
        model: Any = build_model(config, head)
    tokens, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    linears = [
        (path, module) for path, module in model.named_modules()
        if module is not output and (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D")
    ]  # fmt: skip
    return ArchitectureCounts(
        name=name,
        total=sum(parameter.numel() for parameter in model.parameters()),
        embedding=tokens.numel(),
        positions=sum(p.numel() for path, p in model.named_parameters() if _is_positions(path)),
        head_is_tied=output is not None and output.weight is tokens,
        linears=tuple(Linear(path, *_sizes(module)) for path, module in linears),
        convolutions=sum(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in model.modules()),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=tokens.shape[0],
        has_logits=output is not None,
        is_causal=head == "causal-lm",
    )


def _is_positions(path: str) -> bool:
    return path.rpartition(".")[0].endswith(("wpe", "position_embeddings", "embed_positions"))


def _sizes(module: Any) -> tuple[int, int]:
    rows, columns = module.weight.shape
    # transformers/pytorch_utils.py:110 (5.23): Conv1D of GPT-2 stores inputs x outputs, the transpose of nn.Linear.
    return (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
