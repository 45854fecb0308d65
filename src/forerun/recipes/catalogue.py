"""The recipes that ship with the package, by name."""

import importlib
from typing import Any, Protocol

from forerun.errors import RecipeNotFound, nearest
from forerun.settings.schema import Settings

MODULES = {"code-detector": "forerun.recipes.code_detector"}
SUMMARIES = {"code-detector": "AI-written code detection: classification and supervised contrastive learning"}


class Recipe(Protocol):
    """What a recipe module offers."""

    SETTINGS: Settings

    def open_recipe(self, settings: Settings) -> Any:
        """The recipe's data, workload and evaluation for `settings` (see `forerun.recipes.opened`)."""
        ...


def recipe(name: str) -> Recipe:
    """The recipe module of that name.

    Raises:
        RecipeNotFound: none is shipped under it.
    """
    if name not in MODULES:
        raise RecipeNotFound(f"No recipe {name!r}. Shipped: {nearest(name, list(MODULES))}.")
    return importlib.import_module(MODULES[name])  # type: ignore[return-value]
