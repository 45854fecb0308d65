"""Texts that a trained model of `okadfa` goes on with, token by token, each read with the window before it."""

from collections.abc import Sequence

import torch

from forerun.data.language_tokens import LanguageTokens
from forerun.step.precision import POLICIES
from forerun.step.training_step import TrainingStep


def continued_texts(
    step: TrainingStep, tokens: LanguageTokens, texts: Sequence[str], new_tokens: int
) -> list[dict[str, str]]:
    """Greedy continuation of each text, of `new_tokens` tokens or up to the end of the document.

    Not covered: a cache. Every token costs one forward pass over at most a window.
    """
    model, window = step.model, step.settings.batch.sequence_length
    device = next(model.parameters()).device
    model.eval()
    answers = []
    with torch.no_grad(), POLICIES[step.settings.precision].autocast(device.type):
        for text in texts:
            ids = tokens.start_of(text)
            first, end = len(ids), ids[0]
            while len(ids) < first + new_tokens:
                logits = model(torch.tensor([ids[-window:]], device=device)).logits[0, -1]
                ids.append(int(logits.argmax()))
                if ids[-1] == end:
                    break
            answers.append({"text": tokens.text(ids[first:])})
    return answers
