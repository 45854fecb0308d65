"""The rules that keep the code readable: imports one way, torch-free stages, sizes, names, frozen public surface."""

import ast
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forerun"
ORDER = [
    "errors", "units", "spelling", "extensions", "disk_cache", "current_work", "noise", "settings", "records", "experience", "trace", "hardware", "data", "models", "step",
    "virtual", "memory", "network", "clock", "forecasting", "ledger", "plan", "train", "evaluate", "verify", "audit", "infer",
    "report", "runs", "own", "serving", "tune", "api", "hf", "notebook", "pytest_plugin", "web", "cli", "recipes", "__main__",
]  # fmt: skip
TORCH_FREE = [
    "errors",
    "units",
    "spelling",
    "disk_cache",
    "settings",
    "records",
    "experience",
    "trace",
    "hardware.catalogue",
    "hardware.names",
    "cli.main",
    "memory",
    "network",
    "clock",
    "ledger",
    "report",
    "api",
    "forecasting.forecast",
    "runs.registry",
    "plan.compare",
    "cli",
    "web.question",
    "web.charts",
    "web.gate",
    "recipes.code_detector.similarity",
]
APART = {"train": {"virtual", "memory", "network", "clock", "forecasting", "plan"}}
"""The trainer knows nothing of the virtual GPU: both meet in `step` and `records`."""
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base", "core", "manager"}
MODULE_LINES, FUNCTION_LINES = 400, 60
BROAD_EXCEPTS = {
    "recipes/code_detector/data/tokens.py", "virtual/cuda/run.py", "models/guard.py", "evaluate/jail/cell.py",
    "evaluate/jail/grader.py",
}  # fmt: skip
"""The tokenizers library raises bare Exception for a malformed file; `guard.py` is where errors of others become ours;
whatever a program in the sandbox raises is its answer."""
SAME_NAMES: dict[str, list[str]] = {}
"""Public classes of one name in several modules, which a search cannot tell apart; this may only shrink."""
PARTICIPLES = set(
    [
        "said",
        "found",
        "known",
        "given",
        "opened",
        "kept",
        "told",
        "made",
        "seen",
        "held",
        "taken",
        "asked",
        "heard",
        "shown",
        "swept",
        "searched",
        "sought",
        "wanted",
        "needed",
        "done",
        "gone",
        "meant",
        "written",
        "drawn",
        "chosen",
    ]
)
PARTICIPLES_OF_DOCUMENTS = {
    "audit/arithmetic.py": 1,
    "audit/findings.py": 1,
    "experience.py": 1,
    "plan/outcome.py": 4,
    "recipes/code_detector/service/messages.py": 3,
    "recipes/text_classifier/opening.py": 1,
    "records.py": 1,
}
"""Module → number of fields and parameters that a document or a library names so; this may only shrink."""
LONG_FUNCTIONS: set[str] = set()
"""Exceptions to the function size by name; this list may only shrink."""


def modules() -> list[Path]:
    return [p for p in SOURCE.rglob("*.py") if not p.name.startswith("test_")]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """What a module says; several tests look at all of them."""
    return ast.parse(path.read_text())


def stage(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Stages of this package that a module imports."""
    stages = []
    for node in ast.walk(tree_of(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "forerun" else [f"forerun.{a.name}" for a in node.names]
        stages += [name.split(".")[1] for name in names if name.startswith("forerun.")]
    return stages


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    if path == SOURCE / "__init__.py":
        return
    here = stage(path)
    for other in imports(path):
        assert ORDER.index(other) <= ORDER.index(here), f"{here} imports {other}"
        assert other not in APART.get(here, set()), f"{here} imports {other}"


def test_torch_free_stages_do_not_import_torch():
    names = []
    for part in TORCH_FREE:
        path = SOURCE / part.replace(".", "/")
        files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        names += [f for f in files if not f.name.startswith("test_") and f.exists()]
    dotted = [
        "forerun." + str(f.relative_to(SOURCE).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for f in names
    ]
    code = f"import sys\nfor name in {dotted!r}: __import__(name)\nassert 'torch' not in sys.modules, 'torch imported'"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_package_imports_a_recipe(path):
    """Recipes are found by entry point, and know nothing of each other."""
    owner = path.relative_to(SOURCE).parts[1] if stage(path) == "recipes" else None
    for node in ast.walk(tree_of(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
        recipes = {name.split(".")[2] for name in names if name.startswith("forerun.recipes.")}
        assert recipes <= {owner}, f"{path.relative_to(SOURCE)} imports recipes {recipes}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_sizes_and_names(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES
    assert path.stem not in FORBIDDEN_NAMES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name not in LONG_FUNCTIONS:
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, node.name
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "bare except"
            broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            assert not broad or str(path.relative_to(SOURCE)) in BROAD_EXCEPTS


def imported_modules(path: Path, names: dict[str, Path]) -> set[str]:
    """Modules of this package that a module imports, at its head or inside functions."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name in names and names[name].name != "__init__.py"}


def test_modules_do_not_import_each_other_in_a_circle():
    names = {".".join(("forerun", *p.relative_to(SOURCE).with_suffix("").parts)): p for p in modules()}
    imports_of = {name: imported_modules(path, names) for name, path in names.items()}
    while free := [name for name, others in imports_of.items() if not others & imports_of.keys()]:
        for name in free:
            del imports_of[name]
    left = {name: sorted(others & imports_of.keys()) for name, others in imports_of.items()}
    assert left == {}


def test_one_public_class_name_has_one_meaning():
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == SAME_NAMES


def test_names_say_what_a_thing_is():
    """Participles say that something happened, not what the thing is; those that are left are fields of documents."""
    counts = {}
    for path in modules():
        tree = tree_of(path)
        names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        names += [n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)]
        names += [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        number = sum(name.strip("_") in PARTICIPLES for name in names)
        if number:
            counts[str(path.relative_to(SOURCE))] = number
    assert counts == PARTICIPLES_OF_DOCUMENTS


def test_only_units_knows_1024():
    for path in modules():
        if path.name != "units.py":
            literals = {n.value for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant)}
            assert not literals & {1024**2, 1024**3, 1e9, 1e12} - {True, False}, path


def test_modules_with_logic_have_a_neighbour_test():
    """Or are named, with the test of several stages that covers them, in `tested_elsewhere.json`."""
    untested = []
    for path in modules():
        functions = [n for n in tree_of(path).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        if len(functions) > 2 and not (path.parent / f"test_{path.name}").exists() and stage(path) not in ("cli",):
            untested.append(str(path.relative_to(SOURCE)))
    elsewhere = json.loads((ROOT / "tests" / "tested_elsewhere.json").read_text())
    assert set(untested) == set(elsewhere), sorted(set(untested) ^ set(elsewhere))
    assert all((ROOT / test).exists() for test in elsewhere.values())


def test_public_names_are_frozen():
    import forerun

    assert forerun.__all__ == ["Forecast", "Settings", "forecast", "forecast_step", "virtual_cuda", "virtual_gpu"]
    for name in forerun.__all__:
        assert callable(getattr(forerun, name))


def test_command_line_is_frozen():
    """Commands and their options; a change here is a change of the contract and is made on purpose."""
    import typer

    from forerun.cli.main import command_line

    commands = dict(typer.main.get_command(command_line()).commands)  # type: ignore[attr-defined]
    for name, command in list(commands.items()):
        commands |= {f"{name} {part}": own for part, own in getattr(command, "commands", {}).items()}
    options = {
        name: sorted(option for parameter in command.params for option in parameter.opts if option.startswith("--"))
        for name, command in commands.items()
    }
    assert options == json.loads((ROOT / "tests" / "command_line.json").read_text())


def test_the_root_holds_nothing_that_a_run_left():
    """Folders of runs were committed more than once: tests that are run here had written them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    folders = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    assert folders == {".ci", "benchmarks", "docs", "spaces", "src", "tests"}
