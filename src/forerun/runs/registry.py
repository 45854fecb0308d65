"""Which recipes are there? The packages that entry points of the group `forerun.recipes` name.

A recipe is a Python package. The first line of its docstring is its summary; its module `recipe` gives what
`runs.recipe.Recipe` asks for; each YAML file beside it is a profile, settings with the name `RECIPE-FILE`.
"""

import importlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forerun.current_work import work
from forerun.errors import RecipeNotFound, nearest
from forerun.extensions import RECIPES, extensions
from forerun.runs.recipe import Experiment, Recipe
from forerun.settings.schema import Settings
from forerun.step.generic import GENERIC
from forerun.verify.compare import Criterion

OWN_DATA, OWN_SEARCH, OWN_SWEEP = "forerun.own.experiment", "forerun.own.search", "forerun.own.sweep_table"
"""Modules that train generic workloads on somebody's own data, search and compare them; they are above this one, and
imported as recipes are."""


def recipe_names() -> list[str]:
    """Names of the installed recipes; none of them is imported."""
    return list(extensions(RECIPES))


def summary(name: str) -> str:
    """What a recipe is about, in one line.

    Raises:
        RecipeNotFound: none of that name is installed, or its package cannot be imported.
    """
    lines = (_import(name, _package(name)).__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


@cache
def profiles() -> dict[str, Path]:
    """Settings files that ship beside the recipes: `arithmetic/full.yaml` is the target `arithmetic-full`."""
    folders = {name: _folder(name) for name in recipe_names()}
    return {
        f"{name}-{path.stem.replace('_', '-')}": path
        for name, folder in folders.items()
        if folder is not None
        for path in sorted(folder.glob("*.yaml"))
    }


def target_names() -> list[str]:
    """Every name that can be a target: recipes and profiles."""
    return [*recipe_names(), *profiles()]


def load_recipe(name: str) -> Recipe:
    """The module `recipe` of the recipe of that name.

    Raises:
        RecipeNotFound: none of that name is installed, or it cannot be imported.
    """
    return _import(name, f"{_package(name)}.recipe")  # type: ignore[return-value]


def trains_own_data(settings: Settings) -> bool:
    """Whether the settings name a generic workload and the data to train it on."""
    return settings.workload in GENERIC and settings.data.source is not None


def open_experiment(settings: Settings, *, lengths_only: bool = False, run_folder: Path | None = None) -> Experiment:
    """The experiment of settings that name a recipe, or a generic workload and its data.

    `run_folder` is that of a run on own data that goes on or is exported.

    Raises:
        RecipeNotFound: they name neither.
    """
    with work(f"preparing the data of {settings.name}"):
        if trains_own_data(settings):
            own = importlib.import_module(OWN_DATA)
            return own.load_experiment(settings, lengths_only=lengths_only, run_folder=run_folder)
        return load_recipe(settings.workload).load_experiment(settings, lengths_only=lengths_only)


def searchable(settings: Settings) -> Any:
    """What says how `forerun tune` searches a recipe, or a file of own data; None where nothing does."""
    if trains_own_data(settings):
        return importlib.import_module(OWN_SEARCH)
    module = load_recipe(settings.workload) if settings.workload in recipe_names() else None
    return module if hasattr(module, "search_space") else None


def comparison_of(settings: Settings) -> Any:
    """What makes tables over the finished runs of a sweep (`Sweepable.comparison`); None where nothing does."""
    if trains_own_data(settings):
        return importlib.import_module(OWN_SWEEP).comparison
    return getattr(load_recipe(settings.workload), "comparison", None) if settings.workload in recipe_names() else None


def criteria_of(workload: str, settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of a recipe or of a run on own data under these settings; none for other workloads."""
    if trains_own_data(settings):
        return importlib.import_module(OWN_DATA).criteria_for(settings)
    if workload not in recipe_names():
        return ()
    module = load_recipe(workload)
    criteria_for = getattr(module, "criteria_for", None)  # where they depend on the settings
    return module.CRITERIA if criteria_for is None else criteria_for(settings)


def _package(name: str) -> str:
    if name not in extensions(RECIPES):
        raise RecipeNotFound(f"No recipe {name!r}. Installed: {nearest(name, recipe_names())}.")
    return extensions(RECIPES)[name].value


def _folder(name: str) -> Path | None:
    """Folder of a recipe's package, which is not imported for that; None where the package is gone."""
    try:
        spec = find_spec(_package(name))
    except ImportError:
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _import(name: str, module: str) -> object:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeNotFound(f"Recipe {name!r} is in {module}, which cannot be imported: {error}.") from error
