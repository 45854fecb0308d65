"""Mixtures of experts beside split layers: what ranks that train on the same rows do of them.

Alone (`parallel.expert` 1), each expert is split as a dense feed-forward part is: gate and up by columns, down by rows.
Every rank routes all tokens and computes its part of each expert; the parts are added up. torchtitan 0.2.2 does so
(`TensorParallel` in distributed/expert_parallel.py), and Megatron-Core where `--expert-tensor-parallel-size` is not
said.

Dealt (`parallel.expert` above 1), each expert is whole on one rank of a group, and groups are taken from shard ×
context × tensor. A rank routes and sends tokens of its own: its part of the sequence with
`parallel.sequence_parallel`, else its share of all tokens, whose results are gathered. torchtitan's
`expert_tensor_parallel_degree=1` and Megatron-Core's `--expert-tensor-parallel-size 1` deal them so; torchtitan gathers
the sequence before its router.

Routers are whole on every rank, which has a part of their gradient each way: they are added up. Shared experts are
split where the plan of the architecture says so. All of it works on plain tensors, this rank's part of each weight.

Compiled, each part with weights is a break in the graph of its block, and is compiled by itself.

Not covered: experts that are dealt and split, biases of experts, float8 in shared experts.
"""

import fnmatch
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.expert_parallel import COUNT, experts_of

COLUMNS, ROWS, PACKED = "colwise", "rowwise", "packed_colwise"
"""Styles of a plan: split by outputs, by inputs, or by outputs of two matrices of which one follows the other."""
EXPERTS = "moe_tp_experts"
"""Style of the module that holds all experts of a block."""
HALVES = 2
"""Matrices in a packed weight: gate and up."""


def split_mixtures(model: nn.Module, settings: Settings, mesh: Any) -> set[nn.Module]:
    """Split the mixtures of `model` in place over the 1-D `mesh`; returns all modules inside them.

    Raises:
        NotSupported: a mixture that is not known, or one with a part that the plan does not split.
        InvalidSettings: channels that cannot be divided by the number of ranks.
    """
    plan: dict[str, str] = dict(getattr(model, "tp_plan", None) or {})
    experts = experts_of(model)
    for name, module in model.named_modules():
        if _style(plan, name) == EXPERTS and module not in experts.values() and any(True for _ in module.parameters()):
            raise _refusal(model, f"experts of the kind {type(module).__name__}, which are not known")
    inside: set[nn.Module] = set()
    for path in experts:
        mixture = _Mixture(model, path.rpartition(".")[0], plan, settings, mesh)
        _split_mixture(mixture)
        inside.update(mixture.module.modules())
    return inside


@dataclass(frozen=True)
class _Mixture:
    """A mixture of one block, and how it is split."""

    model: nn.Module
    path: str
    plan: dict[str, str]
    settings: Settings
    mesh: Any

    @property
    def module(self) -> nn.Module:
        """Routes tokens to experts."""
        return self.model.get_submodule(self.path)

    @property
    def is_dealt(self) -> bool:
        """Whether each expert is whole on one rank of a group."""
        return self.settings.parallel.expert > 1

    @property
    def is_sequence(self) -> bool:
        """Whether a rank has a part of the sequence between split layers."""
        return self.settings.parallel.sequence_parallel

    def parts(self) -> Iterator[tuple[str, nn.Module, bool]]:
        """Modules with weights: path in the model, module, and whether it holds experts."""
        experts = set(experts_of(self.module).values())
        for name, module in self.module.named_modules(prefix=self.path):
            if any(True for _ in module.parameters(recurse=False)):
                yield name, module, module in experts


def _split_mixture(mixture: _Mixture) -> None:
    shared: set[str] = set()
    for name, module, is_experts in list(mixture.parts()):
        if is_experts and mixture.is_dealt:
            continue  # dealt over other ranks, after this
        style = _style(mixture.plan, name)
        if is_experts:
            layouts = _layouts_of_experts(mixture, name, module)
        elif style in (COLUMNS, ROWS):
            layouts = _layouts_of_linear(mixture, module, style)
            shared.add(name.rpartition(".")[0])
        else:
            _require_router(mixture, name, module)
            layouts = {key: Replicate() for key, _ in module.named_parameters(recurse=False)}
        _distribute(mixture, name, module, layouts)
    if not mixture.is_dealt:
        _replace(mixture.module, _with_parts, mixture.mesh, Shard(1) if mixture.is_sequence else Replicate())
        return
    for name in shared:
        _replace(mixture.model.get_submodule(name), _with_parts, mixture.mesh, None)
    if not mixture.is_sequence:
        _replace(mixture.module, _with_own_tokens, mixture.mesh)


def _layouts_of_experts(mixture: _Mixture, name: str, module: nn.Module) -> dict[str, Any]:
    """Placement of each weight (experts, outputs, inputs) over the ranks that split layers."""
    is_usual = not getattr(module, "is_transposed", False) and getattr(module, "is_concatenated", True)
    layouts: dict[str, Any] = {}
    for key, weight in module.named_parameters(recurse=False):
        style = _style(mixture.plan, f"{name}.{key}")
        if weight.ndim != 3 or not is_usual or style not in (PACKED, COLUMNS, ROWS):
            raise _refusal(mixture.model, f"{key} of {type(module).__name__}, which its plan does not split")
        layouts[key] = {PACKED: _StridedShard(1, split_factor=HALVES), COLUMNS: Shard(1), ROWS: Shard(2)}[style]
    return layouts


def _layouts_of_linear(mixture: _Mixture, module: nn.Module, style: str) -> dict[str, Any]:
    if type(module) is not nn.Linear:
        raise _refusal(mixture.model, f"shared experts of {type(module).__name__}")
    if style == ROWS and module.bias is not None:
        raise _refusal(mixture.model, "shared experts with a bias behind the sum over ranks")
    return {"weight": Shard(0 if style == COLUMNS else 1), **({"bias": Shard(0)} if module.bias is not None else {})}


def _require_router(mixture: _Mixture, name: str, module: nn.Module) -> None:
    """Refuse a part that is neither split nor whole by its nature: its output would be added once for each rank."""
    count = next(getattr(experts, COUNT) for experts in experts_of(mixture.module).values())
    if not mixture.is_dealt and any(len(weight) not in (1, count) for weight in module.parameters(recurse=False)):
        raise _refusal(mixture.model, f"{name.rpartition('.')[2]} of a mixture, which its plan does not split")


def _refusal(model: nn.Module, what: str) -> NotSupported:
    return NotSupported(
        f"parallel.tensor: splits mixtures of experts by the plan of the architecture; {type(model).__name__} has "
        f"{what}. Set parallel.tensor to 1 and deal the experts with parallel.expert."
    )


def _style(plan: dict[str, str], name: str) -> str | None:
    return next((style for pattern, style in plan.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _distribute(mixture: _Mixture, name: str, module: nn.Module, layouts: dict[str, Any]) -> None:
    """Make parameters DTensors, with which the module computes as plain tensors."""
    ranks: int = mixture.mesh.size()
    for key, weight in list(module.named_parameters(recurse=False)):
        layout = layouts[key]
        if not layout.is_replicate():
            _require_divisible(f"{name}.{key}", weight.shape[layout.dim] // getattr(layout, "split_factor", 1), ranks)
        tensor = distribute_tensor(weight, mixture.mesh, [layout], src_data_rank=None)
        module.register_parameter(key, nn.Parameter(tensor, requires_grad=weight.requires_grad))
    _replace(module, _with_local_weights, module)


def _require_divisible(name: str, size: int, ranks: int) -> None:
    if size % ranks:
        fitting = [n for n in range(1, size + 1) if size % n == 0]
        near = [max(n for n in fitting if n < ranks), *[n for n in fitting if n > ranks][:1]]
        raise InvalidSettings(
            f"parallel.tensor: divides the channels of each expert; found {ranks} with {size} of {name}. Nearest: "
            f"{', '.join(map(str, near))}. Dealt experts (parallel.expert) are not split."
        )


def _replace(module: Any, forward: Callable[..., Any], *arguments: Any) -> None:
    """Put `forward` around what `module` computes: it is given `arguments`, that, and the inputs."""
    # Dynamo guards on what a partial binds: it would compile each block anew, and gives up after eight
    module.forward = torch.compiler.disable(functools.partial(forward, *arguments, module.forward), recursive=False)


def _with_local_weights(module: nn.Module, compute: Callable[..., Any], *inputs: Any, **keywords: Any) -> Any:
    """The same with this rank's parts of the weights; gradients of whole ones are parts, to be added up."""
    from torch.nn.utils.stateless import _reparametrize_module

    local: dict[str, Tensor] = {}
    for name, weight in module.named_parameters(recurse=False):
        own: Any = weight
        gradient = [Partial() if layout.is_replicate() else layout for layout in own.placements]
        local[name] = own.to_local(grad_placements=gradient)
    with _reparametrize_module(module, local):
        return compute(*inputs, **keywords)


def _with_parts(mesh: Any, layout: Any, compute: Callable[..., Any], states: Tensor, *inputs: Any) -> Any:
    """What parts of experts make of all tokens, added up over ranks.

    `states` lie as `layout` says, (batch, sequence, width); without one each rank has tokens of its own, (…, tokens,
    width).
    """
    own = layout or Shard(states.ndim - 2)
    gathered = DTensor.from_local(states, mesh, [own], run_check=False).redistribute(placements=[Replicate()])
    output = compute(gathered.to_local(grad_placements=[Partial()]), *inputs)
    first = output[0] if isinstance(output, tuple) else output
    part = DTensor.from_local(first, mesh, [Partial()], run_check=False)
    added = part.redistribute(placements=[own]).to_local()
    return (added, *output[1:]) if isinstance(output, tuple) else added


def _with_own_tokens(mesh: Any, compute: Callable[..., Any], states: Tensor, *inputs: Any) -> Any:
    """What a mixture makes of (batch, sequence, width) that every rank has: each computes a share of the tokens."""
    tokens = states.reshape(1, -1, states.shape[-1])
    own = DTensor.from_local(tokens, mesh, [Replicate()], run_check=False).redistribute(placements=[Shard(1)])
    output = compute(own.to_local(), *inputs)
    first = output[0] if isinstance(output, tuple) else output
    share = DTensor.from_local(
        first.contiguous(), mesh, [Shard(1)], run_check=False, shape=tokens.shape,
        stride=torch.empty(tokens.shape, device="meta").stride(),
    )  # fmt: skip
    gathered = share.redistribute(placements=[Replicate()]).to_local().view(states.shape)
    return (gathered, *output[1:]) if isinstance(output, tuple) else gathered
