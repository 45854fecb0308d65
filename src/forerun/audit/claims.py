"""A file of claims: what a document says of a training run, with the configurations that it says it of.

    document: How we train                 # and source: where it is
    configurations:
      lora:
        gpu: a100-40gb
        settings: {model: {name: gemma-2-2b}, batch: {micro_batch_size: 8}, data: {examples: 16750}, …}
      qlora: {like: lora, set: [quantization=nf4-double]}
    claims:
      - quote: "Base model (FP16)  4.5 GB"
        line: 116
        kind: memory-part                  # one check, or several under checks:
        part: weights
        claimed: 4.5 GB

Settings are those of `forerun forecast` (name and workload may be left out). `of` names the configuration of a check;
without it the first one counts. Nothing in a file says how a claim comes out.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, model_validator

from forerun.audit.context import Context, Forecaster, Measurer
from forerun.audit.findings import Check
from forerun.audit.kinds import KINDS
from forerun.errors import InvalidSettings, nearest
from forerun.settings.load import settings_from
from forerun.settings.schema import Section, Settings
from forerun.settings.yaml_text import read_yaml

WITHOUT_WORKLOAD = "causal-lm"
CLAIM_FIELDS = ("id", "quote", "line", "note", "checks")


class Configuration(Section):
    """A GPU and settings that claims are about."""

    gpu: str | None = None
    """Catalogue name."""
    settings: dict[str, Any] = {}
    """Settings as `forerun forecast` takes them."""
    drop_last: bool = False
    """The last partial micro-batch of an epoch is left out."""
    like: str | None = None
    """Another configuration that this one changes."""
    set: list[str] = []
    """Changes of the settings as `dotted.path=value`, the way `--set` takes them."""


if TYPE_CHECKING:
    AnyCheck = Check
else:
    AnyCheck = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]


class Claim(Section):
    """One claim of a document, and what to hold it against."""

    id: str = ""
    """A label; the claim's number without one."""
    quote: str
    """The document's words."""
    line: int | None = None
    """Line of the document."""
    note: str = ""
    """A note for the reader of the result."""
    checks: list[AnyCheck] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _one_check(cls, content: Any) -> Any:
        """A single check may stand in the claim itself."""
        if not isinstance(content, Mapping) or "checks" in content or "kind" not in content:
            return content
        own = {key: value for key, value in content.items() if key in CLAIM_FIELDS}
        return {**own, "checks": [{key: value for key, value in content.items() if key not in CLAIM_FIELDS}]}


class ClaimsFile(Section):
    """A document's claims."""

    document: str
    """Its title."""
    source: str = ""
    """Place where the document is published."""
    configurations: dict[str, Configuration] = {}
    """Configurations by name; the first counts where a check names none."""
    claims: list[Claim] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_known(self) -> "ClaimsFile":
        for name, configuration in self.configurations.items():
            if configuration.like is not None and configuration.like not in self.configurations:
                raise ValueError(f"configurations.{name}.like: no configuration {configuration.like!r}")
        for number, claim in enumerate(self.claims):
            for check in claim.checks:
                if check.of is not None and check.of not in self.configurations:
                    close = nearest(check.of, list(self.configurations)) or "none is given"
                    raise ValueError(f"claims.{number}: of names no configuration ({check.of!r}). Nearest: {close}")
        return self


def load_claims(path: Path) -> ClaimsFile:
    """A claims file from YAML.

    Raises:
        InvalidSettings: the file is missing, is no YAML mapping, or breaks a rule; the message names the field.
    """
    content = read_yaml(path, "Claims")
    if not isinstance(content, dict):
        raise InvalidSettings(f"Claims file {path} must hold a mapping; found {type(content).__name__}.")
    return claims_from(content)


def claims_from(content: Mapping[str, Any]) -> ClaimsFile:
    """Claims from a mapping.

    Raises:
        InvalidSettings: a key, kind, quantity or combination is wrong.
    """
    try:
        return ClaimsFile.model_validate(content)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, content)) from error


def contexts_of(
    file: ClaimsFile, forecaster: Forecaster | None = None, measurer: Measurer | None = None
) -> dict[str | None, Context]:
    """Contexts by the name of their configuration; the key None has the first one, or an empty one.

    Raises:
        InvalidSettings: settings of a configuration are wrong.
    """
    contexts: dict[str | None, Context] = {}
    for name in file.configurations:
        gpu, content, changes, drop_last = _resolve(file.configurations, name, ())
        settings = _settings(name, content, changes) if content else None
        contexts[name] = Context(name, settings, gpu, drop_last, forecaster, measurer)
    return {None: next(iter(contexts.values()), Context(forecaster=forecaster, measurer=measurer)), **contexts}


def _resolve(
    configurations: Mapping[str, Configuration], name: str, path: tuple[str, ...]
) -> tuple[str | None, dict[str, Any], list[str], bool]:
    if name in path:
        raise InvalidSettings(f"configurations.{name}.like: goes round in a circle ({' → '.join((*path, name))}).")
    own = configurations[name]
    if own.like is None:
        return own.gpu, own.settings, own.set, own.drop_last
    gpu, content, changes, drop_last = _resolve(configurations, own.like, (*path, name))
    return own.gpu or gpu, own.settings or content, [*changes, *own.set], own.drop_last or drop_last


def _settings(name: str, content: Mapping[str, Any], changes: list[str]) -> Settings:
    try:
        return settings_from({"name": name, "workload": WITHOUT_WORKLOAD, **content}, changes)
    except InvalidSettings as error:
        raise InvalidSettings(f"configurations.{name}: {error}") from error


def _explain(error: ValidationError, content: Mapping[str, Any]) -> str:
    return "Invalid claims file. " + " ".join(_describe_problem(problem, content) for problem in error.errors())


def _describe_problem(problem: Any, content: Mapping[str, Any]) -> str:
    # pydantic puts the tag of a discriminated union into `loc`, which is no place in the file.
    place = [str(part) for part in problem["loc"]]
    where = ".".join(part for part in place if part not in KINDS) + _claim_label(problem["loc"], content)
    kind = next((part for part in place if part in KINDS), None)
    match problem["type"]:
        case "union_tag_invalid" | "union_tag_not_found":
            value = problem["input"].get("kind") if isinstance(problem["input"], Mapping) else problem["input"]
            close = nearest(str(value), list(KINDS)) if value else ", ".join(KINDS)
            return f"{where}: no kind of check {value!r}. Nearest: {close}. `forerun audit --kinds` lists all."
        case "extra_forbidden":
            names = list(KINDS[kind].model_fields) if kind else _field_names(place)
            return f"{where}: no such field{f' of {kind}' if kind else ''}. Nearest: {nearest(place[-1], names)}."
        case "missing":
            return f"{where}: required{f' by {kind}' if kind else ''}, but not given. Add it."
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    actual = "" if isinstance(problem["input"], Mapping | Section) else f"; found {problem['input']!r}"
    return f"{where}: {message}{actual}." if where else f"{message}."


def _claim_label(location: tuple[int | str, ...], content: Mapping[str, Any]) -> str:
    """The id of the claim in question, where it has one."""
    if len(location) < 2 or location[0] != "claims" or not isinstance(location[1], int):
        return ""
    claim = content["claims"][location[1]]
    return f" (claim {claim['id']})" if isinstance(claim, Mapping) and claim.get("id") else ""


def _field_names(place: list[str]) -> list[str]:
    section = Claim if place[0] == "claims" else Configuration if place[0] == "configurations" else ClaimsFile
    return list((section if len(place) > 1 else ClaimsFile).model_fields)
