"""Fields of a configuration that hold one value for each layer, and what becomes of them where the depth is changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.errors import InvalidSettings

KINDS_AND_TIMES = "attention_types"
"""Of GPT-Neo: kinds of layers, and how often they come."""


def period(values: Sequence[Any]) -> int:
    """After how many layers the kinds of layers come again."""
    whole = len(values)
    return next(p for p in range(1, whole + 1) if all(values[n] == values[n + p] for n in range(whole - p)))


def lists_of_depth(stated: Mapping[str, Any], depth_field: str, overrides: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The per-layer lists of a `stated` configuration at the depth that `overrides` ask for; none where they do not.

    Shallower models have the first layers; deeper ones go on as the layers repeat. Lists of words are per layer where
    their name says so (`layer_types`).

    Raises:
        InvalidSettings: the model is to be deeper, and a list does not repeat.
    """
    depth, before = overrides.get(depth_field), stated.get(depth_field)
    if not isinstance(depth, int) or not isinstance(before, int) or depth == before:
        return {}
    changed: dict[str, list[Any]] = {}
    for name, values in stated.items():
        if name == KINDS_AND_TIMES and name not in overrides:
            kinds = values[0][0]
            changed[name] = [[[kinds[n % len(kinds)] for n in range(depth)], 1]]
            continue
        if not isinstance(values, list | tuple) or len(values) != before or name in overrides:
            continue
        if "layer" not in name and any(isinstance(value, str) for value in values):
            continue  # as long by chance: DeBERTa's `pos_att_type` names two terms, also of models with two layers
        again = period(values)
        if depth > before and again == before > 1:
            raise InvalidSettings(
                f"model.config.{depth_field}: {depth} layers want as many values of {name}; it has {before}, which do "
                f"not repeat. Give model.config.{name} too."
            )
        changed[name] = [values[n % again] if n >= before else values[n] for n in range(depth)]
    return changed
