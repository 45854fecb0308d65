"""Recipes are found by entry point: those that ship, and one that somebody else's installed package brings."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from forerun import extensions as extension_module
from forerun.errors import ExtensionConflict, RecipeNotFound
from forerun.extensions import RECIPES, extensions
from forerun.runs.conformance import faults
from forerun.runs.registry import load_recipe, profiles, recipe_names, summary

PACKAGE = Path(__file__).parent / "foreign_recipe"
SHIPPED = ["arithmetic", "code-detector", "code-lora", "okadfa", "text-classifier"]
SMALL = {
    "arithmetic": ["data.examples=256", "model.config.n_layer=1"],
    "code-detector": [],
    "code-lora": [
        "recipe.documents=64", "recipe.rows=260", "recipe.questions=6", "evaluation.examples=4",
        "evaluation.new_tokens=8", "batch.micro_batch_size=8", "model.config.hidden_size=32",
        "model.config.num_hidden_layers=1", "model.config.intermediate_size=64",
        "recipe.unsafe=true",  # conformance is no question of isolation
    ],
    "okadfa": [
        "recipe.corpus=induction", "batch.sequence_length=16", "model.config.width=32", "model.config.layers=2",
        "model.config.heads=2", "model.config.feed_forward=48",
    ],
    "text-classifier": [],
}  # fmt: skip


def test_shipped_recipes_are_all_there():
    assert recipe_names() == SHIPPED
    assert {"arithmetic-full", "code-detector-full", "code-lora-a100", "text-classifier-minilm"} <= set(profiles())
    assert all(summary(name) and not summary(name).endswith(".") for name in SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_conform(name):
    assert faults(name, SMALL[name]) == []


def test_faults_are_found(monkeypatch):
    recipe = load_recipe("arithmetic")
    whole = recipe.load_experiment

    def other_plan(settings, *, lengths_only=False):
        experiment = whole(settings, lengths_only=lengths_only)
        return experiment if not lengths_only else SimpleNamespace(plan=None)

    monkeypatch.setattr(recipe, "load_experiment", other_plan)
    monkeypatch.delattr(recipe, "VARIANTS")
    messages = faults("arithmetic", SMALL["arithmetic"])
    assert any("VARIANTS" in fault for fault in messages)
    assert any("lengths_only" in fault for fault in messages)
    monkeypatch.delattr(recipe, "CRITERIA")
    assert faults("arithmetic") == ["forerun.recipes.arithmetic.recipe has no CRITERIA"]


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(RecipeNotFound, match="arithmetic"):
        load_recipe("arithmetics")


def test_one_name_for_two_things_is_refused(monkeypatch):
    points = [SimpleNamespace(name="a", value="one"), SimpleNamespace(name="a", value="two")]
    monkeypatch.setattr(extension_module, "entry_points", lambda group: points)
    extensions.cache_clear()
    with pytest.raises(ExtensionConflict, match="one and two"):
        extensions(RECIPES)
    extensions.cache_clear()


def make_wheel(folder: Path) -> Path:
    """A wheel of `tests/foreign_recipe`, as a build tool would make it."""
    name = "forerun_foreign-1.0"
    records = {
        "METADATA": "Metadata-Version: 2.1\nName: forerun-foreign\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[forerun.recipes]\nfirst-token = forerun_foreign\n",
        "RECORD": "",
    }
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(PACKAGE.iterdir()):
            if file.is_file():
                archive.write(file, f"forerun_foreign/{file.name}")
        for file, text in records.items():
            archive.writestr(f"{name}.dist-info/{file}", text)
    return wheel


@pytest.mark.medium
def test_a_recipe_of_somebody_elses_package(tmp_path):
    """Installed by pip into a folder of its own: listed, forecast, run to a verdict, and it conforms."""
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(make_wheel(tmp_path))], check=True, capture_output=True)
    ledger = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    environment = os.environ | {"PYTHONPATH": str(site), "FORERUN_LEDGER": ledger, "OMP_NUM_THREADS": "1"}

    def forerun(*arguments: str) -> dict:
        command = [sys.executable, "-m", "forerun", *arguments, "--json"]
        process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    listed = {row["name"]: row["summary"] for row in forerun("recipes")["recipes"]}
    assert (
        listed["first-token"]
        == "Which half of the vocabulary does a text begin with? A recipe of somebody else's, for the tests of this project"
    )
    assert forerun("forecast", "first-token-wide", "--gpu", "t4")["fits"]
    result = forerun("run", "first-token")
    assert result["verdict"]["passed"]
    assert result["measurement"]["metrics"]["accuracy"] > 0.9
    check = "from forerun.runs.conformance import faults; assert faults('first-token') == []"
    process = subprocess.run(
        [sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
