"""What the untrained model finds of answers: asked once, before the first step, and kept in the run's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.data.sided_tokens import SidedData
from forerun.data.token_data import IGNORED
from forerun.own.scoring import batches_by_length, scoring
from forerun.own.token_scores import scored_tokens
from forerun.step.heads import Preference
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch
from forerun.train.ranks import is_follower
from forerun.train.recovery import in_pieces

REFERENCE = "reference.safetensors"


def reference_log_probabilities(
    step: TrainingStep, data: Mapping[str, SidedData], folder: Path
) -> dict[str, np.ndarray]:
    """Log-probabilities (2, rows) of both answers by part under the model of `step`, nats; those in `folder` if an
    earlier process of the run has asked."""
    path = folder / REFERENCE
    if path.exists():
        return {part: tensor.numpy() for part, tensor in load_file(path).items()}
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {part: torch.from_numpy(log_probabilities(step, own)) for part, own in data.items()}
    if not is_follower():
        save_file(tensors, path.with_suffix(".partial"))
        path.with_suffix(".partial").rename(path)
    return {part: tensor.numpy() for part, tensor in tensors.items()}


def log_probabilities(step: TrainingStep, data: SidedData) -> np.ndarray:
    """Log-probabilities (2, rows) of the answers and of those beside them; nats."""
    workload: Any = step.workload
    assert isinstance(workload, Preference)
    device = next(step.model.parameters()).device

    def score(batch: Batch) -> Tensor:
        on_device = {key: value.to(device) for key, value in batch.items()}
        return torch.stack(workload.log_probabilities(step.model, on_device), dim=1).double().cpu()

    table = np.zeros((len(data.lengths), 2))
    with scoring(step):
        for indices, batch in batches_by_length(data.lengths, data.collate, scored_tokens(step) // 2):
            table[indices] = torch.cat(in_pieces(score, batch)).numpy()
    return table.T.copy()


def answer_sizes(data: SidedData) -> np.ndarray:
    """Tokens (2, rows) of the answers and of those beside them."""
    sides = data.sides.values()
    return np.asarray([[int((np.asarray(s.target) != IGNORED).sum()) for s in samples] for samples in sides])
