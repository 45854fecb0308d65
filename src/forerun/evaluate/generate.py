"""Text generated for many prompts: batches alike in length, padded on the left (of encoders, on the
right), with a key-value cache.

A batch that runs out of memory is generated again in halves. Greedy decoding does not depend on how prompts are
batched, but for rounding; sampling draws from torch's generator, so a seed fixes it for one machine and batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forerun.settings.schema import Precision
from forerun.step.parallel import unwrapped
from forerun.step.precision import POLICIES
from forerun.train.recovery import in_pieces


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen."""

    new_tokens: int
    """Most new tokens per prompt."""
    end_ids: tuple[int, ...]
    """Generation of a prompt stops after one of these."""
    pad_id: int
    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_p: float = 1.0


def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    decoding: Decoding,
    *,
    batch_size: int,
    precision: Precision = "fp32",
) -> list[list[int]]:
    """The new token ids for each prompt, in the order of the prompts, without end and padding.

    Raises:
        OutOfMemory: not even one prompt at a time fits.
    """
    bare: Any = unwrapped(model)
    device = next(bare.parameters()).device
    # neighbours in length share a batch, which saves padding
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]), reverse=True)
    answers: list[list[int]] = [[] for _ in prompts]
    was_training = bare.training
    bare.eval()
    with torch.no_grad(), POLICIES[precision].autocast(device.type):
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            texts = [prompts[number] for number in numbers]
            batch = (right_padded if is_two_sided(bare) else left_padded)(texts, decoding.pad_id)
            pieces = in_pieces(lambda part: _continued(bare, part, decoding, device), batch)
            rows = [row for piece in pieces for row in piece.tolist()]
            for number, row in zip(numbers, rows, strict=True):
                answers[number] = until_end(row, decoding)
    bare.train(was_training)
    return answers


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Ids and mask (prompts, longest): the last token of each prompt stands in the last column."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError("a prompt has at least one token")
        ids[row, -len(prompt) :] = torch.as_tensor(prompt, dtype=torch.long)
        mask[row, -len(prompt) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def right_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> dict[str, Tensor]:
    """Ids and mask (prompts, longest) for an encoder: the first token of each prompt stands in the first column."""
    flipped = left_padded([list(reversed(prompt)) for prompt in prompts], pad_id)
    return {name: tensor.flip(1) for name, tensor in flipped.items()}


def is_two_sided(model: nn.Module) -> bool:
    """Whether an encoder reads the prompt, so that a decoder begins anew."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def until_end(ids: Sequence[int], decoding: Decoding) -> list[int]:
    """The ids before the first end or padding."""
    stops = {*decoding.end_ids, decoding.pad_id}
    return list(ids[: next((place for place, token in enumerate(ids) if token in stops), len(ids))])


def expected_longest(lengths: Sequence[int], batch_size: int, most: int) -> float:
    """Mean number of tokens until the last of a batch has ended: the longest of `batch_size` lengths drawn at random.

    No length counts for more than `most`. The longest of b draws is at most the i-th of n lengths in their order with
    the probability (i / n) ** b.
    """
    ordered = sorted(min(length, most) for length in lengths)
    below = [(place / len(ordered)) ** batch_size for place in range(len(ordered) + 1)]
    return sum(length * (upto - before) for length, before, upto in zip(ordered, below, below[1:], strict=False))


def sampled(temperature: float, top_p: float) -> dict[str, float]:
    """What `generate` of transformers is told where tokens are drawn.

    It would draw from the 50 likeliest only where nobody names `top_k` (generation/configuration_utils.py, 5.24.0:
    `"top_k": 50`); 0 lets all tokens in.
    """
    return {"temperature": temperature, "top_p": top_p, "top_k": 0}


def _continued(model: Any, batch: dict[str, Tensor], decoding: Decoding, device: torch.device) -> Tensor:
    """New ids (prompts, at most `new_tokens`)."""
    samples = decoding.temperature > 0
    sampling = sampled(decoding.temperature, decoding.top_p) if samples else {}
    ids = batch["input_ids"].to(device)
    result = model.generate(
        input_ids=ids,
        attention_mask=batch["attention_mask"].to(device),
        max_new_tokens=decoding.new_tokens,
        do_sample=samples,
        eos_token_id=list(decoding.end_ids),
        pad_token_id=decoding.pad_id,
        use_cache=True,
        **sampling,
    )
    return result[:, 1:] if is_two_sided(model) else result[:, ids.shape[1] :]  # a decoder begins with its start id
