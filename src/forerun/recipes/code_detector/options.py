"""What `code-detector` offers beyond the settings every run has: training without formatting, leaving a part out, and
going on from the model of an earlier run with cases that the service collected."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import Field

from forerun.errors import BadData, InvalidSettings
from forerun.recipes.code_detector.data.corpus import CodeCorpus, from_path
from forerun.settings.load import recipe_options, settings_from
from forerun.settings.schema import Section, Settings

Attribute = Literal["source", "language", "family"]


class CodeDetectorOptions(Section):
    """`recipe.…` of the settings."""

    form: Literal["raw", "normalised"] = "raw"
    """`normalised` trains and judges on code without its formatting (`data.normalise`), so that tabs are no
    evidence."""
    hold_out: Annotated[str, Field(pattern=r"^$|^(source|language|family):.+$")] = ""
    """`source:NAME`, `language:NAME` or `family:NAME` (a maker of generators): trained without it, judged on it."""
    start: str = ""
    """Folder of an export (`forerun export`) whose weights and tokeniser training goes on from; empty: from scratch."""
    edge_cases: str = ""
    """File of `forerun monitor --edge-cases`, or rows like the shipped ones: all are added to the training split."""


VARIANTS = {
    "all": (),
    "normalised": ("recipe.form=normalised",),
    "unseen source codeaid_63": ("recipe.hold_out=source:codeaid_63",),
    "unseen generators of qwen": ("recipe.hold_out=family:qwen",),
    "unseen generators of meta-llama": ("recipe.hold_out=family:meta-llama",),
    "unseen language java": ("recipe.hold_out=language:java",),
}
"""Overrides of each run of `forerun sweep code-detector`: as shipped, without formatting, and with parts held out."""


def options_of(settings: Settings) -> CodeDetectorOptions:
    """The options of a run.

    Raises:
        InvalidSettings: one is unknown or wrong.
    """
    return recipe_options(settings, CodeDetectorOptions)


def part_of(corpus: CodeCorpus, options: CodeDetectorOptions) -> CodeCorpus:
    """The corpus with what is held out as its test rows, and with the edge cases among its training rows.

    Raises:
        BadData: nothing has the value that is held out, or the file of edge cases cannot be read.
    """
    if options.hold_out:
        attribute, _, value = options.hold_out.partition(":")
        corpus = corpus.hold_out(cast(Attribute, attribute), value)
    return corpus if not options.edge_cases else _with_edge_cases(corpus, Path(options.edge_cases))


def _with_edge_cases(corpus: CodeCorpus, path: Path) -> CodeCorpus:
    """The corpus with edge cases as training rows, except those whose text is in validation or test (frozen)."""
    frozen = {_bare(sample.code) for sample in corpus.samples if sample.split != "train"}
    added = [replace(sample, split="train") for sample in from_path(path).samples if _bare(sample.code) not in frozen]
    if not added:
        raise BadData(f"recipe.edge_cases: {path} has no case that is not in validation or test already.")
    return CodeCorpus((*added, *corpus.samples))  # first, so that `data.examples` keeps them


def _bare(code: str) -> str:
    """The code without white space, so that a text in another formatting counts as the same."""
    return "".join(code.split())


def require_start(settings: Settings) -> Path | None:
    """The export that training goes on from; None where it starts from scratch.

    Raises:
        BadData: no export is there.
        InvalidSettings: it holds another model, or one of another form of code.
    """
    options = options_of(settings)
    if not options.start:
        return None
    folder = Path(options.start)
    try:
        start_settings = settings_from(json.loads((folder / "forerun.json").read_text(encoding="utf-8"))["settings"])
    except (OSError, KeyError, ValueError) as error:
        raise BadData(f"recipe.start: {folder} holds no export: {error}. Make one with forerun export RUN.") from error
    for what, own_value, start_value in (
        ("workload", settings.workload, start_settings.workload),
        ("model.name", settings.model.name, start_settings.model.name),
        ("model.config", settings.model.config, start_settings.model.config),
        ("recipe.form", options.form, start_settings.recipe.get("form", "raw")),
    ):
        if own_value != start_value:
            raise InvalidSettings(
                f"recipe.start: {folder} has {what} {start_value!r}, this run {own_value!r}. "
                f"Set {what} to {start_value!r}."
            )
    return folder
