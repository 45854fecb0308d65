"""What `preference` minimises: which loss of direct preference optimisation, or KTO's, and its numbers; TRL's words."""

from typing import Annotated, Any, Literal

from pydantic import Field

from forerun.settings.plain import LARGEST
from forerun.settings.section import PlainSection

SMOOTHED = ("sigmoid", "robust")
"""Losses that have a share of pairs whose answers were exchanged."""
UNPAIRED = "kto"
"""The loss of single answers that are desirable or not; the others are of pairs."""
Weight = Annotated[float, Field(gt=0, le=LARGEST)]


class PreferenceSettings(PlainSection):
    """The loss of `preference`; formulas are in `step/preference_loss.py`, and KTO's in `step/unpaired.py`."""

    loss: Literal["sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "kto"] = "sigmoid"
    """`sigmoid` DPO; `robust` the same, unbiased under exchanged answers; `hinge` SLiC; `ipo` squared distance from a
    margin, per token; `apo_zero` and `apo_down` raise the chosen answer, or lower both; `kto` single answers, each
    desirable or not (rows of `unpaired-preference`)."""
    beta: Annotated[float, Field(gt=0, le=LARGEST)] = 0.1
    """How closely the model stays with its reference: higher is closer. `ipo` calls it τ."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of pairs whose answers are taken to be exchanged; with `sigmoid` conservative DPO."""
    desirable_weight: Weight = 1.0
    """`kto`: factor on the loss of desirable answers (λ_D)."""
    undesirable_weight: Weight = 1.0
    """`kto`: factor on the loss of undesirable answers (λ_U)."""

    @property
    def is_unpaired(self) -> bool:
        """Whether a sample is one answer, desirable or not."""
        return self.loss == UNPAIRED


LATER = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
"""Fields that came after hashes had been stored, with their defaults."""


def without_later_weights(content: dict[str, Any]) -> dict[str, Any]:
    """The section as hashes know it: what came after hashes had been stored is left out where it says nothing."""
    return {name: value for name, value in content.items() if LATER.get(name) != value}


def preference_conflicts(workload: str, own: PreferenceSettings) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy)."""
    weights = own.desirable_weight, own.undesirable_weight
    return [
        (
            workload != "preference" and own != PreferenceSettings(),
            f"preference: is for workload preference; found it with workload={workload!r}. Leave it out, or set "
            f"workload to preference.",
        ),
        (
            own.label_smoothing > 0 and own.loss not in SMOOTHED,
            f"preference.label_smoothing: belongs to {' and '.join(SMOOTHED)}; found {own.label_smoothing:g} with "
            f"loss={own.loss!r}. Set it to 0, or preference.loss to robust.",
        ),
        (
            own.label_smoothing == 0 and own.loss == "robust",
            "preference.loss: robust without label_smoothing is sigmoid; found label_smoothing=0. Set "
            "preference.label_smoothing to the share of wrong pairs, such as 0.1, or preference.loss to sigmoid.",
        ),
        (
            weights != (1.0, 1.0) and not own.is_unpaired,
            f"preference.desirable_weight, undesirable_weight: belong to kto; found {weights[0]:g} and {weights[1]:g} "
            f"with loss={own.loss!r}. Leave them out, or set preference.loss to kto.",
        ),
    ]
