"""Context parallelism: the sequence of each row split over ranks, which pass each other's keys and values round.

A rank has the k-th and the k-th last of 2 × N equal pieces of every row, as PyTorch deals them (head-tail load
balance): under a causal mask every rank then has the same work. Positions and labels are cut alike, labels after they
were moved one to the left, so that a token at an edge still predicts the one after it. The attention is PyTorch's ring
attention (`torch.distributed.tensor.experimental`, 2.13), over the kernel that the device would take anyway: keys and
values of all ranks are gathered in the forward pass and again in the backward pass, and their gradients go round.

Weights and gradients are sharded over all ranks with rows or pieces of their own (`parallel.py`), as torchtitan has it.
Scoring and generating run whole sequences.

Not covered: packed and varying lengths, sliding windows shorter than the sequence, dropout, DDP.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.attention import HALF, OLDEST
from forerun.step.parallel import refuse_together, unwrapped
from forerun.step.precision import policy_of
from forerun.step.split_adapters import require_split_adapters

DIMENSION, ATTENTION, SHARED = "context", "context", "shared_sequence"
"""Dimension of the mesh; name under which transformers finds the attention; attribute of a model that has its share."""
SEQUENCE = 2
"""Dimension of the sequence in queries, keys and values: (batch, heads, sequence, width)."""
KERNELS = {
    "auto": ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"), "sdpa:flash": ("FLASH_ATTENTION",),
    "sdpa": ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"), "sdpa:cudnn": ("CUDNN_ATTENTION",),
    "sdpa:efficient": ("EFFICIENT_ATTENTION",),
}  # fmt: skip
"""Setting → names of `torch.nn.attention.SDPBackend`. Plain arithmetic is none: it would attend within a piece."""


def require_context_parallel(settings: Settings) -> None:
    """Refuse what does not go together with split sequences.

    Raises:
        NotSupported: naming the setting and the reason.
        InvalidSettings: the sequence cannot be cut into pieces of one length.
    """
    context, length = settings.parallel.context, settings.batch.sequence_length
    if context == 1:
        return
    obstacles = [
        ("workload", settings.workload != "causal-lm", "sequences are split for causal-lm, whose ranks then have equal "
         "work. Set parallel.context to 1"),
        ("batch.padding", settings.batch.padding != "fixed", "each rank has pieces of one length. Set it to fixed"),
        ("model.attention", settings.model.attention not in KERNELS, "PyTorch's ring attention has its flash, "
         "efficient and cuDNN kernels. Set it to auto"),
        ("quantization", settings.quantization != "none", "packed weights beside split sequences are not tested. Set "
         "it to none, or parallel.context to 1"),
        ("activation_offload", settings.activation_offload, "its copies beside ring attention are not modelled. Set it "
         "to false"),
        ("precision", settings.precision == "fp16-mixed", "loss scaling is not tested over split sequences. Set it to "
         "bf16-mixed"),
        ("versions", bool(settings.versions), "older libraries shift whole logits. Leave them out"),
    ]  # fmt: skip
    refuse_together(settings, "parallel.context", obstacles)
    require_split_adapters(settings, "parallel.context")
    pieces = 2 * context
    if length % pieces:
        near = [size for size in (length // pieces * pieces, -(-length // pieces) * pieces) if size]
        raise InvalidSettings(
            f"batch.sequence_length: 2 × parallel.context equal pieces; found {length} with parallel.context="
            f"{context}. Nearest: {', '.join(map(str, near))}."
        )


def share_sequences(model: nn.Module, settings: Settings, device_type: str) -> None:
    """Have `model` train on this rank's pieces of each sequence. A collective: all ranks must call it.

    Raises:
        NotSupported: its attention cannot be passed round.
    """
    bare: nn.Module = unwrapped(model)
    require_whole_attention(bare, settings)
    setattr(bare, SHARED, SharedSequence(settings, device_type))


def require_whole_attention(model: nn.Module, settings: Settings) -> None:
    """Refuse models whose tokens do not attend to all before them by transformers' own interface.

    Raises:
        NotSupported: naming what the model has instead.
    """
    config: Any = getattr(model, "config", None)
    length, name = settings.batch.sequence_length, type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    window = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    short = window is not None and window < length and (kinds or not getattr(config, "layer_types", None))
    strange = kinds - {"sliding_attention", "chunked_attention"}
    obstacles = [
        (getattr(config, "attn_logit_softcapping", None) is not None, "capped attention logits"),
        (short, f"attention within {window} of {length} tokens"),
        (bool(strange), f"layers of the kinds {', '.join(sorted(strange))}"),
        (not getattr(model, "_supports_attention_backend", False), "attention that transformers does not exchange"),
        (any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()), "dropout, which would differ by rank"),
        (bool(getattr(config, "attention_dropout", 0)), "dropout of attention, which would differ by rank"),
    ]
    reason = next((words for applies, words in obstacles if applies), None)
    if reason is not None:
        raise NotSupported(
            f"parallel.context: keys and values of all tokens before are passed round; {name} has {reason}; found "
            f"parallel.context={settings.parallel.context}. Set it to 1."
        )


def context_mesh(settings: Settings, device_type: str) -> Any:
    """The ranks that this one shares sequences with. A collective: all ranks must call it."""
    from torch.distributed.device_mesh import DeviceMesh

    parallel = settings.parallel
    grid = torch.arange(parallel.world_size, device="cpu").view(-1, parallel.context, parallel.tensor)
    groups = grid.transpose(1, 2).reshape(-1, parallel.context).tolist()
    own: Any = dist.new_subgroups_by_enumeration(groups)[0]
    return DeviceMesh.from_group(own, device_type, mesh_dim_names=(DIMENSION,))


class SharedSequence:
    """This rank's pieces of every sequence, and the attention that reaches those of the others."""

    def __init__(self, settings: Settings, device_type: str):
        self.mesh = context_mesh(settings, device_type)
        self._kernels, self._computes_in = KERNELS[settings.model.attention], policy_of(settings).compute_dtype
        self.is_active = False
        """Whether a step is being made; else sequences are whole."""

    def pieces(self, tensor: Tensor) -> Tensor:
        """Those of this rank, of a tensor with the sequence as dimension 1."""
        ranks, rank = self.mesh.size(), self.mesh.get_local_rank()
        size = tensor.shape[1] // (2 * ranks)
        # torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py (2.13), _HeadTailLoadBalancer
        return torch.cat([tensor.narrow(1, place * size, size) for place in (rank, 2 * ranks - 1 - rank)], dim=1)

    def inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Ids and positions of this rank's pieces of `ids` (B, T)."""
        return {"input_ids": self.pieces(ids), "position_ids": self.positions(ids.shape[1], ids.device)}

    def positions(self, length: int, device: torch.device) -> Tensor:
        """Those of this rank's pieces of `length` tokens, (1, T / ranks)."""
        return self.pieces(torch.arange(length, device=device)[None])

    @contextlib.contextmanager
    def during_step(self, model: nn.Module, capability: tuple[int, int] | None) -> Iterator[None]:
        """Around forward and backward passes: attention reaches all ranks, in recomputed blocks too."""
        from torch.distributed.tensor.experimental import _attention as experimental
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from transformers import AttentionInterface

        config: Any = model.config
        before, groups = config._attn_implementation, self._groups_heads(capability)
        AttentionInterface.register(ATTENTION, functools.partial(attend, self.mesh, groups))
        config._attn_implementation, self.is_active = ATTENTION, True
        experimental._enable_context_parallel_dispatcher()
        try:
            with sdpa_kernel([getattr(SDPBackend, name) for name in self._kernels]):
                yield
        finally:
            experimental._disable_context_parallel_dispatcher()
            config._attn_implementation, self.is_active = before, False

    def _groups_heads(self, capability: tuple[int, int] | None) -> bool:
        """Whether the kernel takes fewer key heads than query heads: flash does, memory-efficient does not."""
        is_flash = "FLASH_ATTENTION" in self._kernels or self._kernels == ("CUDNN_ATTENTION",)
        return is_flash and capability is not None and capability >= OLDEST and self._computes_in in HALF


def shared_sequence(model: nn.Module) -> SharedSequence | None:
    """How the ranks share sequences; None where each has whole ones, as in scoring."""
    shared: SharedSequence | None = getattr(model, SHARED, None)
    return shared if shared is not None and shared.is_active else None


def attend(
    mesh: Any,
    groups_heads: bool,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Causal attention as transformers calls it, of this rank's (B, H, T, D) to (B, T, H, D), over all ranks' keys."""
    from torch.distributed.tensor import DTensor, Shard

    if query.device.type == "cpu":
        result = _RingOnCpu.apply(mesh.get_group(), query, key, value, scaling)
        return result.transpose(1, 2).contiguous(), None
    if not groups_heads and key.shape[1] != query.shape[1]:
        copies = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(copies, dim=1) for tensor in (key, value))
    ours, keys, values = (
        DTensor.from_local(each, mesh, [Shard(SEQUENCE)], run_check=False) for each in (query, key, value)
    )
    result: Any = F.scaled_dot_product_attention(
        ours, keys, values, is_causal=True, scale=scaling, enable_gqa=key.shape[1] != query.shape[1]
    )
    return result.to_local().transpose(1, 2).contiguous(), None


class _RingOnCpu(torch.autograd.Function):
    """PyTorch's ring over its CPU kernel, which DTensor has no handler of."""

    @staticmethod
    def forward(ctx: Any, group: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """This rank's attention over the keys of all."""
        from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention

        result, logsumexp = _templated_ring_attention(
            group, SEQUENCE, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, query, key, value,
            is_causal=True, dropout_p=0.0, scale=scale,
        )  # fmt: skip
        ctx.save_for_backward(query, key, value, result, logsumexp)
        ctx.group, ctx.scale = group, scale
        return result

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        """Gradients of this rank's queries, keys and values."""
        from torch.distributed.tensor.experimental._context_parallel._attention import (
            _templated_ring_attention_backward,
        )

        query, key, value, result, logsumexp = ctx.saved_tensors
        gradients = _templated_ring_attention_backward(
            ctx.group, SEQUENCE, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            slopes[0].contiguous(), "grad_out", query, key, value, result, logsumexp, is_causal=True, dropout_p=0.0,
            scale=ctx.scale,
        )  # fmt: skip
        return None, *gradients[:3], None
