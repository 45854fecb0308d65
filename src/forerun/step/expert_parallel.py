"""Expert parallelism: the experts of every mixture dealt over ranks that train on rows of their own.

The ranks of a group lie next to each other inside those that shard weights or split layers (data × context × tensor),
as in torchtitan and Megatron-LM. A rank sends each row to the ranks that have its experts and gets sums back, over
several machines in two stops: `expert_exchange.py`. What experts compute is the model's own code (transformers'
`use_experts_implementation`), over the rows that arrived, each with one expert. Their weights are sharded over the
ranks that hold the same ones, and their gradients summed over those; everything else is sharded over all ranks.

Not covered: experts that are dealt and split.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.expert_exchange import stops_of, through
from forerun.step.parallel import PIPELINE, REPLICATE, refuse_together, shard_placement

EXPERT, EXPERT_SHARD = "expert", "expert_shard"
"""Dimensions of the mesh of experts: ranks with different ones, and ranks with shards of the same ones."""
ON_THE_WAY = ("between_machines", "within_machine")
"""Dimensions of the mesh through which rows go to experts of several machines."""
COUNT = "num_experts"
"""Attribute of transformers' modules of experts."""
INPUTS = 4
"""What their forward pass is given: itself, rows, the experts of each, and their weights."""


def require_expert_parallel(settings: Settings) -> None:
    """Refuse what does not go together with experts over ranks.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    parallel = settings.parallel
    if parallel.expert == 1:
        return
    obstacles = [
        ("workload", settings.workload != "causal-lm", "experts are dealt for causal-lm. Set parallel.expert to 1"),
        ("adapter.kind", settings.adapter.kind != "none", "adapters of experts are not dealt. Set it to none"),
        ("quantization", settings.quantization != "none", "packed experts are not dealt. Set it to none"),
        ("precision", settings.precision == "fp16-mixed", "loss scaling does not look for infinities in the experts of "
         "other ranks. Set it to bf16-mixed"),
        ("versions", bool(settings.versions), "experts of older libraries are layers of their own. Leave them out"),
    ]  # fmt: skip
    refuse_together(settings, "parallel.expert", obstacles)


def experts_of(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that hold the weights of all experts of a block and route rows themselves, by their paths."""
    experts: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        weights, count = list(module.parameters(recurse=False)), getattr(module, COUNT, None)
        if weights and hasattr(module, "down_proj") and all(w.ndim > 1 and len(w) == count for w in weights):
            inputs = inspect.signature(type(module).forward).parameters
            if len(inputs) == INPUTS:  # llama4's are given rows that were copied for every expert
                experts[name] = module
    return experts


def deal_experts(model: nn.Module, settings: Settings, device_type: str, options: dict[str, Any]) -> None:
    """Leave this rank's experts in `model`, in place, and shard them; `options` are FSDP's of the rest of the model.

    A collective: all ranks must call it. On `meta` nothing is ever held whole. A stage of a pipeline may have none.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    modules, ranks = experts_of(model), settings.parallel.expert
    mesh = mesh_of_experts(settings, device_type)
    groups = _groups_on_the_way(settings, mesh)
    over = (REPLICATE, EXPERT_SHARD) if settings.parallel.replicate > 1 else (EXPERT_SHARD,)
    place = shard_placement(mesh[EXPERT_SHARD].size())
    for module in modules.values():
        for name, weight in list(module.named_parameters(recurse=False)):
            own = distribute_tensor(weight, mesh[EXPERT], [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(own, requires_grad=weight.requires_grad))
        setattr(module, COUNT, getattr(module, COUNT) // ranks)
        module.forward = functools.partial(over_ranks, groups, module, module.forward)
        sharded: Any = fully_shard(module, mesh=mesh[over], shard_placement_fn=place, **options)
        # rows of a whole group come to an expert, so its gradient is that of more ranks than reduce it
        sharded.set_gradient_divide_factor(float(settings.parallel.data_ranks * settings.parallel.context))
        # gloo has no operation that divides before it sums; FSDP divides twice where one rank "sums"
        # (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:628 and :686, 2.13)
        sharded.set_force_sum_reduction_for_comms(mesh[EXPERT_SHARD].size() > 1)


def mesh_of_experts(settings: Settings, device_type: str) -> Any:
    """The ranks by which experts they hold; those of one group lie next to each other."""
    from torch.distributed.device_mesh import init_device_mesh

    parallel = settings.parallel
    sizes = {
        PIPELINE: parallel.pipeline, REPLICATE: parallel.replicate,
        EXPERT_SHARD: parallel.world_size // parallel.pipeline // parallel.replicate // parallel.expert,
        EXPERT: parallel.expert,
    }  # fmt: skip
    own = {name: size for name, size in sizes.items() if size > 1 or name not in (PIPELINE, REPLICATE)}
    return init_device_mesh(device_type, tuple(own.values()), mesh_dim_names=tuple(own))


def _groups_on_the_way(settings: Settings, mesh: Any) -> list[Any]:
    """Groups through which rows come to their experts: over machines first where these are whole and several."""
    from torch.distributed.device_mesh import init_device_mesh

    ranks, near = settings.parallel.expert, settings.cluster.gpus_per_node
    if ranks <= near or ranks % near or near == 1:
        return [mesh[EXPERT].get_group()]
    sizes = settings.parallel.world_size // ranks, ranks // near, near
    machines = init_device_mesh(mesh.device_type, sizes, mesh_dim_names=("rest", *ON_THE_WAY))
    return [machines[name].get_group() for name in ON_THE_WAY]


def require_experts(model: nn.Module, settings: Settings) -> None:
    """Refuse a model whose experts cannot be dealt.

    Raises:
        NotSupported: the model is no mixture of experts that is known.
        InvalidSettings: its experts cannot be divided by the number of ranks.
    """
    modules, ranks = experts_of(model), settings.parallel.expert
    if not modules:
        raise NotSupported(
            f"parallel.expert: deals the experts of a mixture; {type(model).__name__} has none that are known; found "
            f"parallel.expert={ranks}. Set it to 1."
        )
    for module in modules.values():
        count: int = getattr(module, COUNT)
        if count % ranks:
            fitting = [n for n in range(1, count + 1) if count % n == 0]
            near = [max(n for n in fitting if n < ranks), *[n for n in fitting if n > ranks][:1]]
            raise InvalidSettings(
                f"parallel.expert: divides the number of experts; found {ranks} with {count} of "
                f"{type(model).__name__}. Nearest: {', '.join(map(str, near))}."
            )


def over_ranks(
    groups: Sequence[Any],
    module: nn.Module,
    compute: Callable[..., Tensor],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """What the experts of all ranks make of (tokens, width), with the experts of each token and their weights."""
    from torch.nn.utils.stateless import _reparametrize_module

    stops = stops_of(groups, getattr(module, COUNT), top_k_index.shape[1])
    local = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}  # type: ignore[operator]
    with _reparametrize_module(module, local):
        return through(stops, compute, hidden_states, top_k_index.long(), top_k_weights)
