"""What `code-detector` offers beyond the settings every run has: training without formatting, leaving a part out."""

from typing import Annotated, Literal, cast

from pydantic import Field

from forerun.data.code_authorship import CodeCorpus
from forerun.settings.load import recipe_options
from forerun.settings.schema import Section, Settings

Attribute = Literal["source", "language", "family"]


class CodeDetectorOptions(Section):
    """`recipe.…` of the settings."""

    form: Literal["raw", "normalised"] = "raw"
    """`normalised` trains and judges on code without its formatting (`data.normalise_code`), so that tabs are no
    evidence."""
    hold_out: Annotated[str, Field(pattern=r"^$|^(source|language|family):.+$")] = ""
    """`source:NAME`, `language:NAME` or `family:NAME` (a maker of generators): trained without it, judged on it."""


VARIANTS = {
    "all": (),
    "normalised": ("recipe.form=normalised",),
    "unseen source codeaid_63": ("recipe.hold_out=source:codeaid_63",),
    "unseen generators of qwen": ("recipe.hold_out=family:qwen",),
    "unseen generators of meta-llama": ("recipe.hold_out=family:meta-llama",),
    "unseen language java": ("recipe.hold_out=language:java",),
}
"""What `forerun sweep code-detector` runs: how it stands where it has learned nothing."""


def options_of(settings: Settings) -> CodeDetectorOptions:
    """The options of a run.

    Raises:
        InvalidSettings: one is unknown or wrong.
    """
    return recipe_options(settings, CodeDetectorOptions)


def part_of(corpus: CodeCorpus, options: CodeDetectorOptions) -> CodeCorpus:
    """The corpus with what is held out as its test rows.

    Raises:
        BadData: nothing has that value.
    """
    if not options.hold_out:
        return corpus
    attribute, _, value = options.hold_out.partition(":")
    return corpus.hold_out(cast(Attribute, attribute), value)
