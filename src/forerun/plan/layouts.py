"""Which layouts can a number of GPUs take, and what is the least that each holds? Arithmetic; nothing is traced.

A layout is what `parallel` of the settings says: copies, shards, split layers, split sequences, dealt experts. Each
further way to spread a step is a field here, a loop in `layouts_of` and a factor of `least_bytes`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from forerun.errors import InvalidSettings
from forerun.forecasting.request import ForecastRequest
from forerun.settings.load import settings_from
from forerun.settings.schema import Settings
from forerun.step.build import prepare_model
from forerun.step.expert_parallel import COUNT, experts_of
from forerun.step.tensor_parallel import ARGUMENTS

LONG_SEQUENCE = 16384
"""Tokens from which on sequences are split over ranks too; a choice: shorter ones have enough rows for all ranks."""
MOST_STAGES = 16
"""Of a pipeline; the deepest in docs/clusters-measured.md has 16. Deeper ones are not searched."""
PARTS = (1, 2, 4)
"""Of the model on each stage."""
STATES = {"adamw": 2.0, "adamw-8bit": 0.5, "lion": 1.0, "sgd": 0.0}
"""Values of state for each trained one, at the least; other rules count none."""


ONCE_A_STEP = (2, 1)
"""Stages of ZeRO that gather weights once a step, the leaner first."""


@dataclass(frozen=True)
class StepShape:
    """What the operators of a rank's micro-batch depend on beside its size: how layers are split and kept."""

    kind: str
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    expert: int = 1


@dataclass(frozen=True)
class ClusterLayout:
    """One way to spread a step over GPUs."""

    kind: str
    """As `parallel.kind`."""
    data_ranks: int
    replicate: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    context: int = 1
    pipeline: int = 1
    virtual_stages: int = 1
    """Of a pipeline: 1 by 1F1B, more interleaved."""
    expert: int = 1
    """Neighbours that hold different experts."""
    zero: int = 0
    """Of `fsdp`: 2 gathers weights once a step, 1 sends gradients once too, 0 does both for each micro-batch."""

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.data_ranks * self.tensor * self.context * self.pipeline

    @property
    def shard(self) -> int:
        """Ranks that one set of weights is split over, beside `tensor`."""
        return self.data_ranks * self.context // self.replicate if self.kind == "fsdp" else 1

    @property
    def is_split(self) -> bool:
        """Whether ranks share layers or sequences, or send rows to the experts of others."""
        return self.tensor * self.context * self.expert > 1

    @property
    def shape(self) -> StepShape:
        """What layouts with the same operators share."""
        return StepShape(
            self.kind, self.tensor, self.sequence_parallel, self.context, self.pipeline, self.virtual_stages,
            self.expert,
        )  # fmt: skip

    @property
    def parallel(self) -> dict[str, Any]:
        """The section `parallel` of the settings."""
        split: dict[str, Any] = {}
        if self.tensor > 1:
            split = {"tensor": self.tensor, "sequence_parallel": self.sequence_parallel}
        if self.pipeline > 1:
            split |= {"pipeline": self.pipeline, "virtual_stages": self.virtual_stages}
            split["schedule"] = "interleaved" if self.virtual_stages > 1 else "1f1b"
        if self.kind == "none":
            return {"kind": "none", "world_size": self.tensor * self.pipeline, **split}
        if self.kind == "ddp":
            return {"data": self.data_ranks}
        pieces = {word: n for word, n in (("context", self.context), ("expert", self.expert)) if n > 1}
        rows = {"shard": self.data_ranks // self.replicate, "replicate": self.replicate}
        pieces |= {"zero": self.zero} if self.zero else {}
        return {"kind": "fsdp", **rows, **split, **pieces}

    @property
    def description(self) -> str:
        """The layout in words, factors of its GPUs."""
        words = {"none": [], "ddp": [f"data {self.data_ranks}"], "fsdp": [f"shard {self.shard // self.context}"]}[
            self.kind
        ]
        words += [f"replicate {self.replicate}"] if self.replicate > 1 else []
        words += [f"tensor {self.tensor}"] if self.tensor > 1 else []
        words += [f"context {self.context}"] if self.context > 1 else []
        words += [f"expert {self.expert}"] if self.expert > 1 else []
        if self.pipeline > 1:
            parts = f" of {self.virtual_stages} parts" if self.virtual_stages > 1 else ""
            words.append(f"pipeline {self.pipeline}{parts}")
        words += [f"ZeRO-{self.zero}"] if self.zero else []
        return (" × ".join(words) or "alone") + (" (sequence)" if self.sequence_parallel else "")


def with_layout(settings: Settings, layout: ClusterLayout, **changes: Any) -> Settings:
    """`settings` over the GPUs of `layout`, with further top-level `changes`.

    Raises:
        InvalidSettings: the result breaks a rule.
    """
    return settings_from(settings.model_dump() | {"parallel": layout.parallel | _program(settings, layout)} | changes)


def _program(settings: Settings, layout: ClusterLayout) -> dict[str, Any]:
    """Words of `parallel` that say how a program runs any layout."""
    parallel = settings.parallel
    words: dict[str, Any] = {"engine": parallel.engine} if parallel.engine != "pytorch" else {}
    if parallel.expert_overlap and layout.expert > 1:
        words["expert_overlap"] = True
    return words | ({"async_tensor": True} if parallel.async_tensor and layout.sequence_parallel else {})


def layouts_of(settings: Settings, gpus: int, experts: int = 0) -> Iterator[ClusterLayout]:
    """Layouts of `gpus` that are worth a look for a model of so many experts a block.

    Layers and sequences are split inside a machine only, not both; experts are dealt to its GPUs too. The stages of a
    pipeline hold whole layers, or layers split over two ranks or a machine. Sharding goes over all data ranks, over
    those of one machine, and over the number of machines half-way between. Where a rank has several rows of the global
    batch, weights may be gathered, and gradients sent, once a step, as Megatron always does.
    """
    for layout in _layouts(settings, gpus, experts):
        if settings.parallel.engine == "megatron":
            if layout.kind != "ddp":
                yield replace(layout, zero=int(layout.kind == "fsdp" and layout.pipeline == 1))
            continue
        yield layout
        is_repeated = layout.kind == "fsdp" and layout.pipeline == 1
        if is_repeated and settings.global_batch_size >= 2 * layout.data_ranks:
            yield from (replace(layout, zero=stage) for stage in ONCE_A_STEP)


def _layouts(settings: Settings, gpus: int, experts: int) -> Iterator[ClusterLayout]:
    near = min(gpus, settings.cluster.gpus_per_node)
    for tensor in (t for t in range(1, near + 1) if near % t == 0 and gpus % t == 0):
        ranks = gpus // tensor
        in_sequence = tensor > 1 and settings.batch.sequence_length % tensor == 0
        if ranks == 1:
            yield ClusterLayout("none", 1, 1, tensor, in_sequence)
            continue
        if tensor == 1:
            yield ClusterLayout("ddp", ranks)
        for shard in _shards(ranks, max(1, near // tensor)):
            yield ClusterLayout("fsdp", ranks, ranks // shard, tensor, in_sequence)
    for context in _contexts(settings, gpus, near):
        ranks = gpus // context
        yield ClusterLayout("fsdp", ranks, context=context)
        if ranks > 1 and near > context:
            yield ClusterLayout("fsdp", ranks, gpus // near, context=context)
    for expert in (n for n in _doublings(near) if experts and experts % n == 0 and gpus % n == 0):
        for shard in (s for s in _shards(gpus, near) if s % expert == 0):
            yield ClusterLayout("fsdp", gpus, gpus // shard, expert=expert)
    yield from _pipelines(settings, gpus, near)


def _pipelines(settings: Settings, gpus: int, near: int) -> Iterator[ClusterLayout]:
    """Pipelines of 2, 4 … stages; each stage has one part of the model, or two or four that take turns."""
    if settings.workload != "causal-lm" or settings.batch.padding != "fixed":
        return
    stages = [2**power for power in range(1, MOST_STAGES.bit_length()) if gpus % 2**power == 0]
    for pipeline, tensor, parts in itertools.product(stages, dict.fromkeys((1, 2, near)), PARTS):
        if near % tensor or gpus % (pipeline * tensor):
            continue
        ranks, in_sequence = gpus // (pipeline * tensor), tensor > 1 and settings.batch.sequence_length % tensor == 0
        kind = "fsdp" if ranks > 1 else "none"
        yield ClusterLayout(kind, ranks, 1, tensor, in_sequence, 1, pipeline, parts)


def _contexts(settings: Settings, gpus: int, near: int) -> list[int]:
    """Numbers of ranks of one machine to split sequences over, where these are long and of one length."""
    batch = settings.batch
    if settings.workload != "causal-lm" or batch.padding != "fixed" or batch.sequence_length < LONG_SEQUENCE:
        return []
    return [n for n in _doublings(near) if gpus % n == 0 and batch.sequence_length % (2 * n) == 0]


def _doublings(near: int) -> list[int]:
    """2, 4 … up to the GPUs of a machine."""
    return [2**power for power in range(1, near.bit_length()) if near % 2**power == 0]


def _shards(ranks: int, near: int) -> list[int]:
    """Numbers of ranks to shard over: all, those of a machine, and half-way between on the scale of doublings."""
    sizes = [near * 2**power for power in range(ranks.bit_length()) if ranks % (near * 2**power) == 0]
    own = [ranks, *([sizes[0], sizes[len(sizes) // 2]] if sizes else [])]
    return [size for size in dict.fromkeys(own) if size > 1]


@dataclass(frozen=True)
class ModelSize:
    """Numbers of a model that bounds are made of."""

    parameters: int
    trained: int
    divisible: dict[str, int]
    """What split layers must divide: word → number."""
    blocks: int = 0
    """That a pipeline can deal to its stages; 0 where none are counted."""
    experts: int = 0
    """Of a block; 0 where the model is no mixture that is known."""


def model_size(request: ForecastRequest) -> ModelSize:
    """Sizes of the model of `request`, built without weights.

    Raises:
        ForerunError: it cannot be built.
    """
    with torch.device("meta"):
        model: Any = prepare_model(request.settings, request.workload, pretrained=False)
    config = getattr(model.config, "get_text_config", lambda: model.config)()
    sizes = {word: getattr(config, name) for name, word in ARGUMENTS.items() if getattr(config, name, None)}
    return ModelSize(
        sum(p.numel() for p in model.parameters()),
        sum(p.numel() for p in model.parameters() if p.requires_grad),
        sizes,
        getattr(config, "num_hidden_layers", 0),
        min((getattr(module, COUNT) for module in experts_of(model).values()), default=0),
    )


def least_bytes(settings: Settings, layout: ClusterLayout, size: ModelSize) -> float:
    """Bytes of weights, gradients and optimizer state of one rank at the least; of a pipeline, of its mean stage."""
    width = 2.0 if settings.has_narrow_weights else 4.0
    stored = 0.5 if settings.quantization != "none" else width
    gradient = 0.0 if settings.optimizer.in_backward else width
    states = width * STATES.get(settings.optimizer.name, 0.0)
    trained = size.trained * (gradient + states)
    return (size.parameters * stored + trained) / (layout.shard * layout.tensor * layout.pipeline)


def indivisible(layout: ClusterLayout, size: ModelSize) -> str:
    """What of the model the layout cannot split or deal, in words; empty where it can."""
    parts = layout.pipeline * layout.virtual_stages
    if layout.pipeline > 1 and size.blocks < parts:
        return f"{size.blocks} blocks cannot be dealt to {parts} parts of a pipeline"
    for word, number in size.divisible.items():
        if number % layout.tensor:
            return f"{number} {word} cannot be divided by tensor={layout.tensor}"
    return ""


def require_searchable(settings: Settings) -> None:
    """Refuse settings whose ways over GPUs the search does not know.

    Raises:
        InvalidSettings: ZeRO, offloading, a pipeline, split sequences or dealt experts.
    """
    parallel = settings.parallel
    if parallel.zero or parallel.offload != "none" or parallel.pipeline * parallel.context * parallel.expert > 1:
        raise InvalidSettings(
            f"--gpus: chooses the layout itself; found parallel.zero={parallel.zero}, offload="
            f"{parallel.offload!r}, pipeline={parallel.pipeline}, context={parallel.context}, expert="
            f"{parallel.expert}. Leave them out."
        )


def counts_of(text: str) -> list[int]:
    """Numbers of GPUs of `8..1024` (doublings, the last one included), `8,24,64` or `64`.

    Raises:
        InvalidSettings: it is none of these.
    """
    try:
        if ".." in text:
            low, high = (int(part) for part in text.split(".."))
            counts = [low * 2**power for power in range(max(1, high).bit_length()) if low * 2**power < high] + [high]
            is_right = 1 <= low <= high
        else:
            counts = [int(part) for part in text.split(",")]
            is_right = min(counts) >= 1
    except ValueError:
        counts, is_right = [], False
    if not is_right:
        raise InvalidSettings(f"--gpus wants numbers of GPUs, as 8..1024 (doublings), 8,24,64 or 64; found {text!r}.")
    return sorted(set(counts))
