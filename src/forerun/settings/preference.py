"""What `preference` minimises: which loss of direct preference optimisation, and its numbers. Words are TRL's."""

from typing import Annotated, Literal

from pydantic import Field

from forerun.settings.plain import LARGEST
from forerun.settings.section import PlainSection

SMOOTHED = ("sigmoid", "robust")
"""Losses that have a share of pairs whose answers were exchanged."""


class PreferenceSettings(PlainSection):
    """The loss of `preference`; formulas are in `step/preference_loss.py`."""

    loss: Literal["sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down"] = "sigmoid"
    """`sigmoid` DPO; `robust` the same, unbiased under exchanged answers; `hinge` SLiC; `ipo` squared distance from a
    margin, per token; `apo_zero` and `apo_down` raise the chosen answer, or lower both."""
    beta: Annotated[float, Field(gt=0, le=LARGEST)] = 0.1
    """How closely the model stays with its reference: higher is closer. `ipo` calls it τ."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Share of pairs whose answers are taken to be exchanged; with `sigmoid` conservative DPO."""


def preference_conflicts(workload: str, own: PreferenceSettings) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy)."""
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
    ]
