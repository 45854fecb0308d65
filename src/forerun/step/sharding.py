"""A model over the ranks of a mesh: its blocks dealt to stages, its layers split, its parameters sharded by FSDP2."""

import logging
import warnings
from typing import Any

import torch
from torch import nn

from forerun.settings.schema import Settings
from forerun.step.context_parallel import share_sequences
from forerun.step.expert_parallel import deal_experts, require_experts
from forerun.step.parallel import (
    PIPELINE,
    REPLICATE,
    SHARD,
    TENSOR,
    innermost_first,
    is_self_contained,
    shard_placement,
    transformer_blocks,
)
from forerun.step.pipeline_stages import StageModule, cut
from forerun.step.precision import policy_of
from forerun.step.tensor_parallel import split


def shard(model: nn.Module, settings: Settings, mesh: Any) -> nn.Module:
    """Cut stages and split layers in place, then shard parameters, block by block and the rest.

    On `meta` nothing is ever held whole.

    Raises:
        NotSupported, InvalidSettings: the layers or sequences of the model cannot be split, or dealt to stages.
    """
    if settings.parallel.expert > 1:
        require_experts(model, settings)
    if settings.parallel.context > 1:
        share_sequences(model, settings, mesh.device_type)
    parts: list[tuple[nn.Module, nn.Module]] = [(model, model)]
    if settings.parallel.pipeline > 1:
        stages = cut(model, settings, mesh.get_local_rank(PIPELINE), mesh.device_type)
        parts = [(stage.part, stage) for stage in stages]
    for part, root in parts:
        _shard_part(part, root, settings, mesh)
    return model


def _shard_part(model: nn.Module, root: nn.Module, settings: Settings, mesh: Any) -> None:
    """The same of what one stage has; `root` is the module that is run."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    if settings.parallel.tensor > 1:
        split(model, settings, mesh[TENSOR], root if isinstance(root, StageModule) else None)
    if settings.parallel.kind != "fsdp":
        return
    # logits of a head or the last block's output are views; nothing of the model writes into them
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    over = (REPLICATE, SHARD) if settings.parallel.replicate > 1 else (SHARD,)

    policy = policy_of(settings)
    mixed = MixedPrecisionPolicy()
    if policy.autocast_dtype is not None:
        mixed = MixedPrecisionPolicy(param_dtype=policy.autocast_dtype, reduce_dtype=torch.float32)
    # Stages stay gathered between micro-batches, as torchtitan 0.2.2 has it (distributed/parallel_dims.py and
    # models/llama3/infra/parallelize.py: reshard_after_forward "default").
    reshard: dict[str, Any] = {"reshard_after_forward": False} if settings.parallel.keeps_gathered else {}
    if settings.parallel.offload == "parameters":
        reshard["offload_policy"] = CPUOffloadPolicy(pin_memory=False)  # forecast only: nothing virtual is pinned
    if settings.parallel.expert > 1:
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # that norms take two steps
        deal_experts(model, settings, mesh.device_type, {"mp_policy": mixed, **reshard})
    place = shard_placement(mesh[SHARD].size())
    # from the inside out: FSDP2 gives each parameter to the first group that claims it, and the rest to the root
    blocks = innermost_first([block for block in transformer_blocks(model) if is_self_contained(block, model)])
    for module in (*blocks, root):
        fully_shard(module, mesh=mesh[over], mp_policy=mixed, shard_placement_fn=place, **reshard)
