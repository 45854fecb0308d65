"""Single answers, each desirable or not: KTO (Ethayarajh et al. 2024, arXiv 2402.01306) as a training step.

The divergence z of the model from its reference is estimated as the paper does, from answers to other prompts: the mean
of log p(y'|x) - log q(y'|x) over mismatched pairs, at least 0, without gradient. It is that of the whole optimizer step
over all ranks, however the step is split; TRL (1.16) takes that of each micro-batch. Loss: `preference_loss.py`.

A step costs a forward pass over the mismatched pairs, and forward and backward of the answers; the reference's
log-probabilities of both come with a batch.
"""

import torch
from torch import Tensor, nn

from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload, no_tokens
from forerun.step.heads import Preference, generic_workload
from forerun.step.pairs import Pairs
from forerun.step.preference_loss import unpaired_loss
from forerun.step.workload import STEP_MEAN, Batch, LossSum

MISMATCHED = "mismatched_"
"""Prefix of the keys of a batch that belong to the prompt with another prompt's answer."""


class UnpairedPreference(Preference):
    """Desirable answers likelier and undesirable ones less likely than before training, beside their divergence."""

    beside = MISMATCHED

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Ids and labels of both answers (B, T), the reference's log-probabilities and verdicts (B,)."""
        sides = {
            f"{side}{key}": no_tokens(size, length) for side in ("", MISMATCHED) for key in ("input_ids", "labels")
        }
        numbers = ("reference", "reference_mismatched", "is_desirable")
        return {**sides, **{name: torch.zeros(size) for name in numbers}}

    def summed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Gains of the mismatched answers, summed; nats."""
        likely = self.answer_log_probabilities(model, batch[f"{MISMATCHED}input_ids"], batch[f"{MISMATCHED}labels"])
        return (likely - batch["reference_mismatched"]).sum()

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss summed over answers; share of them on the right side of the divergence, and the divergence, nats."""
        divergence = batch.get(STEP_MEAN)
        if divergence is None:  # the batch is a whole step
            with torch.no_grad():
                divergence = self.summed(model, batch) / self.count(batch)
        gain = self.answer_log_probabilities(model, batch["input_ids"], batch["labels"]) - batch["reference"]
        divergence = divergence.clamp(min=0)
        ahead = (2 * batch["is_desirable"] - 1) * (gain - divergence)
        details = {
            "training_accuracy": (ahead > 0).float().mean().detach(),
            "training_divergence": divergence.float().mean().detach(),
        }
        return LossSum(unpaired_loss(gain, batch["is_desirable"], divergence, self.objective).sum(), details)


def workload_of_settings(settings: Settings) -> HeadWorkload | Pairs:
    """The generic workload that settings name; of `preference`, that of its loss.

    Raises:
        InvalidSettings: as `generic_workload`.
    """
    if settings.workload == Preference.name:
        kind = UnpairedPreference if settings.preference.is_unpaired else Preference
        return kind(objective=settings.preference)
    return generic_workload(settings.workload)
