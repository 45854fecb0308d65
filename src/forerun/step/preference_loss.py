"""The loss of a pair of answers from how much likelier training has made each, in nats.

With g = log p(chosen) - log q(chosen) of the model p and the reference q, r the same of the rejected answer, d = g - r,
β = `beta`, ε = `label_smoothing`, n answer tokens, and σ the logistic function:

| loss | of one pair | source |
|---|---|---|
| `sigmoid` | -(1 - ε) log σ(βd) - ε log σ(-βd) | Rafailov et al. 2023 (arXiv 2305.18290), eq. 7; ε: Mitchell 2023 |
| `robust` | [-(1 - ε) log σ(βd) + ε log σ(-βd)] / (1 - 2ε) | Chowdhury et al. 2024 (arXiv 2403.00409), eq. 12 |
| `hinge` | max(0, 1 - βd) | Zhao et al. 2023 (arXiv 2305.10425), with β for their γ |
| `ipo` | (g / n(chosen) - r / n(rejected) - 1 / 2β)² | Azar et al. 2023 (arXiv 2310.12036), eq. 17; per token as TRL |
| `apo_zero` | 1 - σ(βg) + σ(βr) | D'Oosterlinck et al. 2024 (arXiv 2408.06266), eq. 7 |
| `apo_down` | σ(βg) + 1 - σ(βd) | the same, eq. 8 |

Each is what trl/trainer/dpo_trainer.py (1.16) computes under that name, but for `sigmoid` with ε, which 1.16 has not.

Of single answers, `kto` (Ethayarajh et al. 2024, arXiv 2402.01306, eq. 7, as trl/trainer/kto_trainer.py of 1.16), with
λ_D = `desirable_weight`, λ_U = `undesirable_weight`, and z the divergence of p from q, at least 0, without gradient:

    λ_D (1 - σ(β (g - z))) of a desirable answer, λ_U (1 - σ(β (z - g))) of an undesirable one
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from forerun.settings.preference import PreferenceSettings


def preference_loss(
    gains: tuple[Tensor, Tensor], objective: PreferenceSettings, tokens: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Loss of each pair (B,) from the gains g and r (B,) each; `ipo` needs the tokens of both answers (B,) too."""
    better, worse = gains
    beta, share = objective.beta, objective.label_smoothing
    logits = beta * (better - worse)
    match objective.loss:
        case "sigmoid":
            loss = -F.logsigmoid(logits)
            return loss if not share else (1 - share) * loss - share * F.logsigmoid(-logits)
        case "robust":
            return (share * F.logsigmoid(-logits) - (1 - share) * F.logsigmoid(logits)) / (1 - 2 * share)
        case "hinge":
            return torch.relu(1 - logits)
        case "ipo":
            assert tokens is not None
            means = [gain / count.clamp(min=1) for gain, count in zip(gains, tokens, strict=True)]
            return (means[0] - means[1] - 1 / (2 * beta)) ** 2
        case "apo_zero":
            return 1 - torch.sigmoid(beta * better) + torch.sigmoid(beta * worse)
        case "apo_down":
            return torch.sigmoid(beta * better) + 1 - torch.sigmoid(logits)
        case "kto":
            raise AssertionError("kto is of single answers: `unpaired_loss`")


def unpaired_loss(gain: Tensor, is_desirable: Tensor, divergence: Tensor, objective: PreferenceSettings) -> Tensor:
    """KTO's loss of each answer (B,), from its gain g (B,), 1 or 0 for `is_desirable` (B,), and z, a scalar."""
    weight = is_desirable * objective.desirable_weight + (1 - is_desirable) * objective.undesirable_weight
    ahead = (2 * is_desirable - 1) * (gain - divergence.detach().clamp(min=0))
    return weight * (1 - torch.sigmoid(objective.beta * ahead))
