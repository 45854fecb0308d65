"""The model's answers to held-out samples, in batches alike in length; nothing is trained."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.data.token_data import TokenData, TokenSample
from forerun.settings.schema import Settings
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Batch
from forerun.train.recovery import in_pieces

BATCH_TOKENS = 8192
"""Padded tokens of a batch that is scored."""
T = TypeVar("T")


def held_out_data(settings: Settings, samples: Sequence[TokenSample], pad_id: int, start_id: int = 0) -> TokenData:
    """Samples to score: padded, each in a row of its own."""
    plain = settings.model_copy(update={"batch": settings.batch.model_copy(update={"padding": "longest"})})
    return TokenData(plain, samples, pad_id, start_id)


def batches_by_length(
    lengths: Sequence[int] | NDArray[np.int64], collate: Callable[[Sequence[int]], Batch], tokens: int = BATCH_TOKENS
) -> Iterator[tuple[list[int], Batch]]:
    """Every sample once, the longest first: indices and batch of at most `tokens` padded tokens (one sample at least).

    The longest come first, so that a batch too large for the memory is met at once.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    first = 0
    while first < len(order):
        size = max(1, tokens // max(1, int(lengths[order[first]])))
        indices = order[first : first + size].tolist()
        yield indices, collate(indices)
        first += size


@contextlib.contextmanager
def scoring(step: TrainingStep) -> Iterator[None]:
    """Evaluation mode, no gradients, the run's number formats; the training mode is put back after."""
    was_training = step.model.training
    step.model.eval()
    # no inference_mode: FSDP2 gathers weights into tensors that training writes to again
    with torch.no_grad(), step.policy.autocast(step.device_type):
        yield
    step.model.train(was_training)


def answers(
    step: TrainingStep, data: TokenData, answer: Callable[[Batch], T], tokens: int = BATCH_TOKENS
) -> Iterator[tuple[list[int], list[T]]]:
    """Indices of each batch, and what `answer` makes of it on the model's device, in pieces where memory is short."""
    device = next(step.model.parameters()).device
    with scoring(step):
        for indices, batch in batches_by_length(data.lengths, data.collate, tokens):
            yield indices, in_pieces(lambda part: answer({k: v.to(device) for k, v in part.items()}), batch)


def class_logits(step: TrainingStep, data: TokenData) -> np.ndarray:
    """Outputs (samples, classes) of a classification head, in fp32."""

    def logits(batch: Batch) -> Tensor:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "count")}
        return step.model(**inputs).logits.float().cpu()

    rows: dict[int, np.ndarray] = {}
    for indices, pieces in answers(step, data, logits):
        rows.update(zip(indices, torch.cat(pieces).numpy(), strict=True))
    return np.stack([rows[number] for number in range(len(rows))])
