"""When is a run scored, and on how much?"""

from typing import Annotated, Any, Literal

from pydantic import Field

from forerun.settings.section import AnyNumber, Count, Epochs, PlainSection


class EvaluationSettings(PlainSection):
    """When and on how much a run is scored."""

    every_epochs: Epochs = 1
    """Epochs between evaluations."""
    examples: AnyNumber = 0
    """Samples scored each time; 0 does not evaluate. Of own data: most validation rows, drawn by chance; 0 takes all of
    up to 20,000 rows and 8 MiB."""
    test_examples: AnyNumber = 0
    """Own data: most test rows that judge the run, drawn by chance; 0 takes all of up to 20,000 rows and 8 MiB."""
    judged_on: Literal["test", "validation"] = "test"
    """Own data: rows that judge the run. `validation` leaves the test rows alone, as the trials of a search do."""
    new_tokens: Annotated[int, Field(ge=0, le=2**24)] = 0
    """Tokens generated per sample; 0 only scores."""
    metric: str | None = None
    """Score by which the best checkpoint is chosen; `null` takes the workload's own."""
    patience: Count | None = None
    """Stop after so many evaluations in a row without a better score; `null` never stops early."""


LATER = {"test_examples": 0, "judged_on": "test"}
"""Fields that came after hashes had been stored, and their values that say nothing."""


def without_later_fields(content: dict[str, Any]) -> dict[str, Any]:
    """The section as hashes know it: what came after hashes had been stored is left out where it says nothing."""
    return {name: value for name, value in content.items() if LATER.get(name, ()) != value}
