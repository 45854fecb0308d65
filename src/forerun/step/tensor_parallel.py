"""Tensor parallelism: the linear layers of every block split over ranks, by the plan that the architecture brings.

transformers' models say how each linear layer is split (`tp_plan`): by columns, or by rows of the one that follows.
Here PyTorch's DTensor does it, so that FSDP2 can shard what is left over the other ranks. The embedding is split by
rows of its vocabulary, the output layer by columns of it, and its logits stay split: cross-entropy exchanges three
numbers a token instead of the logits. With `parallel.sequence_parallel` what lies between the split layers, norms and
residuals, is split along the sequence: its activations are a part, and an all-reduce becomes a reduce-scatter and an
all-gather.

Parameters that are not split are replicated on the same mesh, so that optimizers and norms of gradients see one kind of
tensor.

Compiled, it is block by block, and the loss over split logits stays plain.

LoRA's matrices are split beside their layers (`split_adapters.py`), mixtures of experts in `expert_tensor_parallel.py`.

Layers that pack several (Phi-3's query, key and value) or whose heads are normalised together (OLMo 2) keep their
weights split and give whole outputs, as their plans say: every rank then computes all heads.

Not covered: DeepSeek's compressed keys, other adapters, quantised weights, dropout, DDP.
"""

import contextlib
import fnmatch
import functools
import logging
from collections.abc import Callable, Container
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.expert_tensor_parallel import EXPERTS, split_mixtures
from forerun.step.float8 import cast_before_gather, split_float8
from forerun.step.optimizer import BITSANDBYTES
from forerun.step.parallel import refuse_together, unwrapped
from forerun.step.pipeline_stages import PassedOn, StageModule
from forerun.step.split_adapters import parts_of, require_layers_of_blocks, require_split_adapters

COLUMNS, ROWS, HEADS = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""Styles of a plan: a layer's output is split, its input is, or it works on each head alone."""
GATHERED, CUT = "colwise_gather_output", "rowwise_split_input"
"""Layers whose weights are split and whose outputs are not: packed, or normalised as a whole."""
ENDS = (GATHERED, "colwise_rep", "embedding_rowwise")
"""Styles of the output layer and of the embedding."""
SEQUENCE = Shard(1)
"""Activations are (batch, sequence, width)."""
HIDDEN = "hidden_states"
"""Keyword by which transformers' blocks give their parts what these work on."""
ARGUMENTS = {
    "num_attention_heads": "attention heads", "num_key_value_heads": "key-value heads",
    "intermediate_size": "intermediate channels",
}  # fmt: skip


def require_tensor_parallel(settings: Settings) -> None:
    """Refuse what does not go together with split layers.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    if settings.parallel.tensor == 1:
        return
    obstacles = [
        ("parallel.kind", settings.parallel.kind == "ddp", "DDP takes no parameters that are split already. Set "
         "parallel.kind to fsdp; parallel.replicate says how many copies of the shards there are"),
        ("quantization", settings.quantization != "none", "packed weights cannot be split. Set it to none, or "
         "parallel.tensor to 1"),
        ("cross_entropy", settings.cross_entropy != "full", "logits are split over ranks already. Set it to full"),
        ("model.kernels", settings.model.kernels != "none", "fused kernels know no split layers. Set it to none"),
        ("parallel.offload", settings.parallel.offload != "none" and settings.parallel.kind != "fsdp", "the host has "
         "parts of split layers from FSDP alone. Set it to parameters with parallel.shard above 1, or to none"),
        ("workload", settings.workload != "causal-lm", "tensor parallelism is built for causal-lm. Set parallel.tensor "
         "to 1"),
        ("optimizer.name", settings.optimizer.name == "adafactor", "PyTorch's Adafactor cannot factor a split "
         "matrix in place. Set it to adamw"),
        ("optimizer.name", settings.optimizer.name in BITSANDBYTES, "bitsandbytes updates whole tensors, not "
         "parts of split ones. Set it to adamw"),
        ("activation_offload", settings.activation_offload, "PyTorch copies whole tensors to the host, not parts of "
         "split ones. Set it to false"),
        ("precision", settings.precision == "fp16-mixed", "loss scaling does not look for infinities in the parts of "
         "other ranks. Set it to bf16-mixed"),
    ]  # fmt: skip
    refuse_together(settings, "parallel.tensor", obstacles)
    require_split_adapters(settings, "parallel.tensor")


def split(model: nn.Module, settings: Settings, mesh: Any, stage: StageModule | None = None) -> nn.Module:
    """Split the layers of `model` in place over the 1-D `mesh`; on `meta` nothing is ever held whole.

    Every rank must hold the same weights before. `stage` runs the model where it is one of a pipeline: between stages
    the sequence stays cut.

    Raises:
        NotSupported: the architecture has no plan, or one with a style that is not built.
        InvalidSettings: its heads or channels cannot be divided by the number of ranks.
    """
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # that norms take two steps
    bare: Any = unwrapped(model)
    plan = plan_of(bare, settings)
    require_divisible(bare, mesh.size())
    require_layers_of_blocks(bare, settings, "parallel.tensor")
    sequence = settings.parallel.sequence_parallel
    input_layer, output_layer = bare.get_input_embeddings(), bare.get_output_embeddings()
    is_tied = output_layer is not None and getattr(output_layer, "weight", None) is getattr(input_layer, "weight", 0)
    blocks = blocks_of(bare)
    mixtures = split_mixtures(bare, settings, mesh)
    styles, parents = _styles(bare, plan, settings, mixtures)
    layout = SEQUENCE if sequence else Replicate()
    if sequence:
        _require_split_attention(bare, parents)
    for parent, readers in parents.items():
        if parent in blocks:
            raise NotSupported(
                f"parallel.tensor: a block of {type(bare).__name__} splits layers outside its attention and its "
                f"feed-forward part, which this version cannot. Set parallel.tensor to 1."
            )
        gather = functools.partial(_gather, mesh, layout, cast_before_gather(readers))
        parent.register_forward_pre_hook(gather, with_kwargs=True, prepend=True)
    if sequence:
        # compiled blocks share graphs while their inputs are alike, and a cut keeps the strides of the whole
        if stage is None or stage.is_first:
            cut = functools.partial(_cut, mesh, settings.compile != "none")
            blocks[0].register_forward_pre_hook(cut, with_kwargs=True)
        else:
            blocks[0].register_forward_hook(stage.take)
    for module, style in styles.items():
        parallelize_module(module, mesh, style, src_data_rank=None)
    if sequence and (stage is None or stage.is_last):
        (_final_norm(bare) or blocks[-1]).register_forward_hook(functools.partial(_join, mesh))  # after its style's
    if output_layer in styles:
        output_layer.register_forward_hook(_whole_in_evaluation)  # after that of its style, which wants a DTensor
    if settings.compile != "none" and input_layer in styles:
        # its sum over ranks is not waited for yet, and a graph gives what is not the gradient of a plain tensor (2.13)
        input_layer.register_forward_hook(lambda _module, _inputs, output: output.clone())
    if is_tied and output_layer is not None:
        output_layer.weight = input_layer.weight
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_settle)
    return model


def _styles(
    model: nn.Module, plan: dict[str, str], settings: Settings, mixtures: Container[nn.Module]
) -> tuple[dict[nn.Module, ParallelStyle], dict[nn.Module, list[nn.Module]]]:
    """How each module with weights is split, and the layers split by columns by the module that they are in.

    Modules inside `mixtures` are left out. What else is in a module that gathers the sequence has the whole of it.
    """
    bare: Any = model
    between = SEQUENCE if settings.parallel.sequence_parallel else Replicate()
    input_layer, output_layer = bare.get_input_embeddings(), bare.get_output_embeddings()
    styles: dict[nn.Module, ParallelStyle] = {}
    parents: dict[nn.Module, list[nn.Module]] = {}
    inside = {id(part) for block in [*blocks_of(model), _final_norm(model)] if block for part in block.modules()}
    for name, module in model.named_modules():
        style = next((s for pattern, s in plan.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if isinstance(module, PassedOn) or module in mixtures or module in styles:  # of a layer with adapters
            continue
        layer, downs, ups = parts_of(module)
        if module is output_layer:
            styles[module] = ColwiseParallel(use_local_output=False)
        elif module is input_layer:
            styles[module] = _embedding_style(module, settings)
        elif style in (COLUMNS, GATHERED):
            ends: dict[str, Any] = {"output_layouts": Replicate()} if style == GATHERED else {}
            styles[layer] = (split_float8(layer, COLUMNS) or ColwiseParallel)(**ends)
            styles |= {down: _Whole() for down in downs} | {up: ColwiseParallel(**ends) for up in ups}
            parents.setdefault(model.get_submodule(name.rpartition(".")[0]), []).append(module)
        elif style in (ROWS, CUT):
            starts: dict[str, Any] = {"input_layouts": Replicate()} if style == CUT else {}
            styles[layer] = (split_float8(layer, ROWS) or RowwiseParallel)(output_layouts=between, **starts)
            styles |= {down: RowwiseParallel(output_layouts=between, **starts) for down in downs}
            styles |= {up: _Replicated(between) for up in ups}
        elif style == HEADS:
            styles[module] = _Replicated(Shard(2))
        elif any(True for _ in module.parameters(recurse=False)):
            is_cut = id(module) in inside and model.get_submodule(name.rpartition(".")[0]) not in parents
            styles[module] = _Replicated(between if is_cut else Replicate())
    return styles, parents


def _embedding_style(module: nn.Module, settings: Settings) -> ParallelStyle:
    is_plain = type(module).forward is nn.Embedding.forward
    if settings.parallel.engine == "megatron" and is_plain:
        return _VocabularyPart()
    return RowwiseParallel(input_layouts=Replicate())


def plan_of(model: nn.Module, settings: Settings) -> dict[str, str]:
    """Module path, with `*` for numbers, → style.

    Raises:
        NotSupported: there is none, or one with a style that is not built.
    """
    plan: dict[str, str] = dict(getattr(model, "tp_plan", None) or {})
    names = [name for name, _ in model.named_modules()]
    own = {p: s for p, s in plan.items() if any(fnmatch.fnmatchcase(name, p) for name in names)}
    if not set(own.values()).difference(ENDS):
        raise NotSupported(
            f"parallel.tensor: {type(model).__name__} has no plan for its blocks in transformers; found "
            f"parallel.tensor={settings.parallel.tensor}. Set it to 1 and shard with parallel.kind=fsdp."
        )
    unknown = sorted({style for style in own.values() if style not in (COLUMNS, ROWS, HEADS, EXPERTS, CUT, *ENDS)})
    if unknown:
        raise NotSupported(
            f"parallel.tensor: splits linear layers by columns and rows; {type(model).__name__} also has layers of the "
            f"styles {', '.join(unknown)}. Set parallel.tensor to 1 and shard with parallel.kind=fsdp."
        )
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()):
        raise NotSupported(
            f"parallel.tensor: dropout would differ between ranks where activations are whole; found some in "
            f"{type(model).__name__}. Set its rates to 0 in model.config."
        )
    return own


def _require_split_attention(model: nn.Module, parents: Container[nn.Module]) -> None:
    """Refuse attention without split layers where a rank has a part of the sequence.

    Raises:
        NotSupported: naming the part of a block.
    """
    for block in blocks_of(model):
        for name, part in block.named_children():
            if name.endswith("attn") and any(True for _ in part.parameters()) and part not in parents:
                raise NotSupported(
                    f"parallel.sequence_parallel: attention sees the whole sequence where its layers are split; found "
                    f"{type(part).__name__}, which the plan of {type(model).__name__} does not split. Set "
                    f"parallel.sequence_parallel to false."
                )


def require_divisible(model: nn.Module, ranks: int) -> None:
    """Refuse a number of ranks that does not divide heads or channels.

    Raises:
        InvalidSettings: naming the nearest numbers that do.
    """
    config: Any = getattr(model.config, "get_text_config", lambda: model.config)()
    sizes = {word: getattr(config, name) for name, word in ARGUMENTS.items() if getattr(config, name, None)}
    for word, size in sizes.items():
        if size % ranks:
            fitting = [n for n in range(1, size + 1) if all(s % n == 0 for s in sizes.values())]
            below = max(n for n in fitting if n < ranks)
            above = [n for n in fitting if n > ranks][:1]
            raise InvalidSettings(
                f"parallel.tensor: divides all heads and channels; found {ranks} with {size} {word}. Nearest: "
                f"{', '.join(map(str, [below, *above]))}."
            )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks, in order: those that write text, where a model sees as well."""
    writes: nn.Module = getattr(model, "get_decoder", lambda: model)() or model
    lists = [module for module in writes.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len))


def _final_norm(model: nn.Module) -> nn.Module | None:
    """The module that works on each token after the last block; None where it is not known to be the only one."""
    blocks = blocks_of(model)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and blocks[0] in list(module)]
    backbone: Any = next(module for module in model.modules() if lists[0] in list(module.children()))
    ends = (lists[0], backbone.get_input_embeddings())
    others = [each for each in backbone.children() if each not in ends and any(True for _ in each.parameters())]
    is_norm = len(others) == 1 and all(parameter.dim() == 1 for parameter in others[0].parameters())
    return others[0] if is_norm else None


def split_loss(settings: Settings) -> contextlib.AbstractContextManager[Any]:
    """Around forward and backward passes whose logits are split over ranks."""
    return loss_parallel() if settings.parallel.tensor > 1 else contextlib.nullcontext()


class _Whole(ParallelStyle):
    """Parameters that every rank holds, of a module between DTensors."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            tensor = distribute_tensor(parameter, device_mesh, [Replicate()], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(tensor, requires_grad=parameter.requires_grad))
        return module


class _VocabularyPart(ParallelStyle):
    """An embedding of which each rank looks up its own rows, the gradient being of those alone.

    Source: Megatron-Core 0.16, `VocabParallelEmbedding` (`tensor_parallel/layers.py`). PyTorch's own style (2.13) makes
    the gradient of the whole vocabulary on every rank.
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        embedding: Any = module
        rows, whole = embedding.num_embeddings, embedding.weight
        own = distribute_tensor(whole, device_mesh, [Shard(0)], src_data_rank=None)
        embedding.register_parameter("weight", nn.Parameter(own, requires_grad=whole.requires_grad))
        begin = device_mesh.get_local_rank() * -(-rows // device_mesh.size())

        def look_up(ids: Tensor) -> Tensor:
            weight = embedding.weight.to_local()
            is_elsewhere = (ids < begin) | (ids >= begin + len(weight))
            own_ids = (ids - begin).masked_fill(is_elsewhere, 0)
            part = F.embedding(own_ids, weight).masked_fill(is_elsewhere.unsqueeze(-1), 0.0)
            split_sum = DTensor.from_local(part, device_mesh, [Partial()], run_check=False)
            return split_sum.redistribute(placements=[Replicate()]).to_local()

        embedding.forward = look_up
        return module


class _Replicated(_Whole):
    """The same of a module whose local input lies as `layout` says, and its output too."""

    def __init__(self, layout: Any):
        super().__init__()
        self.layout = layout

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        super()._apply(module, device_mesh)
        module.register_forward_pre_hook(self._distribute(device_mesh))
        module.register_forward_hook(lambda _module, _inputs, output: output.to_local())
        return module

    def _distribute(self, mesh: Any) -> Callable[..., Any]:
        def distribute(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            if not inputs:
                raise NotSupported(
                    f"parallel.tensor: whole parts of a block take what they work on first; found "
                    f"{type(module).__name__}, which is called by keywords. Set parallel.tensor to 1."
                )
            return (DTensor.from_local(inputs[0], mesh, [self.layout], run_check=False), *inputs[1:])

        return distribute


def _gather(
    mesh: Any,
    layout: Any,
    cast: Callable[[Any], Any],
    module: nn.Module,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Give a module with layers split by columns the whole of what it works on.

    As one DTensor for all of them, so that their gradients are added before they are exchanged.
    """

    def whole_input(tensor: Tensor) -> DTensor:
        return cast(DTensor.from_local(tensor, mesh, [layout], run_check=False)).redistribute(placements=[Replicate()])

    if inputs:
        return (whole_input(inputs[0]), *inputs[1:]), keywords
    return inputs, {**keywords, HIDDEN: whole_input(keywords[HIDDEN])}


def _cut(mesh: Any, is_copied: bool, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """This rank's part of the sequence, from the first block on."""

    def part(tensor: Tensor) -> Tensor:
        whole_sequence = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
        own = whole_sequence.redistribute(placements=[SEQUENCE]).to_local()
        return own.clone(memory_format=torch.contiguous_format) if is_copied else own

    if inputs:
        return (part(inputs[0]), *inputs[1:]), keywords
    return inputs, {**keywords, HIDDEN: part(keywords[HIDDEN])}


def _join(mesh: Any, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """The whole sequence, after the last block."""
    first = output[0] if isinstance(output, tuple) else output
    part = DTensor.from_local(first, mesh, [SEQUENCE], run_check=False)
    joined = part.redistribute(placements=[Replicate()]).to_local()
    return (joined, *output[1:]) if isinstance(output, tuple) else joined


def _whole_in_evaluation(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    """Logits are split in training only."""
    return output if module.training or not isinstance(output, DTensor) else output.full_tensor()


def _settle(parameter: Any) -> None:
    """Add up a gradient of which every rank has its own part; FSDP2 does so itself."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)
