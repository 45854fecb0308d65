"""The recipes that ship with the package, by name."""

import importlib
from pathlib import Path
from typing import Any, Protocol

from forerun.errors import RecipeNotFound, nearest
from forerun.settings.schema import Settings
from forerun.verify.compare import Criterion

MODULES = {
    "code-detector": "forerun.recipes.code_detector",
    "code-lora": "forerun.recipes.code_lora",
    "arithmetic": "forerun.recipes.arithmetic",
    "okadfa": "forerun.recipes.okadfa",
    "text-classifier": "forerun.recipes.text_classifier",
}
SUMMARIES = {
    "code-detector": "AI-written code detection: classification and supervised contrastive learning",
    "code-lora": "Python code generation: LoRA and QLoRA adapters, syntax, CodeBLEU and pass@k in a sandbox",
    "arithmetic": "Learning to add from rows with wrong answers: dose and response, and which rows are wrong",
    "okadfa": "language model with orthogonalised kernel attention and direct feedback alignment, judged",
    "text-classifier": "texts to labels: losses, pooling, augmentation, and a search (tune) that can be trusted",
}


def profiles() -> dict[str, Path]:
    """Settings files that ship beside the recipes: `arithmetic_full.yaml` is the target `arithmetic-full`."""
    return {path.stem.replace("_", "-"): path for path in sorted(Path(__file__).parent.glob("*.yaml"))}


def shipped() -> list[str]:
    """Every name that can be a target: recipes and profiles."""
    return [*MODULES, *profiles()]


class Recipe(Protocol):
    """What a recipe module offers; one that can be swept also has what `recipes.swept.Sweepable` says.

    It may have `beside(ledger, run_id)`: tables on a run from the ledger's other runs, for its page and JSON.
    """

    SETTINGS: Settings
    CRITERIA: tuple[Criterion, ...]

    def open_recipe(self, settings: Settings, *, lengths_only: bool = False) -> Any:
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


def criteria_of(workload: str, settings: Settings) -> tuple[Criterion, ...]:
    """Success criteria of a recipe under these settings; none for other workloads."""
    if workload not in MODULES:
        return ()
    module = recipe(workload)
    chosen = getattr(module, "criteria_for", None)  # where they depend on the settings
    return module.CRITERIA if chosen is None else chosen(settings)
