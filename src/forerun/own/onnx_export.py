"""A model of own data for ONNX Runtime: `model.onnx` beside its weights, asked the same rows before it counts.

Inputs are `input_ids` (batch, length), int64, both sizes free; `attention_mask` of the same shape but for causal
language models; `token_type_ids` of pairs of texts. The output is `logits`. PyTorch's exporter traces the model as it
answers (torch.export, opset of onnxscript); it is fp32 whatever the run's precision.

Not covered: generation with kept keys and values (a causal model is one pass over its tokens), packed weights,
sequence-to-sequence models, vectors of `embedding`.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forerun.data.token_data import TokenSample, padded
from forerun.errors import MissingExtra, NotSupported
from forerun.own.facts import TaskFacts
from forerun.step.training_step import TrainingStep

ONNX = "model.onnx"
EXPORTED = ("sequence-classification", "token-classification", "causal-lm")
COMPARED_ROWS = 32
SMALLEST_LENGTH, MOST_ROWS = 2, 4096
"""Bounds of length and batch that the exporter is told."""


class _Answer(nn.Module):
    """Tensors in, logits out."""

    def __init__(self, model: nn.Module, names: Sequence[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits."""
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def write_onnx(step: TrainingStep, facts: TaskFacts, samples: Sequence[TokenSample], folder: Path) -> float:
    """Write `model.onnx`; returns the largest difference of an answer to the first samples: in a probability, of
    the next token in nats, of labels that are numbers in standard deviations.

    Raises:
        MissingExtra: ONNX, its exporter or its runtime is not installed.
        NotSupported: weights are packed, or the exporter cannot take this architecture.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (the exporter needs it, and says so late)
    except ImportError as error:
        raise MissingExtra(
            f"--onnx: {error.name} is not installed. Install it with: pip install 'forerun[onnx]'."
        ) from error
    if step.settings.quantization != "none":
        raise NotSupported(
            f"--onnx: ONNX has no {step.settings.quantization} weights of bitsandbytes. Add --merge: it unpacks them."
        )
    names = ["input_ids", *([] if facts.workload == "causal-lm" else ["attention_mask"])]
    names += ["token_type_ids"] if facts.is_paired else []
    model = _Answer(step.model.to("cpu").float().eval(), names)
    _export(model, names, folder / ONNX, facts)
    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    largest = 0.0
    for first in range(0, min(COMPARED_ROWS, len(samples)), 8):
        inputs = _inputs(samples[first : first + 8], facts, names)
        answers: Any = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
        with torch.no_grad():
            expected = model(*inputs.values())
        counts = inputs["attention_mask"] if facts.workload == "token-classification" else None
        gap = (_scores(torch.from_numpy(np.asarray(answers)), facts) - _scores(expected, facts)).abs()
        largest = max(largest, float((gap if counts is None else gap[counts.bool()]).max()))
    return largest


def _scores(logits: Tensor, facts: TaskFacts) -> Tensor:
    if facts.label_kind == "number":
        return logits
    if facts.workload == "causal-lm":
        return logits.log_softmax(-1)
    return logits.sigmoid() if facts.label_kind == "several" else logits.softmax(-1)


def _inputs(samples: Sequence[TokenSample], facts: TaskFacts, names: Sequence[str]) -> dict[str, Tensor]:
    length = max(SMALLEST_LENGTH, *(min(len(sample.ids), facts.sequence_length) for sample in samples))
    rows: dict[str, Tensor] = {
        "input_ids": padded([sample.ids for sample in samples], length, facts.pad_id),
        "attention_mask": padded([[1] * len(sample.ids) for sample in samples], length, 0),
        "token_type_ids": padded([() if sample.types is None else sample.types for sample in samples], length, 0),
    }
    return {name: rows[name] for name in names}


def _export(model: nn.Module, names: Sequence[str], to: Path, facts: TaskFacts) -> None:
    batch = torch.export.Dim("batch", min=1, max=MOST_ROWS)
    tokens = torch.export.Dim("length", min=SMALLEST_LENGTH, max=max(SMALLEST_LENGTH + 1, facts.sequence_length))
    # torch/fx/experimental/symbolic_shapes.py (2.13), specialize_zero_one: example sizes 0 and 1 become constants
    example = torch.ones(3, max(SMALLEST_LENGTH, facts.sequence_length // 2), dtype=torch.long)
    inputs = tuple(torch.zeros_like(example) if name == "token_type_ids" else example.clone() for name in names)
    # torch/onnx/_internal/exporter/_registration.py (2.13) warns of every optional package that is missing
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                model, inputs, dynamo=True, dynamic_shapes=(tuple({0: batch, 1: tokens} for _ in names),),
                input_names=list(names), output_names=["logits"], verbose=False,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            raise NotSupported(
                f"--onnx: PyTorch's exporter does not take {type(model.model).__name__}: "
                f"{str(error).strip().splitlines()[0][:200]}. Leave --onnx out."
            ) from error
    assert program is not None, "the exporter of torch.export returns a program"
    program.save(to)
