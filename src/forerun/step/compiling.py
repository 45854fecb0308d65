"""What of a step `torch.compile` compiles: the whole model and its loss, or the transformer blocks, with it or not.

Not covered: the optimizer's update, which has kernels of its own.
"""

import warnings
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from forerun.errors import NotSupported
from forerun.settings.schema import Settings
from forerun.step.compiled_loss import COMPILED_CRITERION
from forerun.step.parallel import transformer_blocks, unwrapped
from forerun.step.training_step import TrainingStep

DYNAMO_GRAD_WARNING = r"The \.grad attribute of a Tensor that is not a leaf"
"""Dynamo (2.11 to 2.13) looks at `.grad` of what enters a graph, and needs nothing of it."""

OF_EVERY_TOKEN = ("causal-lm", "masked-lm", "seq2seq-lm")
"""Heads whose loss reads logits over a vocabulary, which in plain operators takes fp32 copies of them."""


def compile_step(step: TrainingStep, settings: Settings, model: nn.Module, compiler: Any) -> None:
    """Have the step's model compiled by `compiler`, a backend of `torch.compile`, where the settings compile.

    Raises:
        NotSupported: blocks of a model that has none.
    """
    if settings.compile == "none":
        return
    warnings.filterwarnings("ignore", DYNAMO_GRAD_WARNING, UserWarning)
    mode = settings.compile if compiler == "inductor" else None  # other backends know no modes
    if settings.compile_unit == "model":
        step.called = cast(nn.Module, torch.compile(step.called, backend=compiler, mode=mode))
    else:
        compile_blocks(model, compiler, mode, hooks_outside=settings.parallel.tensor > 1)
    workload: Any = step.workload
    if settings.compile_unit == "blocks":
        return
    if getattr(workload, "head", "") in OF_EVERY_TOKEN and settings.parallel.tensor == 1:
        setattr(unwrapped(model), COMPILED_CRITERION, torch.compile(workload.criterion, backend=compiler, mode=mode))


def compile_blocks(model: nn.Module, compiler: Any, mode: str | None, *, hooks_outside: bool = False) -> None:
    """Compile every transformer block in place; blocks of one class share what was compiled, if hooks leave them alike.

    Raises:
        NotSupported: the model has no blocks.
    """
    blocks = transformer_blocks(model)
    if not blocks:
        raise NotSupported(
            f"compile_unit: {type(model).__name__} has no repeated blocks to compile. Set compile_unit to model."
        )
    for block in blocks:
        if hooks_outside or isinstance(block, FSDPModule):  # its hooks gather, cut or free: outside the graph
            block.forward = torch.compile(block.forward, backend=compiler, mode=mode)
        else:
            block.compile(backend=compiler, mode=mode)
