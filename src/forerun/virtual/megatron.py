"""What Megatron-Core does otherwise than PyTorch with the same layout: `parallel.engine: megatron`.

- Products of a backward pass add to the sums of gradients themselves (`gradient_accumulation_fusion`); the embedding's
  are added by a kernel, as everywhere. A product in 32-bit sums is taken to be as fast as one without.
- The loss is a kernel over each rank's part of the logits, which exchanges three numbers a token and leaves the
  gradient in their place (Transformer Engine's `pytorch/triton/cross_entropy.py`: the logits are read for the sums,
  read and written for the gradient, and read and written when it is scaled).
- What split layers gather is gathered again in the backward pass, not held (`tensor_parallel/layers.py`,
  `LinearWithGradAccumulationAndAsyncCommunication`), and weights are cast once a step: `WeightCasts`.

Pipelines receive what arrives when it does, for which see `step/pipeline.py`.

Not covered: what its fused layers do otherwise than compiled blocks; adapters; float32 parts of its optimizer.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed._functional_collectives as funcol
from torch import Tensor, fx, nn
from torch.utils.checkpoint import CheckpointPolicy

from forerun.settings.schema import Settings
from forerun.trace import Issuer
from forerun.virtual.cuda.stand_ins.registry import launch
from forerun.virtual.megatron_experts import use_dispatcher
from forerun.virtual.recorder import Recorder

GATHERS = ("all_gather_into_tensor", "wait_tensor")
"""Operators of a gather, by name."""
WIDEST = 2
"""Dimensions of a weight of a linear layer at most; what blocks work on has three."""
NUMBERS_OF_A_TOKEN = 3
"""The largest logit, the sum of exponentials, and the logit of the label."""


class WeightCasts:
    """What graphs compute of weights alone, such as their casts to float8: once a step, and held to its end."""

    def __init__(self, recorder: Recorder, issuer: str = Issuer.MODULES):
        self.issuer = issuer
        """Who launches the kernels of the blocks."""
        self.recorder = recorder
        self._values: dict[Any, dict[Any, Any]] = {}

    def begin_step(self) -> None:
        """Weights are new."""
        self._values.clear()

    def values(self, graph: Any, weights: list[Tensor]) -> dict[Any, Any] | None:
        """Place of what `graph` made of these weights in this step, which is empty at first; None: hold nothing."""
        if self.recorder.is_muted or not weights:
            return None
        return self._values.setdefault((id(graph), *(self.recorder.storage_of(each) for each in weights)), {})


def nodes_of_weights(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that depend on weights alone."""
    nodes: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "call_function" and inputs and all(each in nodes or is_weight(each) for each in inputs):
            nodes.add(node)
    return nodes


def is_weight(node: fx.Node) -> bool:
    """Whether a node is the weight of a linear layer, an input of a graph."""
    value = node.meta.get("val")
    is_input = node.op == "placeholder" and node.name.startswith("primals")
    return is_input and isinstance(value, Tensor) and value.is_floating_point() and value.dim() <= WIDEST


def mark_computed_again(graph: fx.Graph) -> None:
    """Have the partitioner of a captured graph compute gathers and casts of weights again in the backward pass."""
    again = nodes_of_weights(graph)
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        is_gather = name.startswith(GATHERS[0])
        is_end = name.startswith(GATHERS[1]) and any(each in again for each in node.all_input_nodes)
        if is_gather or is_end:
            again.add(node)
    for node in again:
        node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 0}


class _SplitCrossEntropy(torch.autograd.Function):
    """Sum of the losses of labels, over one rank's part (N, V / ranks) of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, group: Any) -> Tensor:  # type: ignore[override]
        numbers = logits.new_empty((NUMBERS_OF_A_TOKEN, len(logits)), dtype=torch.float32)
        launch("vocab_parallel_softmax", [numbers], [logits, labels])
        if group is not None:
            gather = getattr(funcol, "all_gather_single", funcol.all_gather_tensor)  # its name from 2.13 on
            numbers = funcol.wait_tensor(gather(numbers, 0, group))
        losses = logits.new_empty(len(logits), dtype=torch.float32)
        launch("vocab_parallel_cross_entropy", [logits, losses], [logits, labels, numbers])
        ctx.save_for_backward(logits.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        (logits,) = ctx.saved_tensors
        launch("vocab_parallel_scale", [logits], [logits])
        return logits, None, None


def split_criterion(logits: Any, labels: Tensor) -> Tensor:
    """Cross-entropy summed over labels, of logits (..., V) that are whole or split over the vocabulary."""
    return _split_loss(logits, labels)  # type: ignore[no-any-return]


@torch.compiler.disable
def _split_loss(logits: Any, labels: Tensor) -> Any:
    """The same, launched as it is where losses are compiled."""
    group = None
    if hasattr(logits, "to_local"):
        group, logits = (logits.device_mesh, 0), logits.to_local()
    return _SplitCrossEntropy.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), group)


@contextlib.contextmanager
def as_megatron(
    settings: Settings, workload: Any, model: nn.Module, recorder: Recorder
) -> Iterator[WeightCasts | None]:
    """Have a step sum gradients and compute its loss as Megatron-Core does, where the settings say so."""
    if settings.parallel.engine != "megatron":
        yield None
        return
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    original: Any = FSDPParam.accumulate_unsharded_grad_if_needed

    def add(self: Any) -> None:
        """A gradient to its sum, which the product of a matrix has done already."""
        is_product = self.orig_dtype.is_floating_point and self._orig_size.numel() and len(self._orig_size) >= WIDEST
        has_done = is_product and not isinstance(self._module_info.module, nn.Embedding)
        with recorder.muted() if has_done else contextlib.nullcontext():
            original(self)

    FSDPParam.accumulate_unsharded_grad_if_needed = add
    workload.criterion = split_criterion
    casts = WeightCasts(recorder, Issuer.MODULES if settings.compile in ("none", "default") else Issuer.GRAPH)
    use_dispatcher(model, settings, casts)
    try:
        yield casts
    finally:
        FSDPParam.accumulate_unsharded_grad_if_needed = original
        del workload.criterion
