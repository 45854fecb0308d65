"""Expert parallelism: the experts of every mixture dealt over ranks that train on rows of their own.

The ranks of a group lie next to each other inside those that shard weights or split layers (data × context × tensor),
as in torchtitan and Megatron-LM. A rank sends each row to the rank that has its expert and gets the result back: two
all-to-all exchanges in the forward pass, two in the backward pass. What experts compute is the model's own code
(transformers' `use_experts_implementation`), over the rows that arrived, each with one expert. Their weights are
sharded over the ranks that hold the same ones, and their gradients summed over those; everything else is sharded over
all ranks.

A trace knows no routing: there every rank sends as many rows to each other rank as it keeps.

Not covered: capacities and dropped tokens, experts that are dealt and split, exchanges hidden behind shared experts.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.parallel import PIPELINE, REPLICATE, refuse_together, shard_placement

EXPERT, EXPERT_SHARD = "expert", "expert_shard"
"""Dimensions of the mesh of experts: ranks with different ones, and ranks with shards of the same ones."""
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
    over = (REPLICATE, EXPERT_SHARD) if settings.parallel.replicate > 1 else (EXPERT_SHARD,)
    place = shard_placement(mesh[EXPERT_SHARD].size())
    for module in modules.values():
        for name, weight in list(module.named_parameters(recurse=False)):
            own = distribute_tensor(weight, mesh[EXPERT], [Shard(0)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(own, requires_grad=weight.requires_grad))
        setattr(module, COUNT, getattr(module, COUNT) // ranks)
        module.forward = functools.partial(_over_ranks, mesh[EXPERT].get_group(), module, module.forward)
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


def _over_ranks(
    group: Any,
    module: nn.Module,
    compute: Callable[..., Tensor],
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    """What the experts of all ranks make of (tokens, width), with the experts of each token and their weights."""
    from torch.distributed._functional_collectives import all_to_all_single_autograd
    from torch.nn.utils.stateless import _reparametrize_module

    tokens, choices = top_k_index.shape
    own: int = getattr(module, COUNT)
    ids, order = torch.sort(top_k_index.reshape(-1), stable=True)
    outgoing, incoming, numbers = _routing(ids, own, group)
    rows = all_to_all_single_autograd(hidden_states[order // choices], incoming, outgoing, group)
    places = numbers.unsqueeze(-1)
    local = {name: weight.to_local() for name, weight in module.named_parameters(recurse=False)}  # type: ignore[operator]
    with _reparametrize_module(module, local):
        results = compute(rows, places, torch.ones_like(places, dtype=top_k_weights.dtype))
    back = all_to_all_single_autograd(results.contiguous(), outgoing, incoming, group)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    weighted = back[inverse].view(tokens, choices, -1) * top_k_weights.unsqueeze(-1)
    return weighted.sum(dim=1).to(hidden_states.dtype)


def _routing(ids: Tensor, own: int, group: Any) -> tuple[list[int], list[int], Tensor]:
    """Rows that go to each rank and that come from it, and which of this rank's experts each that comes is for.

    `ids` are the sorted experts of this rank's rows, of all ranks `own` each.
    """
    from torch.distributed._functional_collectives import all_to_all_single, wait_tensor

    ranks: int = group.size()
    counts = torch.zeros(ranks * own, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, ids, torch.ones_like(ids))
    from_all = wait_tensor(all_to_all_single(counts, None, None, group))
    both = torch.stack([counts.view(ranks, own).sum(1), from_all.view(ranks, own).sum(1)])
    on_host = both.cpu()  # the host waits here for the exchange, as it must know sizes
    if is_fake(ids):
        even = [len(ids) // ranks + (rank < len(ids) % ranks) for rank in range(ranks)]
        outgoing, incoming = even, even
    else:
        outgoing, incoming = on_host.tolist()
    expert = torch.arange(own, device=ids.device).repeat(ranks)
    return outgoing, incoming, torch.repeat_interleave(expert, from_all, output_size=sum(incoming))
