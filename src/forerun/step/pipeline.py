"""Pipeline parallelism: blocks of a decoder dealt to stages, run by the schedules of `torch.distributed.pipelining`.

Each rank keeps the blocks of its stages, under the names that they have in the whole model; a block of another stage
passes on what it is given. The first stage keeps the embedding, the last one the final norm and the output layer. The
micro-batches of an optimizer step go through the stages in the order of the schedule, and their losses are summed as
everywhere else. With FSDP the weights of a stage stay gathered from its first use to the end of the step, as torchtitan
has it: they would be gathered once more for each micro-batch. PyTorch makes room at once for all that will arrive in a
step; with `parallel.engine: megatron` there is room for one micro-batch from when it arrives until it was used.

Not covered: tied embeddings, packed micro-batches, adapters but LoRA, quantised weights, DDP, loss scaling, models
with learned positions.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings
from forerun.settings.schema import Settings
from forerun.step.context_parallel import shared_sequence
from forerun.step.parallel import PIPELINE, TENSOR, refuse_together, unwrapped
from forerun.step.pipeline_stages import IDS, STAGES, StageModule, places_on_rank
from forerun.step.precision import policy_of
from forerun.step.split_adapters import require_split_adapters
from forerun.step.stage_rooms import Rooms
from forerun.step.workload import BLANK
from forerun.trace import Phase

LABELS = "labels"


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
        ("quantization", settings.quantization != "none", "packed weights are not dealt to stages. Set it to none"),
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
        ("parallel.zero", parallel.deepspeed_stage > 0, "DeepSpeed's is modelled for data parallel ranks alone. Set "
         "parallel.kind to fsdp"),
        ("parallel.zero", parallel.zero > 1, "stages keep their weights through a step and send gradients once. Set it "
         "to 1, or leave it out"),
    ]  # fmt: skip
    refuse_together(settings, "parallel.pipeline", obstacles)
    require_split_adapters(settings, "parallel.pipeline")
    least = parallel.pipeline if parallel.schedule != "gpipe" else 1
    count = settings.batch.gradient_accumulation_steps
    near = math.ceil(count / parallel.pipeline) * parallel.pipeline
    if count < least or (parallel.schedule == "interleaved" and count % parallel.pipeline):
        raise InvalidSettings(
            f"batch.gradient_accumulation_steps: the micro-batches of a {parallel.schedule} pipeline, "
            f"{'a multiple of' if parallel.schedule == 'interleaved' else 'at least'} its {parallel.pipeline} stages; "
            f"found {count}. Nearest: {near}."
        )


class Passes(Protocol):
    """Plays passes of a stage that repeat, on a virtual GPU."""

    def begin(self) -> None:
        """A step begins."""
        ...

    def forward(self, module: nn.Module, run: Callable[[], Tensor]) -> Tensor:
        """What `module` makes of the next micro-batch."""
        ...

    def backward(
        self, module: nn.Module, loss: Tensor | None, run: Callable[[], Sequence[Tensor | None]]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of what `module` was given, of the earliest micro-batch that has none."""
        ...


class _Known:
    """The vote of stages that all know their shapes: a tensor's value would be unknown on a virtual GPU."""

    def item(self) -> int:
        """Yes."""
        return 1


def _stage_class(settings: Settings) -> type:
    from torch.distributed.pipelining import PipelineStage

    return type("RoomsStage", (Rooms, PipelineStage), {}) if settings.parallel.engine == "megatron" else PipelineStage


class Pipeline:
    """The stages of one rank, and the schedule that runs them."""

    def __init__(self, settings: Settings, model: Any, mesh: Any, device_type: str):
        self._settings, self._mesh, self._group = settings, mesh, mesh[PIPELINE].get_group()
        self._rank, self.micro_batches = self._group.rank(), settings.batch.gradient_accumulation_steps
        self._device = torch.device(device_type)
        self._is_virtual = any(is_fake(parameter) for parameter in model.parameters())
        self._observer: Any = None
        self._loss: Any = None
        self._policy, self._config = policy_of(settings), model.config
        self._parts: dict[int, StageModule] = getattr(unwrapped(model), STAGES)
        self._schedule: Any = None
        self.passes: Passes | None = None
        """Stands for micro-batches that do the same, on a virtual GPU; None: each is run."""
        pipeline = self
        base: Any = _stage_class(settings)

        class Stage(base):
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

            def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
                def run() -> Tensor:
                    return Stage.forward_maybe_with_nosync(self, *args, **kwargs)

                passes = pipeline.passes
                return run() if passes is None else passes.forward(self.submod, run)

            def backward_maybe_with_nosync(
                self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
            ) -> Any:
                def run() -> Any:
                    return Stage.backward_maybe_with_nosync(self, backward_type, bwd_kwargs, last_backward)

                if pipeline.passes is None:
                    return run()
                loss = bwd_kwargs["stage_output"] if self.is_last else None
                return pipeline.passes.backward(self.submod, loss, lambda: run()[0]), None

            def _warmup_forward_vote(self, *args: Any, **kwargs: Any) -> Any:
                return _Known()

            def _warmup_backward_result(self, *args: Any, **kwargs: Any) -> Any:
                return _Known()

        self._stage_class = VirtualStage if self._is_virtual else Stage
        unwrapped(model).forward = self.score

    def start_anew(self, micro_batches: int) -> None:
        """Make the schedule, with the buffers of what will arrive, once more: for so many micro-batches."""
        self.micro_batches, self._schedule = micro_batches, None

    def become(self, stage: int) -> None:
        """Be another stage of the pipeline, one whose blocks are like those here, with its own neighbours."""
        self._parts = dict(zip(places_on_rank(self._settings, stage), self._parts.values(), strict=True))
        self._rank = stage
        batch = self._settings.batch
        length = batch.sequence_length // self._settings.parallel.context
        shape = torch.Size((batch.micro_batch_size, length))
        self._schedule = self._make_schedule(shape)
        # makes the buffers of what will arrive (torch/distributed/pipelining/schedules.py:726 and :1704, 2.13)
        several = self._settings.parallel.virtual_stages > 1
        (self._schedule._initialize_stages if several else self._schedule._initialize_stage)((), {})

    def run(self, workload: Any, micro_batches: Sequence[dict[str, Tensor]], count: Any, observer: Any) -> Tensor:
        """Forward and backward passes of all micro-batches; the sum of their losses over `count`, on every stage."""
        self._observer = observer

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            with observer.phase(Phase.FORWARD):
                return workload.criterion(logits, targets) / count

        self._loss = loss
        if self.passes is not None:
            self.passes.begin()
        losses: list[Tensor] = []
        with observer.phase(Phase.FORWARD):
            ids, labels = self._filled(micro_batches)
            labels = workload.targets(labels)
            shared = shared_sequence(next(iter(self._parts.values())).part)
            if shared is not None:
                ids, labels = shared.pieces(ids), shared.pieces(labels)
            self._tell_length(ids.shape[1])
            if self._schedule is None:
                batch = self._settings.batch
                shape = torch.Size((batch.micro_batch_size, ids.shape[1]))
                self._schedule = self._make_schedule(shape)
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
        rows = self._settings.batch.micro_batch_size * self.micro_batches
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
        states, width, (rows, length) = input_ids, self._config.hidden_size, input_ids.shape
        self._tell_length(length)
        holders = {place: r for r in range(self._group.size()) for place in places_on_rank(self._settings, r)}
        for place in range(self._count):
            is_last = place == self._count - 1
            dtype = torch.float32 if is_last else self._hidden_dtype()
            if place in self._parts:
                states = self._parts[place](states).to(dtype).contiguous()
            else:
                ends = (length, self._config.vocab_size) if is_last else (self._length_between(length), width)
                states = torch.empty((rows, *ends), dtype=dtype, device=input_ids.device)
            dist.broadcast(states, group=self._group, group_src=holders[place])
        return SimpleNamespace(logits=states)

    def _length_between(self, length: int) -> int:
        """Tokens of a sequence that go from stage to stage: this rank's part where split layers have one each."""
        if not next(iter(self._parts.values())).is_cut:
            return length
        rank, ranks = self._mesh.get_local_rank(TENSOR), self._settings.parallel.tensor
        part = math.ceil(length / ranks)
        return max(0, min(part, length - rank * part))

    def _tell_length(self, length: int) -> None:
        for part in self._parts.values():
            part.length = length

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

    def _make_schedule(self, shape: torch.Size) -> Any:
        from torch.distributed import pipelining as torch_pipelining

        kinds = {
            "gpipe": torch_pipelining.ScheduleGPipe, "1f1b": torch_pipelining.Schedule1F1B,
            "interleaved": torch_pipelining.ScheduleInterleaved1F1B,
            "zero-bubble": torch_pipelining.ScheduleZBVZeroBubble,
        }  # fmt: skip
        stages = [self._stage(place, part, shape) for place, part in self._parts.items()]
        is_several = self._settings.parallel.virtual_stages > 1
        return kinds[self._settings.parallel.schedule](
            stages if is_several else stages[0], self.micro_batches,
            loss_fn=lambda logits, labels: self._loss(logits, labels), scale_grads=False,
        )  # fmt: skip

    def _stage(self, place: int, module: StageModule, shape: torch.Size) -> Any:
        dtype: Any = {"dtype": self._hidden_dtype(), "device": "meta", "requires_grad": True}
        width = torch.empty(shape[0], self._length_between(shape[1]), self._config.hidden_size, **dtype)
        vocabulary = torch.empty(*shape, self._config.vocab_size, **dtype)
        ids = torch.empty(shape, dtype=torch.int64, device="meta")
        stage = self._stage_class(
            module, place, self._count, self._device, input_args=(ids if module.is_first else width,),
            output_args=(vocabulary if module.is_last else width,), group=self._group,
        )  # fmt: skip
        stage.group_rank = self._rank  # by which schedules of several parts find their actions
        return stage

    def _hidden_dtype(self) -> torch.dtype:
        """Of what goes from stage to stage: the residual stream has the embedding's dtype, which FSDP casts."""
        is_cast = self._settings.parallel.kind == "fsdp" and self._policy.autocast_dtype is not None
        return self._policy.autocast_dtype if is_cast else self._policy.parameter_dtype  # type: ignore[return-value]
