"""Which training rows look wrong: rows ranked by how little a trained causal model believes their labels.

Two scores need no clean data and no second training:

    loss       -log p(label | prompt), summed over the output's tokens
    gradient   length of the gradient of that loss in the weights of the output layer (GraNd of the last layer; Paul et
               al. 2021, arXiv 2107.07075). With h_t the last hidden states and e_t = p_t - y_t it is |sum_t e_t h_t^T|,
               which one forward pass gives: |G|^2 = sum_ts (e_t . e_s)(h_t . h_s).

The third compares a row with trusted questions, whose answers are known to be right:

    influence  minus the product of that gradient with the mean gradient of the trusted rows (TracIn at one checkpoint;
               Pruthi et al. 2020, arXiv 2002.08484): a step on the row would raise the trusted loss.

Ranking is best where every row is seen about once: with many epochs a model learns wrong labels by heart.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from forerun.data.token_data import IGNORED, TokenSample
from forerun.evaluate.classification import roc_auc
from forerun.settings.schema import Precision
from forerun.step.parallel import unwrapped
from forerun.step.precision import POLICIES
from forerun.train.recovery import in_pieces

Floats = NDArray[np.float64]
MOST_ROWS, MOST_LOGITS = 256, 2**26
"""Scored together at most: rows, and logits (256 MiB in fp32)."""
Reduced = TypeVar("Reduced")


@dataclass(frozen=True)
class RowScores:
    """One value per row for each score; a higher one is more suspect."""

    loss: Floats
    """-log p(output), in nats."""
    gradient: Floats
    """Length of the loss's gradient in the output layer."""
    influence: Floats
    """Minus the product of that gradient with the trusted rows'; zero without trusted rows."""
    is_reproduced: NDArray[np.bool_]
    """Whether greedy decoding would give the row's output, token for token."""

    def ranked(self, by: str) -> NDArray[np.int64]:
        """Rows, the most suspect first; equal ones in their order."""
        return np.argsort(-getattr(self, by), kind="stable")


def score_rows(
    model: nn.Module,
    samples: Sequence[TokenSample],
    pad_id: int,
    *,
    trusted: Sequence[TokenSample] = (),
    precision: Precision = "fp32",
) -> RowScores:
    """Scores of `samples` under the model as it is; its training mode is put back after."""
    was_training = model.training
    model.eval()
    with torch.inference_mode(), POLICIES[precision].autocast(next(model.parameters()).device.type):
        direction = None
        if trusted:
            slope = partial(torch.einsum, "btv,btd->vd")
            parts = _forward(model, trusted, pad_id, lambda errors, hidden, *_: slope(errors, hidden))
            direction = torch.stack(list(parts)).sum(0) / len(trusted)
        batches = list(
            _forward(model, samples, pad_id, lambda e, h, losses, right: _scores(e, h, losses, right, direction))
        )
    model.train(was_training)
    loss, gradient, influence, reproduced = (torch.cat(part).cpu().numpy() for part in zip(*batches, strict=True))
    return RowScores(loss.astype(float), gradient.astype(float), influence.astype(float), reproduced)


def precision_at(corrupt: Sequence[bool], order: NDArray[np.int64], first: int) -> float:
    """Share of corrupt rows among the `first` most suspect ones."""
    return float(np.mean(np.asarray(corrupt)[order[:first]]))


def separation(corrupt: Sequence[bool], scores: Floats) -> float | None:
    """Probability that a corrupt row is more suspect than a clean one (ROC AUC); None where one kind is missing."""
    return roc_auc(corrupt, scores) if 0 < sum(corrupt) < len(corrupt) else None


Forward = tuple[Tensor, Tensor, Tensor, Tensor]
"""Errors p - y (B, T, V) and hidden states (B, T, D), zero where nothing counts; -log p (B, T); rightness (B, T)."""


def _forward(
    model: nn.Module, samples: Sequence[TokenSample], pad_id: int, reduce: Callable[..., Reduced]
) -> Iterator[Reduced]:
    """Results of `reduce` on the forward pass of each batch, in the order of the samples."""
    bare: Any = unwrapped(model)
    device = next(bare.parameters()).device
    longest = max((len(sample.ids) for sample in samples), default=1)
    rows = max(1, min(MOST_ROWS, MOST_LOGITS // (longest * bare.config.vocab_size)))
    for first in range(0, len(samples), rows):
        batch = _batch(samples[first : first + rows], pad_id)
        yield from in_pieces(lambda part: reduce(*_one_forward(bare, part, device)), batch)


def _one_forward(model: Any, batch: dict[str, Tensor], device: torch.device) -> Forward:
    output = model(input_ids=batch["input_ids"].to(device), output_hidden_states=True)
    targets = batch["labels"].to(device)[:, 1:]
    valid = targets != IGNORED
    # utils/output_capturing.py (transformers 5.23): hidden_states[-1] is the input of the output layer, after the norm
    logits, hidden = output.logits[:, :-1].float(), output.hidden_states[-1][:, :-1].float()
    logs = logits.log_softmax(-1)
    labels = targets.clamp_min(0)
    losses = -logs.gather(2, labels[..., None])[..., 0] * valid
    errors = logs.exp()
    errors.scatter_add_(2, labels[..., None], torch.full_like(losses, -1.0)[..., None])
    right = (logits.argmax(-1) == targets) | ~valid
    return errors * valid[..., None], hidden * valid[..., None], losses, right


def _scores(
    errors: Tensor, hidden: Tensor, losses: Tensor, right: Tensor, direction: Tensor | None
) -> tuple[Tensor, ...]:
    products = torch.einsum("btv,bsv->bts", errors, errors) * torch.einsum("btd,bsd->bts", hidden, hidden)
    length = products.sum((1, 2)).clamp_min(0).sqrt()
    influence = torch.zeros_like(length)
    if direction is not None:
        influence = -torch.einsum("btv,vd,btd->b", errors, direction, hidden)
    return losses.sum(1), length, influence, right.all(1)


def _batch(samples: Sequence[TokenSample], pad_id: int) -> dict[str, Tensor]:
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.full((len(samples), longest), pad_id)
    labels = torch.full((len(samples), longest), IGNORED)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.as_tensor(list(sample.ids))
        target = sample.token_labels if len(sample.token_labels) else sample.ids
        labels[row, : len(target)] = torch.as_tensor(list(target))
    return {"input_ids": ids, "labels": labels}
