"""From a YAML file or mapping and `dotted.path=value` overrides to `Settings`, with errors that name the field."""

import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from forerun.errors import InvalidSettings, nearest
from forerun.settings.plain import in_short, require_plain
from forerun.settings.refused_words import reason_of_key, reason_of_value
from forerun.settings.schema import Section, Settings
from forerun.settings.yaml_text import parse_yaml, read_yaml

Options = TypeVar("Options", bound=Section)
MOST_PROBLEMS = 8
"""Wrong settings that one message names."""


def load_settings(path: Path, overrides: Sequence[str] = ()) -> Settings:
    """Settings from a YAML file; one that gives no name is called by that of its file.

    Raises:
        InvalidSettings: the file is missing, is no YAML mapping, or breaks a rule.
    """
    content = read_yaml(path, "Settings")
    if not isinstance(content, dict):
        raise InvalidSettings(f"Settings file {path} must hold a mapping of settings; found {type(content).__name__}.")
    return settings_from({"name": path.stem} | content, overrides)


def settings_from(content: Mapping[str, Any], overrides: Sequence[str] = ()) -> Settings:
    """Settings from a mapping, after applying `dotted.path=value` overrides; the mapping is not changed.

    Raises:
        InvalidSettings: a key, type, range or combination is wrong.
    """
    merged = _copy(_plain_mapping(content))
    for override in overrides:
        _apply(merged, override)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise InvalidSettings(_explain(error)) from error


def recipe_options(settings: Settings, kind: type[Options]) -> Options:
    """Options in `settings.recipe`, checked by the recipe's own section.

    Raises:
        InvalidSettings: an option is unknown or wrong; it is named as `recipe.option`.
    """
    try:
        return kind.model_validate(settings.recipe)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, kind, "recipe.")) from error


def _plain_mapping(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise InvalidSettings(f"Settings are a mapping; found {in_short(content)}. Example: {{name: my-run, …}}")
    try:
        require_plain(content)
    except ValueError as error:
        raise InvalidSettings(f"Invalid settings. {error}.") from error
    return content


def _copy(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in content.items()}


def _apply(content: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InvalidSettings(
            f"--set wants dotted.path=value; found {in_short(override)}. Example: --set batch.micro_batch_size=8"
        )
    for key in keys[:-1]:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            raise InvalidSettings(f"--set {path}: {key} holds a single value, so it has no {keys[-1]} inside.")
        content = inner
    try:
        content[keys[-1]] = _number_like(parse_yaml(text))
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InvalidSettings(f"--set {path}: the value {in_short(text)} is not valid YAML: {reason}") from error


def _number_like(value: Any) -> Any:
    """YAML 1.1 reads 2e-4 (no dot) as text; people mean a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _explain(error: ValidationError, section: type[BaseModel] = Settings, prefix: str = "") -> str:
    parts, problems = [], error.errors(include_url=False)
    for problem in problems[:MOST_PROBLEMS]:
        field = (prefix + ".".join(str(part) for part in problem["loc"])).removesuffix(".")
        if problem["type"] == "extra_forbidden":
            close = nearest(str(problem["loc"][-1]), known_keys(problem["loc"][:-1], section))
            reason = reason_of_key(str(problem["loc"][-1]))
            parts.append(f"{field}: no such setting. {reason or f'Nearest: {close}'}.")
        elif problem["type"] == "missing":
            parts.append(f"{field}: required, but not given. Add it to the settings.")
        else:
            reason = reason_of_value(field, problem["input"])
            message = problem["msg"].removeprefix("Value error, ") + (f" ({reason})" if reason else "")
            actual = (
                ""
                if isinstance(problem["input"], dict | Section) or not field
                else f"; found {in_short(problem['input'])}"
            )
            parts.append(f"{field}: {message}{actual}." if field else message)
    if len(problems) > MOST_PROBLEMS:
        parts.append(f"And {len(problems) - MOST_PROBLEMS} more.")
    return "Invalid settings. " + " ".join(parts)


def known_keys(location: Sequence[int | str] = (), section: type[BaseModel] = Settings) -> list[str]:
    """The keys that the section at `location` of `section` accepts."""
    for part in location:
        inner = _section_of(section.model_fields[str(part)].annotation) if str(part) in section.model_fields else None
        if inner is None:
            return []
        section = inner
    return list(section.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
