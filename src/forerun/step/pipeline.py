"""Pipeline parallelism: blocks of a decoder dealt to stages, run by the schedules of `torch.distributed.pipelining`.

Each rank keeps the blocks of its stages, under the names that they have in the whole model; a block of another stage
passes on what it is given. The first stage keeps the embedding, the last one the final norm and the output layer. The
micro-batches of an optimizer step go through the stages in the order of the schedule, and their losses are summed as
everywhere else. With FSDP the weights of a stage stay gathered from its first use to the end of the step, as torchtitan
has it: they would be gathered once more for each micro-batch.

Not covered: tied embeddings, packed micro-batches, adapters, quantised weights, DDP, loss scaling, models
with learned positions.
"""

import copy
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings
from forerun.step.parallel import PIPELINE, refuse_together
from forerun.step.precision import policy_of
from forerun.step.workload import BLANK
from forerun.trace import Phase

FAMILIES = ("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
"""`model_type`s whose stages were compared with the whole model; what others do around their blocks is not known."""
STAGES = "pipeline_stages"
"""Attribute of a model that was cut: its stages on this rank, by their places in the pipeline."""
LABELS, IDS = "labels", "input_ids"


def require_pipeline(settings: Settings) -> None:
    """Refuse what does not go together with a pipeline.

    Raises:
        NotSupported: naming the setting and the reason.
        InvalidSettings: there are fewer micro-batches than the schedule needs.
    """
    parallel = settings.parallel
    if parallel.pipeline == 1:
        return
    obstacles = [
        ("parallel.kind", parallel.kind == "ddp", "DDP's buckets over stages are not modelled. Set parallel.kind to "
         "fsdp"),
        ("workload", settings.workload != "causal-lm", "pipelines are built for causal-lm. Set parallel.pipeline to 1"),
        ("adapter.kind", settings.adapter.kind != "none", "adapters are not dealt to stages by this version. Set it to "
         "none"),
        ("quantization", settings.quantization != "none", "packed weights are not dealt to stages. Set it to none"),
        ("compile", settings.compile != "none", "compiled stages are not modelled. Set it to none"),
        ("cross_entropy", settings.cross_entropy != "full", "the last stage makes whole logits. Set it to full"),
        ("model.kernels", settings.model.kernels != "none", "fused kernels know no stages. Set it to none"),
        ("model.freeze", bool(settings.model.freeze), "frozen parts of stages are not tested. Leave it out"),
        ("activation_offload", settings.activation_offload, "its copies beside a pipeline are not modelled. Set it to "
         "false"),
        ("batch.padding", settings.batch.padding != "fixed", "stages are told one shape before they begin. Set "
         "it to fixed"),
        ("precision", settings.precision == "fp16-mixed", "loss scaling does not look for infinities in other stages. "
         "Set it to bf16-mixed"),
        ("evaluation.new_tokens", settings.evaluation.new_tokens > 0, "generating over stages is not built. Set it to "
         "0"),
        ("optimizer.in_backward", settings.optimizer.in_backward, "gradients of micro-batches are summed first. Set it "
         "to false"),
        ("parallel.zero", parallel.zero > 0, "ZeRO is modelled for data parallel ranks alone. Set parallel.kind to "
         "fsdp"),
    ]  # fmt: skip
    refuse_together(settings, "parallel.pipeline", obstacles)
    least = parallel.pipeline if parallel.schedule != "gpipe" else 1
    count = settings.batch.gradient_accumulation_steps
    near = math.ceil(count / parallel.pipeline) * parallel.pipeline
    if count < least or (parallel.schedule == "interleaved" and count % parallel.pipeline):
        raise InvalidSettings(
            f"batch.gradient_accumulation_steps: the micro-batches of a {parallel.schedule} pipeline, "
            f"{'a multiple of' if parallel.schedule == 'interleaved' else 'at least'} its {parallel.pipeline} stages; "
            f"found {count}. Nearest: {near}."
        )


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
        self._policy, self._device_type = policy_of(settings), device_type

    def forward(self, states: Tensor) -> Tensor:
        """(batch, sequence) ids or (batch, sequence, width) → (batch, sequence, width or vocabulary)."""
        part: Any = self.part
        inputs = {IDS: states} if self.is_first else {"inputs_embeds": states}
        with self._policy.autocast(self._device_type):
            if self.is_last:
                return part(**inputs, use_cache=False).logits
            return part.base_model(**inputs, use_cache=False).last_hidden_state


def place_of_blocks(model: nn.Module, settings: Settings) -> str:
    """Path of the list of blocks.

    Raises:
        NotSupported: the architecture is not one that can be cut, or its embedding is its output layer.
    """
    config: Any = model.config
    if config.model_type not in FAMILIES:
        raise NotSupported(
            f"parallel.pipeline: stages of {type(model).__name__} are not known to give what the whole model gives; "
            f"found parallel.pipeline={settings.parallel.pipeline}. Set it to 1, or take a model of "
            f"{', '.join(FAMILIES)}."
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
    path = place_of_blocks(model, settings)
    count, places = parallel.pipeline * parallel.virtual_stages, places_on_rank(settings, stage)
    blocks: Any = model.get_submodule(path)
    if len(blocks) < count:
        raise InvalidSettings(
            f"parallel.pipeline: each of its {count} stages has a block; found {len(blocks)} blocks in "
            f"{settings.model.name}. Set parallel.pipeline × parallel.virtual_stages to {len(blocks)} or less."
        )
    owner = block_owners(len(blocks), count)
    parts = [
        StageModule(_part(model, path, place, count, owner), settings, device_type, place == 0, place == count - 1)
        for place in places
    ]
    for number, block in enumerate(blocks):
        if owner[number] not in places:
            blocks[number] = PassedOn(block)
    backbone: Any = model.get_submodule(path.rpartition(".")[0])
    bare: Any = model
    if 0 not in places:
        bare.set_input_embeddings(PassedOn(bare.get_input_embeddings()))
    if count - 1 not in places:
        _drop_end(bare, backbone)
    setattr(model, STAGES, dict(zip(places, parts, strict=True)))
    return parts


def places_on_rank(settings: Settings, stage: int) -> list[int]:
    """Stages of the pipeline that one rank of it holds: in turn, or back again where the schedule is a V."""
    ranks, virtual = settings.parallel.pipeline, settings.parallel.virtual_stages
    if settings.parallel.schedule == "zero-bubble":
        return [stage, 2 * ranks - 1 - stage]
    return [stage + ranks * number for number in range(virtual)]


def block_owners(blocks: int, stages: int) -> list[int]:
    """Stage of each block: evenly, what is left over to the stages in the middle, as the ends have more to do."""
    sizes = [blocks // stages] * stages
    begin = (stages - blocks % stages) // 2
    for number in range(begin, begin + blocks % stages):
        sizes[number] += 1
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


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


class _Known:
    """The vote of stages that all know their shapes: a tensor's value would be unknown on a virtual GPU."""

    def item(self) -> int:
        """Yes."""
        return 1


class Pipeline:
    """The stages of one rank, and the schedule that runs them."""

    def __init__(self, settings: Settings, model: Any, mesh: Any, device_type: str):
        from torch.distributed.pipelining import PipelineStage

        self._settings, self._group = settings, mesh[PIPELINE].get_group()
        self._device = torch.device(device_type)
        self._is_virtual = any(is_fake(parameter) for parameter in model.parameters())
        self._observer: Any = None
        self._loss: Any = None
        self._policy = policy_of(settings)
        self._parts: dict[int, StageModule] = getattr(model, STAGES)
        self._config = model.config
        self._schedule: Any = None
        pipeline = self

        class Stage(PipelineStage):
            """A stage whose passes are observed."""

            def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
                with pipeline._observer.phase(Phase.FORWARD):
                    return super().forward_one_chunk(*args, **kwargs)

            def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
                with pipeline._observer.phase(Phase.BACKWARD):
                    return super().backward_one_chunk(*args, **kwargs)

            def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
                with pipeline._observer.phase(Phase.BACKWARD):
                    return super().backward_weight_one_chunk(*args, **kwargs)

        class VirtualStage(Stage):
            """One whose neighbours do not exist: it does not ask them whether they know their shapes."""

            def _warmup_forward_vote(self, *args: Any, **kwargs: Any) -> Any:
                return _Known()

            def _warmup_backward_result(self, *args: Any, **kwargs: Any) -> Any:
                return _Known()

        self._stage_class = VirtualStage if self._is_virtual else Stage
        model.forward = self.score

    def run(self, workload: Any, micro_batches: Sequence[dict[str, Tensor]], count: Any, observer: Any) -> Tensor:
        """Forward and backward passes of all micro-batches; the sum of their losses over `count`, on every stage."""
        self._observer = observer

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            with observer.phase(Phase.FORWARD):
                return workload.criterion(*workload.align(logits, targets)) / count

        self._loss = loss
        losses: list[Tensor] = []
        if self._schedule is None:
            batch, length = self._settings.batch, micro_batches[0][IDS].shape[1]
            shape = torch.Size((batch.micro_batch_size, length))
            self._schedule = self._make_schedule(shape, batch.gradient_accumulation_steps)
        with observer.phase(Phase.FORWARD):
            ids, labels = self._filled(micro_batches)
            self._schedule.step(
                *([ids] if 0 in self._parts else []),
                **({"target": labels} if self._has_last else {}),
                losses=losses, return_outputs=False,
            )  # fmt: skip
            own = (
                torch.stack([each.detach() for each in losses]).sum()
                if losses
                else ids.new_zeros((), dtype=torch.float)
            )
            dist.all_reduce(own, group=self._group)
        return own

    def _filled(self, micro_batches: Sequence[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        """Ids and labels of as many rows as a step has at most; rows that are missing count nothing.

        A schedule is made for one number of micro-batches of one size, and an epoch ends with fewer rows.
        """
        rows = self._settings.batch.micro_batch_size * self._settings.batch.gradient_accumulation_steps
        ids = torch.cat([batch[IDS] for batch in micro_batches])
        labels = torch.cat([torch.full_like(b[LABELS], IGNORED) if BLANK in b else b[LABELS] for b in micro_batches])
        missing = rows - len(ids)
        if missing:
            ids = F.pad(ids, (0, 0, 0, missing))
            labels = F.pad(labels, (0, 0, 0, missing), value=IGNORED)
        return ids, labels

    def score(self, input_ids: Tensor, **_: Any) -> Any:
        """Logits of whole rows, on every stage: each computes its part in turn and sends it to all. For evaluation.

        A collective: all stages must call it, with the same rows.
        """
        states, width = input_ids, self._config.hidden_size
        holders = {place: r for r in range(self._group.size()) for place in places_on_rank(self._settings, r)}
        for place in range(self._count):
            is_last = place == self._count - 1
            dtype = torch.float32 if is_last else self._hidden_dtype()
            if place in self._parts:
                states = self._parts[place](states).to(dtype).contiguous()
            else:
                shape = (*input_ids.shape, self._config.vocab_size if is_last else width)
                states = torch.empty(shape, dtype=dtype, device=input_ids.device)
            dist.broadcast(states, group=self._group, group_src=holders[place])
        return SimpleNamespace(logits=states)

    def norm_of_all(self, norm: Tensor) -> Tensor:
        """The norm of the gradients of all stages, from that of those here."""
        squared = norm.square()
        dist.all_reduce(squared, group=self._group)
        return squared.sqrt()

    @property
    def _has_last(self) -> bool:
        return self._count - 1 in self._parts

    @property
    def _count(self) -> int:
        return self._settings.parallel.pipeline * self._settings.parallel.virtual_stages

    def _make_schedule(self, shape: torch.Size, micro_batches: int) -> Any:
        from torch.distributed import pipelining as torch_pipelining

        kinds = {
            "gpipe": torch_pipelining.ScheduleGPipe, "1f1b": torch_pipelining.Schedule1F1B,
            "interleaved": torch_pipelining.ScheduleInterleaved1F1B,
            "zero-bubble": torch_pipelining.ScheduleZBVZeroBubble,
        }  # fmt: skip
        stages = [self._stage(place, part, shape) for place, part in self._parts.items()]
        is_several = self._settings.parallel.virtual_stages > 1
        return kinds[self._settings.parallel.schedule](
            stages if is_several else stages[0], micro_batches,
            loss_fn=lambda logits, labels: self._loss(logits, labels), scale_grads=False,
        )  # fmt: skip

    def _stage(self, place: int, module: StageModule, shape: torch.Size) -> Any:
        dtype: Any = {"dtype": self._hidden_dtype(), "device": "meta", "requires_grad": True}
        width = torch.empty(*shape, self._config.hidden_size, **dtype)
        vocabulary = torch.empty(*shape, self._config.vocab_size, **dtype)
        ids = torch.empty(shape, dtype=torch.int64, device="meta")
        return self._stage_class(
            module, place, self._count, self._device, input_args=(ids if module.is_first else width,),
            output_args=(vocabulary if module.is_last else width,), group=self._group,
        )  # fmt: skip

    def _hidden_dtype(self) -> torch.dtype:
        """Of what goes from stage to stage: the residual stream has the embedding's dtype, which FSDP casts."""
        is_cast = self._settings.parallel.kind == "fsdp" and self._policy.autocast_dtype is not None
        return self._policy.autocast_dtype if is_cast else self._policy.parameter_dtype  # type: ignore[return-value]
