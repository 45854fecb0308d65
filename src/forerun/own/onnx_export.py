"""A model of own data for ONNX Runtime: `model.onnx` beside its weights, asked the same rows before it counts.

Inputs are int64, all sizes free: `input_ids` (batch, length); `attention_mask` of the same shape but for causal
language models; `token_type_ids` of pairs of texts; `decoder_input_ids` (batch, target length) of `seq2seq-lm`. The
output is `logits`, of `embedding` the unit `vectors` (batch, width). PyTorch's exporter traces the model as it answers
(torch.export, opset of onnxscript); it is fp32 whatever the run's precision.

Not covered: generation with kept keys and values (a model that writes is one pass over all of its tokens), packed
weights.
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
from forerun.step.pairs import pooled
from forerun.step.training_step import TrainingStep

ONNX = "model.onnx"
CAUSAL = ("causal-lm", "preference")
BY_TOKEN = ("token-classification", "masked-lm")
"""Workloads whose answers behind the end of a text mean nothing."""
COMPARED_ROWS = 32
SMALLEST_LENGTH, MOST_ROWS = 2, 4096
"""Bounds of length and batch that the exporter is told."""


class _Answer(nn.Module):
    """Tensors in, logits out; of `embedding` unit vectors."""

    def __init__(self, model: nn.Module, facts: TaskFacts):
        super().__init__()
        self.model, self.output = model, "vectors" if facts.workload == "embedding" else "logits"
        self.names = input_names(facts)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits (batch, …), or vectors (batch, width)."""
        if self.output == "vectors":
            return pooled(self.model, *inputs)
        return self.model(**dict(zip(self.names, inputs, strict=True))).logits


def input_names(facts: TaskFacts) -> tuple[str, ...]:
    """Inputs of the model, in order."""
    names = ["input_ids", *([] if facts.workload in CAUSAL else ["attention_mask"])]
    names += ["token_type_ids"] if facts.is_paired else []
    return (*names, *(["decoder_input_ids"] if facts.workload == "seq2seq-lm" else []))


def write_onnx(step: TrainingStep, facts: TaskFacts, samples: Sequence[TokenSample], folder: Path) -> float:
    """Write `model.onnx`; returns the largest difference of an answer to the first samples: in a probability, of
    the next token in nats, of labels that are numbers in standard deviations, of a vector in one of its numbers.

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
    model = _Answer(step.model.to("cpu").float().eval(), facts)
    if facts.workload == "seq2seq-lm":
        # torch.export (2.13) takes the strides of the CPU's attention kernel for T5's, then traces it in pieces
        model.model.set_attn_implementation("eager")  # type: ignore[operator]
    _export(model, folder / ONNX, facts)
    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    largest = 0.0
    for first in range(0, min(COMPARED_ROWS, len(samples)), 8):
        inputs = _inputs(samples[first : first + 8], facts)
        answers: Any = session.run([model.output], {name: tensor.numpy() for name, tensor in inputs.items()})[0]
        with torch.no_grad():
            expected = model(*inputs.values())
        counts = inputs["attention_mask"] if facts.workload in BY_TOKEN else None
        gap = (_scores(torch.from_numpy(np.asarray(answers)), facts) - _scores(expected, facts)).abs()
        largest = max(largest, float((gap if counts is None else gap[counts.bool()]).max()))
    return largest


def _scores(logits: Tensor, facts: TaskFacts) -> Tensor:
    if facts.label_kind == "number" or facts.workload == "embedding":
        return logits
    if facts.workload in (*CAUSAL, "seq2seq-lm"):
        return logits.log_softmax(-1)
    return logits.sigmoid() if facts.label_kind == "several" else logits.softmax(-1)


def _inputs(samples: Sequence[TokenSample], facts: TaskFacts) -> dict[str, Tensor]:
    length = max(SMALLEST_LENGTH, *(min(len(sample.ids), facts.sequence_length) for sample in samples))
    rows: dict[str, Tensor] = {
        "input_ids": padded([sample.ids for sample in samples], length, facts.pad_id),
        "attention_mask": padded([[1] * len(sample.ids) for sample in samples], length, 0),
        "token_type_ids": padded([() if sample.types is None else sample.types for sample in samples], length, 0),
    }
    if facts.workload == "seq2seq-lm":
        starts = [[facts.start_id, *sample.token_labels[:-1]] for sample in samples]
        rows["decoder_input_ids"] = padded(starts, max(SMALLEST_LENGTH, *map(len, starts)), facts.pad_id)  # type: ignore[arg-type]
    return {name: rows[name] for name in input_names(facts)}


def _export(model: _Answer, to: Path, facts: TaskFacts) -> None:
    longest = max(SMALLEST_LENGTH + 1, facts.sequence_length)
    batch = torch.export.Dim("batch", min=1, max=MOST_ROWS)
    tokens, targets = (torch.export.Dim(n, min=SMALLEST_LENGTH, max=longest) for n in ("length", "target_length"))
    sizes = {name: {0: batch, 1: targets if name == "decoder_input_ids" else tokens} for name in model.names}
    # torch/fx/experimental/symbolic_shapes.py (2.13), specialize_zero_one: example sizes 0 and 1 become constants
    example = torch.ones(3, max(SMALLEST_LENGTH, facts.sequence_length // 2), dtype=torch.long)
    inputs = tuple(torch.zeros_like(example) if name == "token_type_ids" else example.clone() for name in model.names)
    # torch/onnx/_internal/exporter/_registration.py (2.13) warns of every optional package that is missing
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                model, inputs, dynamo=True, dynamic_shapes=(tuple(sizes.values()),),
                input_names=list(model.names), output_names=[model.output], verbose=False,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            raise NotSupported(
                f"--onnx: PyTorch's exporter does not take {type(model.model).__name__}: "
                f"{str(error).strip().splitlines()[0][:200]}. Leave --onnx out."
            ) from error
    assert program is not None, "the exporter of torch.export returns a program"
    program.save(to)
