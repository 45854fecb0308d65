"""One rank of a data-parallel step: DDP, or FSDP2 with every transformer block sharded.

The same code in each process of a real group and, on the virtual GPU, in one process whose peers do not exist. The
default process group must be there. DDP keeps gradients as views of its buckets and sends them once for each optimizer
step; FSDP2 gathers a block's weights in the compute dtype when it is needed, frees them after, and reduces gradients
in fp32 under mixed precision.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings

PIPELINE, REPLICATE, SHARD, TENSOR = "pipeline", "replicate", "shard", "tensor"
"""Dimensions of the mesh of ranks."""
MATRICES = 3
"""Dimensions of a weight that holds several matrices."""
SHARDED_OPTIMIZERS = ("adamw", "sgd")
"""Rules that work on shards: element by element."""


MEGATRON_SCHEDULES = ("1f1b", "interleaved")


def refuse_unsupported(settings: Settings) -> None:
    """Refuse what cannot be sharded.

    Raises:
        NotSupported: FSDP with weights in 8 bits, or with an optimizer that looks at whole matrices; layouts that are
            compiled in a way that is not built; what Megatron-Core has no parts for.
    """
    _refuse_compiled(settings)
    if settings.parallel.engine == "megatron":
        refuse_together(
            settings, "parallel.engine",
            [
                ("workload", settings.workload != "causal-lm", "its parts are known for causal-lm"),
                ("adapter.kind", settings.adapter.kind != "none", "its adapters are others than peft's"),
                ("quantization", settings.quantization != "none", "it has no packed weights"),
                ("cross_entropy", settings.cross_entropy != "full", "its own loss has whole logits"),
                ("parallel.offload", settings.parallel.offload != "none", "what it offloads is not modelled"),
                ("parallel.schedule", settings.parallel.schedule not in MEGATRON_SCHEDULES, "its schedules are "
                 f"{' and '.join(MEGATRON_SCHEDULES)}"),
            ],
        )  # fmt: skip
    if settings.parallel.kind != "fsdp":
        return
    if settings.quantization == "int8":
        raise NotSupported(
            "parallel.kind: bitsandbytes stores weights of 4 bits in a dtype that FSDP can shard, and those of 8 bits "
            "in none; found 'fsdp' with quantization='int8'. Set quantization to nf4, or parallel.kind to ddp."
        )
    if settings.optimizer.name not in SHARDED_OPTIMIZERS:
        raise NotSupported(
            f"optimizer.name: FSDP updates shards, so the rule must work element by element; found "
            f"{settings.optimizer.name!r}. Use {' or '.join(SHARDED_OPTIMIZERS)}, or set parallel.kind to ddp."
        )


def _refuse_compiled(settings: Settings) -> None:
    """Refuse ways of compiling that layouts of several ranks do not go together with."""
    layout = settings.parallel
    ways = {
        "kind": layout.kind == "fsdp", "tensor": layout.tensor > 1, "pipeline": layout.pipeline > 1,
        "context": layout.context > 1,
    }  # fmt: skip
    if settings.compile == "none" or not any(ways.values()):
        return
    is_recorded = settings.compile == "reduce-overhead" and layout.engine == "megatron"
    beside = next(f"parallel.{way}" for way, applies in ways.items() if applies)
    refuse_together(settings, beside, [
        ("compile_unit", settings.compile_unit == "model", "ranks exchange between compiled graphs. Set compile_unit "
         "to blocks, or compile to none"),
        ("compile", settings.compile != "default" and not is_recorded, "CUDA graphs read at fixed addresses, and what "
         "ranks gather is made anew for each block. Set compile to default"),
    ])  # fmt: skip
    if layout.schedule == "zero-bubble" and layout.pipeline > 1:
        raise NotSupported(
            f"parallel.schedule: 'zero-bubble' takes a backward pass apart, and that of a compiled graph is one; found "
            f"compile={settings.compile!r}. Set it to 1f1b, or compile to none."
        )
    length = settings.batch.sequence_length
    if layout.sequence_parallel and length % layout.tensor:
        below = length // layout.tensor * layout.tensor
        near = ", ".join(str(size) for size in (below, below + layout.tensor) if size)
        raise InvalidSettings(
            f"batch.sequence_length: compiled blocks have equal parts of a sequence, so a multiple of "
            f"parallel.tensor={layout.tensor}; found {length}. Nearest: {near}."
        )
    if layout.tensor > 1 and settings.activation_checkpointing == "blocks":
        raise NotSupported(
            f"activation_checkpointing: PyTorch 2.13 fails to compile blocks over split layers that are computed again "
            f"as a whole; found 'blocks' with compile={settings.compile!r} and parallel.tensor={layout.tensor}. Set it "
            f"to selective, or compile to none."
        )


def refuse_together(settings: Settings, beside: str, obstacles: Iterable[tuple[str, bool, str]]) -> None:
    """Refuse the first of `obstacles` that applies: (setting, whether it applies, why it does not go with `beside`).

    Raises:
        NotSupported: naming both settings with their values, and the reason.
    """
    for name, applies, reason in obstacles:
        if applies:
            value, other = (attrgetter(path)(settings) for path in (name, beside))
            raise NotSupported(f"{name}: found {value!r} with {beside}={other}: {reason}.")


def require_group(settings: Settings) -> None:
    """A step over several ranks needs its process group.

    Raises:
        NotSupported: there is none.
    """
    if not settings.parallel.is_alone and not dist.is_initialized():
        raise NotSupported(
            f"parallel.kind: {settings.parallel.kind!r} trains in {settings.parallel.world_size} processes, and this "
            f"one is alone. Start it with forerun train --nproc {settings.parallel.world_size}."
        )


def mesh_of_ranks(settings: Settings, device_type: str) -> Any:
    """The ranks by what they share, those that are split most innermost; None where no tensor is split.

    Sizes of dimensions that are 1 are left out: FSDP2 takes one dimension to shard over, or two to replicate too.
    """
    parallel = settings.parallel
    sizes = {
        PIPELINE: parallel.pipeline, REPLICATE: parallel.replicate,
        SHARD: parallel.shard_ranks, TENSOR: parallel.tensor,
    }  # fmt: skip
    own = {name: size for name, size in sizes.items() if size > 1}
    if parallel.kind == "fsdp":
        own = {name: size for name, size in sizes.items() if size > 1 or name == SHARD}
    if parallel.kind == "ddp" or not own:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, tuple(own.values()), mesh_dim_names=tuple(own))


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks: what transformers declares unsplittable, else the members of the longest module list."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    declared = [module for module in model.modules() if type(module).__name__ in names]
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return declared or list(max(lists, key=len, default=[]))


def innermost_first(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks in their order, but each behind those that lie inside it, as in diffusers' UNets."""
    every = set(blocks)
    return sorted(blocks, key=lambda block: len(every.intersection(block.modules())))


def shard_placement(ranks: int) -> Callable[[nn.Parameter], Any]:
    """FSDP2's `shard_placement_fn`: weights over `ranks` ranks along their first dimension, or the next that divides.

    All experts of a block are one weight with an entry for each. Split along these, a few ranks hold whole experts and
    the others nothing. torchtitan 0.2.2 has the same rule (`models/llama4/infra/parallelize.py`). Dimensions along
    which layers are split already are left alone.
    """
    from torch.distributed.tensor import Shard

    def place(weight: nn.Parameter) -> Any:
        own = local(weight)
        if own.ndim < MATRICES or len(own) >= ranks:
            return None
        split = {layout.dim for layout in getattr(weight, "placements", ()) if not layout.is_replicate()}
        free = (n for n in range(1, own.ndim) if n not in split)
        return next((Shard(n) for n in free if own.shape[n] % ranks == 0), None)

    return place


def is_self_contained(block: nn.Module, model: nn.Module) -> bool:
    """Whether no module outside `block` has a parameter of it; FSDP2 wants tied ones in one group."""
    inside, own = {id(module) for module in block.modules()}, {id(p) for p in block.parameters()}
    outside = (module for module in model.modules() if id(module) not in inside)
    return not any(id(p) in own for module in outside for p in module.parameters(recurse=False))


def replicate(model: nn.Module, *, is_real: bool) -> nn.Module:
    """Wrap `model` in DDP; a model without values (not `is_real`) has nothing to compare with its peers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)  # 2.13; 2.11 has no other
        return nn.parallel.DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True, init_sync=is_real
        )


def replica(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """DDP around the model, compiled or not; None without it."""
    inner = getattr(model, "_orig_mod", model)  # torch.compile's
    return inner if isinstance(inner, nn.parallel.DistributedDataParallel) else None


def holding_gradients(model: Any, settings: Settings, *, is_last: bool) -> contextlib.AbstractContextManager[Any]:
    """Context of one micro-step: DDP sends its gradients in the last one only, as does FSDP at ZeRO's stage 1.

    At stages 1 and 2 FSDP keeps what it gathered until the end of the last one.
    """
    if settings.parallel.keeps_gathered and settings.parallel.pipeline == 1:  # whose stages do so themselves
        model.set_reshard_after_backward(is_last)
        model.set_requires_gradient_sync(is_last or settings.parallel.zero != 1)
    replicated = replica(model)
    return contextlib.nullcontext() if replicated is None or is_last else replicated.no_sync()


def unsent_gradients(model: nn.Module) -> list[Tensor]:
    """Gradients of gathered weights that FSDP2 sums over micro-batches before it sends them, of the whole weights."""
    from torch.distributed.fsdp import FSDPModule

    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    # torch/distributed/fsdp/_fully_shard/_fsdp_param.py:181 (2.13)
    groups = [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
    sums = [parameter.unsharded_accumulated_grad for group in groups for parameter in group.fsdp_params]
    return [each for each in sums if each is not None]


def mean_over_ranks(count: Any, settings: Settings, device_type: str) -> Any:
    """Mean of a number or scalar tensor over ranks.

    Gradients are averaged over ranks, so a sum divided by the mean count counts globally.
    """
    if settings.parallel.is_alone:
        return count
    counted = count.clone() if isinstance(count, Tensor) else torch.full((), count, device=device_type)
    dist.all_reduce(counted)
    return counted / settings.parallel.world_size


def unwrapped(model: Any) -> Any:
    """The model itself, inside what replicates it, compiles it or adapts it."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # torch.compile's
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):  # peft's
            return model.get_base_model()
        else:
            return model


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded, outside autograd, of which `to_local` is part."""
    return getattr(tensor, "_local_tensor", tensor)


def by_mesh(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Parameters by the ranks that they are split over: no operator takes tensors of two meshes at once."""
    groups: dict[Any, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; a collective, so every rank must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


def of_all_ranks(value: Any) -> list[Any]:
    """The `value` of every rank, in their order; a collective, so every rank must call it."""
    if not dist.is_initialized():
        return [value]
    boxes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(boxes, value)
    return boxes
