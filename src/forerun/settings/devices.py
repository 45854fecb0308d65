"""How a run is spread over devices, and what machines they are in."""

import math
from typing import Any, Literal

from pydantic import model_validator

from forerun.settings.section import Count, PlainSection, Ranks

LAYOUT = {"data", "shard", "replicate", "tensor", "pipeline", "context"}
"""Words of `parallel` that multiply to a number of devices."""


LATER_WORDS = {
    "replicate": 1, "tensor": 1, "sequence_parallel": False, "pipeline": 1, "schedule": "1f1b", "virtual_stages": 1,
    "context": 1, "expert": 1, "async_tensor": False, "engine": "pytorch",
    "expert_overlap": False, "zero_buckets": "deepspeed",
}  # fmt: skip
"""Fields of `parallel` that came after hashes had been stored, which leave them out at these values."""


class ParallelSettings(PlainSection):
    """How a run is spread over devices."""

    kind: Literal["none", "ddp", "fsdp"] = "none"
    """How ranks that train on rows of their own share the model: each has a copy, or a shard."""
    world_size: Ranks = 1
    """Devices."""
    replicate: Ranks = 1
    """Copies of the shards with `kind: fsdp` (HSDP): the ranks that rows are dealt to are split into so many groups."""
    tensor: Ranks = 1
    """Ranks over which every layer is split (tensor parallelism); they train on the same rows."""
    sequence_parallel: bool = False
    """With `tensor`: norms and residuals are split along the sequence over the same ranks."""
    async_tensor: bool = False
    """With `sequence_parallel`: what ranks of `tensor` exchange goes in parts beside the products next to it, as
    asynchronous tensor parallelism of PyTorch and Megatron's `--tp-comm-overlap` do. Forecast; not trained."""
    engine: Literal["pytorch", "megatron"] = "pytorch"
    """Whose program runs the layout. Megatron-Core's products add to the sums of gradients, its loss over split logits
    is one kernel, split layers gather again in the backward pass, weights are cast to float8 once a step, and stages
    hold what arrived until it was used; its fused layers are taken as compiled blocks that eager modules launch, or
    CUDA graphs with `compile: reduce-overhead`. Forecast; not trained."""
    expert_overlap: bool = False
    """With `engine: megatron`: rows go to experts and back beside the passes of another micro-batch, as Megatron's
    `--overlap-moe-expert-parallel-comm` has it. Forecast; not trained."""
    pipeline: Count = 1
    """Stages that the layers are dealt to, one after the other (pipeline parallelism); the micro-batches that go
    through them are those of `batch.gradient_accumulation_steps`."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    """Order of the passes of a pipeline, as `torch.distributed.pipelining` has it; zero-bubble is its ZBV."""
    virtual_stages: Count = 1
    """Parts of the model that each stage holds, for schedules that interleave them."""
    context: Ranks = 1
    """Ranks over which the sequence of each row is split (context parallelism); they shard weights together."""
    expert: Ranks = 1
    """Ranks over which the experts of a mixture are dealt; they lie inside those that shard weights or split layers."""
    zero: Literal[0, 1, 2, 3] = 0
    """Stage of ZeRO: 1 splits optimizer state and fp32 weights over ranks, 2 gradients too, 3 also the weights that are
    computed with. With `kind: ddp` DeepSpeed's. With `kind: fsdp`, which is 3 where nothing is said, ranks then gather
    weights once a step, and at 1, as Megatron's distributed optimizer, send gradients once."""
    zero_buckets: Literal["deepspeed", "auto"] = "deepspeed"
    """Sizes of the buckets of DeepSpeed's ZeRO: its own defaults, or those that the Trainer fills in where its
    configuration says `auto` (by `hidden_size`)."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What lives in host memory and is updated there: torchao's `CPUOffloadOptimizer` on one device, ZeRO-Offload.
    `parameters`, with DeepSpeed's ZeRO-3 or as FSDP2's `CPUOffloadPolicy`: the weights' parts too, which are copied to
    the device before each use."""

    @model_validator(mode="before")
    @classmethod
    def _count_devices(cls, value: Any) -> Any:
        """A layout, `data` or `shard` ranks beside others, says strategy and devices too."""
        if not isinstance(value, dict):
            return value
        is_plain = all(value.get(name, 1) == 1 for name in LAYOUT) or value.get("world_size", 1) != 1
        if is_plain and not {"data", "shard"} & value.keys():
            return value  # data ranks are what is left of the devices
        rest = {name: number for name, number in value.items() if name not in ("data", "shard")}
        if {"data", "shard"} <= value.keys() and value["data"] != 1 != value["shard"]:
            raise ValueError(
                f"parallel.data: ranks with a copy each, where parallel.shard has ranks with a shard each; found "
                f"{value['data']} and {value['shard']}. Copies of shards are parallel.replicate."
            )
        name = "data" if value.get("data", 1) != 1 else "shard"
        factors = [value.get(name, 1), *(rest.get(word, 1) for word in ("replicate", "context", "tensor", "pipeline"))]
        if not all(isinstance(factor, int) and factor >= 1 for factor in factors):
            raise ValueError(f"parallel.{name}: a number of ranks, 1 or more; found {factors[0]!r}.")
        shares = factors[:3] != [1, 1, 1] or (factors[3] != 1 and rest.get("expert", 1) != 1)
        kind = "ddp" if name == "data" else "fsdp" if shares else "none"
        devices = math.prod(factors)
        for key, own in (("kind", kind), ("world_size", devices)):
            if rest.get(key, own) not in (own, "none", 1):
                raise ValueError(
                    f"parallel.{key}: follows from the layout, which makes it {own!r}; found {rest[key]!r}. "
                    "Leave it out."
                )
        return {**rest, "kind": kind, "world_size": devices}

    @property
    def data_ranks(self) -> int:
        """Ranks that train on rows of their own."""
        return self.world_size // self.model_ranks

    @property
    def model_ranks(self) -> int:
        """Ranks that train on the same rows."""
        return self.context * self.tensor * self.pipeline

    @property
    def shard_ranks(self) -> int:
        """Ranks that one set of weights is sharded over with `kind: fsdp`."""
        return self.data_ranks * self.context // self.replicate

    @property
    def deepspeed_stage(self) -> int:
        """Stage of DeepSpeed's ZeRO; 0 without it."""
        return 0 if self.kind == "fsdp" else self.zero

    @property
    def splits_weights(self) -> bool:
        """Whether each rank keeps a part of the weights and gathers the others' before it uses them."""
        return self.kind == "fsdp" or self.deepspeed_stage == 3

    @property
    def keeps_gathered(self) -> bool:
        """Whether FSDP gathers weights once a step, and not for each micro-batch."""
        return self.kind == "fsdp" and (self.zero in (1, 2) or self.pipeline > 1)

    @property
    def is_alone(self) -> bool:
        """Whether one process without a group trains."""
        return self.kind == "none" and self.world_size == 1


class ClusterSettings(PlainSection):
    """Machines that the devices are in."""

    gpus_per_node: Count = 8
    """Devices of one machine."""
    network: str | dict[str, Any] = "auto"
    """What joins machines: a name that `forerun networks` lists, a file of nccl-tests output, or `{kind, adapters,
    gigabit_per_second}`, also `{like: NAME, nccl_tests: FILE}`. `auto` takes what is usual for the GPU, and says so."""


def layout_conflicts(p: ParallelSettings) -> list[tuple[bool, str]]:
    """The same, of ranks alone."""
    near = max(p.model_ranks, round(p.world_size / p.model_ranks) * p.model_ranks)
    several, holders = ("interleaved", "zero-bubble"), p.shard_ranks * p.tensor
    return [
        (
            p.world_size % p.model_ranks > 0,
            f"parallel.world_size: a multiple of parallel.tensor × parallel.pipeline × parallel.context; found "
            f"{p.world_size} with tensor={p.tensor}, pipeline={p.pipeline} and context={p.context}. Nearest: {near}.",
        ),
        (
            p.context > 1 and p.kind != "fsdp",
            f"parallel.context: ranks that share a sequence shard the weights together; found {p.context} with "
            f"kind={p.kind!r}. Set parallel.kind to fsdp, or parallel.context to 1.",
        ),
        (
            p.expert > 1 and (p.kind != "fsdp" or holders % p.expert > 0),
            f"parallel.expert: divides the ranks over which parallel.kind=fsdp shards and layers are split, shard × "
            f"context × tensor; found {p.expert} with kind={p.kind!r} and {holders} such ranks. Nearest: "
            f"{math.gcd(p.expert, holders)}.",
        ),
        (
            p.pipeline == 1 and (p.schedule != "1f1b" or p.virtual_stages > 1),
            f"parallel.schedule: orders the micro-batches of a pipeline; found schedule={p.schedule!r} and "
            f"virtual_stages={p.virtual_stages} with pipeline=1. Set parallel.pipeline above 1.",
        ),
        (
            p.pipeline > 1 and (p.virtual_stages > 1) != (p.schedule in several),
            f"parallel.virtual_stages: more than one for the schedules {' and '.join(several)}, one for the others; "
            f"found {p.virtual_stages} with schedule={p.schedule!r}. Set it to {1 if p.virtual_stages > 1 else 2}, or "
            f"parallel.schedule to {'interleaved' if p.virtual_stages > 1 else '1f1b'}.",
        ),
        (
            p.schedule == "zero-bubble" and p.virtual_stages != 2,
            f"parallel.virtual_stages: the zero-bubble schedule (ZBV) has two; found {p.virtual_stages}. Set it to 2.",
        ),
        (
            p.replicate > 1 and (p.kind != "fsdp" or p.data_ranks % p.replicate > 0),
            f"parallel.replicate: divides the ranks over which parallel.kind=fsdp shards; found {p.replicate} with "
            f"kind={p.kind!r} and {p.data_ranks} ranks. Set it to 1, or name parallel.shard: the world is shard × "
            f"replicate × tensor.",
        ),
        (
            p.sequence_parallel and p.tensor == 1,
            "parallel.sequence_parallel: splits the sequence over the ranks of parallel.tensor; found tensor=1. Set it "
            "to false, or parallel.tensor above 1.",
        ),
        *_program_conflicts(p),
    ]


def _program_conflicts(p: ParallelSettings) -> list[tuple[bool, str]]:
    """Of who runs the layout, and what of its exchanges is hidden."""
    return [
        (
            p.async_tensor and not p.sequence_parallel,
            "parallel.async_tensor: hides the gathers and scatters of parallel.sequence_parallel; found "
            "sequence_parallel=false. Set it to true, or parallel.async_tensor to false.",
        ),
        (
            p.expert_overlap and (p.engine != "megatron" or p.expert == 1),
            f"parallel.expert_overlap: is Megatron's, of experts over several ranks; found engine={p.engine!r} and "
            f"expert={p.expert}. Set it to false, or parallel.engine to megatron and parallel.expert above 1.",
        ),
        (
            p.engine == "megatron" and (p.kind == "ddp" or (p.shard_ranks > 1 and p.pipeline == 1 and p.zero != 1)),
            f"parallel.engine: megatron is known with its distributed optimizer, which exchanges weights and "
            f"gradients once a step; found kind={p.kind!r} and zero={p.zero}. Name parallel.shard in place of data, "
            f"and set parallel.zero to 1, or parallel.engine to pytorch.",
        ),
    ]
