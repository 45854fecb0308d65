"""An exported detector for ONNX Runtime as well: `model.onnx` beside its weights, scored before it counts.

Inputs are `input_ids` and `attention_mask`, int64 (batch, length), both sizes free; outputs `logits` (batch, 2) and
`vectors` (batch, width). PyTorch's exporter traces the model as it evaluates (torch.export, opset of onnxscript).
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forerun.errors import MissingExtra
from forerun.recipes.code_detector.data.training_data import CodeDetectorData

ONNX = "model.onnx"
LONGEST, SMALLEST, MOST = 512, 8, 4096
"""Bounds of length and batch that the exporter is told."""


class _Plain(nn.Module):
    """Tensors in, tensors out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and vectors."""
        output = self.model(input_ids, attention_mask)
        return output.logits, output.vectors


def write_onnx(model: nn.Module, data: CodeDetectorData, folder: Path) -> float:
    """Write `model.onnx` and score the validation split with it; returns the largest difference of a probability.

    Raises:
        MissingExtra: ONNX, its exporter or its runtime is not installed.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (the exporter needs it, and says so late)
    except ImportError as error:
        raise MissingExtra(
            f"--onnx: {error.name} is not installed. Install it with: pip install 'forerun[onnx]'."
        ) from error
    model = model.to("cpu").eval()
    _export(model, folder / ONNX, data.sampler.sequence_length)
    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    largest = 0.0
    with torch.inference_mode():
        for _, batch in data.evaluation_batches("val"):
            ids, mask = batch["input_ids"], batch["attention_mask"]
            onnx_logits: Any = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
            expected = model(ids, mask).logits.softmax(1)
            gap = (torch.from_numpy(np.asarray(onnx_logits)).softmax(1) - expected).abs().max()
            largest = max(largest, float(gap))
    return largest


def _export(model: nn.Module, to: Path, length: int) -> None:
    batch = torch.export.Dim("batch", min=1, max=MOST)
    tokens = torch.export.Dim("length", min=SMALLEST, max=max(LONGEST, length))
    # torch/fx/experimental/symbolic_shapes.py (2.13), specialize_zero_one: example sizes 0 and 1 become constants.
    ids = torch.ones(3, 64, dtype=torch.long)
    # torch/onnx/_internal/exporter/_registration.py (2.13) warns of every optional package that is missing.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _Plain(model),
            (ids, torch.ones_like(ids)),
            dynamo=True,
            dynamic_shapes={name: {0: batch, 1: tokens} for name in ("input_ids", "attention_mask")},
            input_names=["input_ids", "attention_mask"],
            output_names=["logits", "vectors"],
            verbose=False,
        )
    assert program is not None, "the exporter of torch.export returns a program"
    program.save(to)
