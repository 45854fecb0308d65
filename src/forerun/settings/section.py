"""What every part of the settings is made of."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from forerun.settings.plain import LARGEST, LONGEST_TEXT, require_plain

Count = Annotated[int, Field(ge=1, le=LARGEST)]
AnyNumber = Annotated[int, Field(ge=0, le=LARGEST)]
Epochs = Annotated[float, Field(ge=1e-6, le=1e6)]
BatchCount = Annotated[int, Field(ge=1, le=2**20)]
"""Samples or micro-steps: 60 times what the largest published runs have (16 M tokens of 1,024)."""
SequenceLength = Annotated[int, Field(ge=1, le=2**24)]
"""Tokens; the longest published context has 10 M (Llama 4 Scout)."""
Ranks = Annotated[int, Field(ge=1, le=2**18)]
"""Devices; the largest known cluster has some 200,000."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class PlainSection(Section):
    """A group of a run's settings, whose values are plain and finite; claims of others may name infinite ones."""

    model_config = ConfigDict(allow_inf_nan=False, str_max_length=LONGEST_TEXT)

    @field_validator("*", mode="after")
    @classmethod
    def _are_plain(cls, value: Any) -> Any:
        require_plain(value)
        return value
