"""Blocks of a decoder dealt to the stages of a pipeline; each rank keeps its own, under their names in the whole model.

A block of another stage passes on what it is given. The first stage keeps the embedding, the last one the final norm
and the output layer.

Not covered: tied embeddings, models with learned positions.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.models.build import build_model, config_of
from forerun.settings.schema import Settings
from forerun.step.context_parallel import shared_sequence
from forerun.step.decoder_types import DECODER_TYPES
from forerun.step.parallel import unwrapped
from forerun.step.precision import policy_of
from forerun.step.split_adapters import require_layers_of_blocks

FAMILIES = DECODER_TYPES - {"falcon", "gpt2", "gpt_bigcode", "gpt_neo", "llama4_text", "mpt", "opt"}
"""`model_type`s whose stages were compared with the whole model; what others do around their blocks is not known."""
STAGES = "pipeline_stages"
"""Attribute of a model that was cut: its stages on this rank, by their places in the pipeline."""
IDS = "input_ids"
WORTH_IT = 0.97
"""Of the largest work of a rank, from which on blocks are not dealt evenly: then fewer stages are alike."""
_OUTPUT_BLOCKS: dict[tuple[str, int], float] = {}
"""By the model's settings and the length of sequences."""


class PassedOn(nn.Module):
    """Stands for a part of the model that another stage has."""

    def __init__(self, original: nn.Module):
        super().__init__()
        kind = getattr(original, "attention_type", None)  # which mask a block of transformers wants
        if kind is not None:
            self.attention_type = kind

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What came in."""
        return hidden_states


class StageModule(nn.Module):
    """One stage as the schedule calls it: token ids or hidden states in, hidden states or logits out."""

    def __init__(self, part: nn.Module, settings: Settings, device_type: str, is_first: bool, is_last: bool):
        super().__init__()
        self.part = part
        """A model of the same class, whose blocks of other stages pass on what they are given."""
        self.is_first, self.is_last = is_first, is_last
        self.is_cut = settings.parallel.tensor > 1 and settings.parallel.sequence_parallel
        """Whether ranks with split layers have a part of the sequence each, which is what stages send on."""
        self.length = 0
        """Tokens of the sequence before it was cut so."""
        self.arrived: Tensor | None = None
        """This rank's part, until the blocks take it."""
        self._policy, self._device_type = policy_of(settings), device_type

    def forward(self, states: Tensor) -> Tensor:
        """(batch, sequence) ids or (batch, sequence, width) → (batch, sequence, width or vocabulary).

        The sequence is this rank's pieces where it is split, and of these its part between stages, where they are cut.
        """
        part: Any = self.part
        length = states.shape[1]
        if self.is_cut and not self.is_first:
            self.arrived, length = states, self.length
            # masks and positions are those of the whole sequence, which takes no memory: the first block is of others
            states = states.new_empty(()).expand(len(states), length, states.shape[2])
        inputs = {IDS: states} if self.is_first else {"inputs_embeds": states}
        shared = shared_sequence(part)
        if shared is not None:
            inputs["position_ids"] = shared.positions(length * shared.mesh.size(), states.device)
        with self._policy.autocast(self._device_type):
            if self.is_last:
                return part(**inputs, use_cache=False).logits
            return part.base_model(**inputs, use_cache=False).last_hidden_state

    def take(self, *_: Any) -> Tensor:
        """The part that arrived, in place of what the first of all blocks passes on."""
        assert self.arrived is not None
        states, self.arrived = self.arrived, None
        return states


def place_of_blocks(model: nn.Module, settings: Settings) -> str:
    """Path of the list of blocks.

    Raises:
        NotSupported: the architecture is not one that can be cut, or its embedding is its output layer.
    """
    config: Any = model.config
    if config.model_type not in FAMILIES:
        raise NotSupported(
            f"parallel.pipeline: stages of {type(model).__name__} are not known to give what the whole model gives; "
            f"found parallel.pipeline={settings.parallel.pipeline}. Set it to 1 and shard with parallel.kind=fsdp."
        )
    if config.tie_word_embeddings:
        raise NotSupported(
            "parallel.pipeline: the first and the last stage would have to add up the gradient of one weight; found "
            f"tied embeddings in {type(model).__name__}. Set tie_word_embeddings: false in model.config, or "
            "parallel.pipeline to 1."
        )
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    return max(lists, key=lambda name: len(lists[name]))


def cut(model: nn.Module, settings: Settings, stage: int, device_type: str) -> list[StageModule]:
    """Leave the blocks of rank `stage` of the pipeline in `model`, in place; returns what it runs of them, in order.

    Raises:
        NotSupported: the architecture cannot be cut.
        InvalidSettings: it has fewer blocks than stages.
    """
    parallel = settings.parallel
    bare: Any = unwrapped(model)
    path = place_of_blocks(bare, settings)
    require_layers_of_blocks(bare, settings, "parallel.pipeline")
    count, places = parallel.pipeline * parallel.virtual_stages, places_on_rank(settings, stage)
    blocks: Any = bare.get_submodule(path)
    if len(blocks) < count:
        raise InvalidSettings(
            f"parallel.pipeline: each of its {count} stages has a block; found {len(blocks)} blocks in "
            f"{settings.model.name}. Set parallel.pipeline × parallel.virtual_stages to {len(blocks)} or less."
        )
    owner = block_owners(len(blocks), settings)
    parts = [
        StageModule(_part(bare, path, place, count, owner), settings, device_type, place == 0, place == count - 1)
        for place in places
    ]
    for number, block in enumerate(blocks):
        if owner[number] not in places:
            blocks[number] = PassedOn(block)
    backbone: Any = bare.get_submodule(path.rpartition(".")[0])
    if 0 not in places:
        bare.set_input_embeddings(PassedOn(bare.get_input_embeddings()))
    if count - 1 not in places:
        _drop_end(bare, backbone)
    setattr(bare, STAGES, dict(zip(places, parts, strict=True)))
    return parts


def places_on_rank(settings: Settings, stage: int) -> list[int]:
    """Stages of the pipeline that one rank of it holds: in turn, or back again where the schedule is a V."""
    ranks, virtual = settings.parallel.pipeline, settings.parallel.virtual_stages
    if settings.parallel.schedule == "zero-bubble":
        return [stage, 2 * ranks - 1 - stage]
    return [stage + ranks * number for number in range(virtual)]


def block_owners(blocks: int, settings: Settings) -> list[int]:
    """Stage of each block: evenly, what is left over to the stages in the middle; or by the work of ranks.

    The last stage has the output layer besides, which is worth several blocks where a vocabulary is large. Where the
    rank that has most to do has 3 % less so, blocks are dealt one by one to the rank that has least to do.
    """
    count = settings.parallel.pipeline * settings.parallel.virtual_stages
    holders = {place: rank for rank in range(settings.parallel.pipeline) for place in places_on_rank(settings, rank)}
    sizes = [blocks // count] * count
    begin = (count - blocks % count) // 2
    for number in range(begin, begin + blocks % count):
        sizes[number] += 1
    end = output_blocks(settings)

    def loads(of: Sequence[int]) -> list[float]:
        """Work of each rank, in blocks."""
        work = [0.0] * settings.parallel.pipeline
        for place, size in enumerate(of):
            work[holders[place]] += size
        work[holders[count - 1]] += end
        return work

    dealt = [1] * count
    for _ in range(blocks - count):
        work = loads(dealt)
        place = min(range(count), key=lambda p: (work[holders[p]], dealt[p], abs(2 * p - count + 1)))
        dealt[place] += 1
    best = dealt if max(loads(dealt)) < WORTH_IT * max(loads(sizes)) else sizes
    return [stage for stage, size in enumerate(best) for _ in range(size)]


def output_blocks(settings: Settings) -> float:
    """How many blocks the output layer is worth, by the products of a token in the forward pass."""
    key = settings.model.model_dump_json(), settings.batch.sequence_length
    if key not in _OUTPUT_BLOCKS:
        config = config_of(settings)
        with torch.device("meta"):
            model: Any = build_model(config, settings.workload)
        block = max((list(m) for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)[-1]
        # experts lie in one tensor, of which a token meets some
        shares = ((p, config.num_experts_per_tok / len(p) if p.dim() == 3 else 1) for p in block.parameters())
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        scores = settings.batch.sequence_length * config.num_attention_heads * width  # half of them, twice
        _OUTPUT_BLOCKS[key] = config.vocab_size * config.hidden_size / (sum(p.numel() * n for p, n in shares) + scores)
    return _OUTPUT_BLOCKS[key]


def first_blocks(settings: Settings) -> list[int]:
    """Number of the first block of each stage of the pipeline, by its place, and after the last of all blocks."""
    blocks, count = config_of(settings).num_hidden_layers, settings.parallel.pipeline * settings.parallel.virtual_stages
    owner = block_owners(blocks, settings)
    return [owner.index(place) for place in range(count)] + [blocks]


def stages_like(settings: Settings, stage: int) -> list[int]:
    """Rank `stage` of a pipeline and later ones that differ in their neighbours alone: blocks and links are alike."""
    parallel, per_machine = settings.parallel, settings.cluster.gpus_per_node
    last, ranks = parallel.pipeline - 1, parallel.world_size // parallel.pipeline
    if stage in (0, last) or parallel.schedule == "zero-bubble":
        return [stage]
    # the same links to its neighbours: as far into its machine, or all in one
    step = 1 if parallel.world_size <= per_machine else per_machine // math.gcd(ranks, per_machine)
    firsts = first_blocks(settings)
    values = config_of(settings).to_dict().values()
    by_block = [each for each in values if isinstance(each, list | tuple) and len(each) == firsts[-1]]

    def kinds(of: int) -> list[Any]:
        """Of each part: how far it lies behind the first one, how many blocks it has, and what these are."""
        spans = [(firsts[place], firsts[place + 1]) for place in places_on_rank(settings, of)]
        return [
            [start - spans[0][0], end - start, *(list(each[start:end]) for each in by_block)] for start, end in spans
        ]

    return [other for other in range(stage, last, step) if kinds(other) == kinds(stage)]


def _part(model: nn.Module, path: str, place: int, count: int, owner: Sequence[int]) -> nn.Module:
    """A model of the same class that shares the blocks of one stage with `model`, and passes on everything else."""
    part: Any = _shallow(model)
    backbone: Any = part
    for name in path.split(".")[:-1]:
        child = _shallow(getattr(backbone, name))
        backbone.add_module(name, child)
        backbone = child
    blocks: Any = _shallow(model.get_submodule(path))
    backbone.add_module(path.rpartition(".")[2], blocks)
    for number, block in enumerate(blocks):
        if owner[number] != place:
            blocks[number] = PassedOn(block)
    if place:
        part.set_input_embeddings(PassedOn(part.get_input_embeddings()))
    if place < count - 1:
        _drop_end(part, backbone)
    return part


def _shallow(module: nn.Module) -> nn.Module:
    """A module with the same children, parameters and hooks, in registers of its own."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if name.startswith("_") and isinstance(value, dict | set):
            vars(twin)[name] = value.copy()
    return twin


def _drop_end(model: Any, backbone: Any) -> None:
    """Pass on where the final norm and the output layer would be."""
    model.set_output_embeddings(PassedOn(model.get_output_embeddings()))
    for name, child in list(backbone.named_children()):
        if "norm" in type(child).__name__.lower():
            backbone.add_module(name, PassedOn(child))
