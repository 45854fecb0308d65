"""Functions and methods that train, of a program's own files: they are known before its script is compiled.

A script's loop may call what another of its files defines, of a model that it does not name
(`model.optimize_parameters()`): nothing in the script says that this trains.
"""

import ast
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from forerun.virtual.cuda.later_loops import names_that_train
from forerun.virtual.cuda.lines import is_library

MOST_FILES = 200
"""Of a package with more, only those are read that come first."""


def training_names(script: str) -> set[str]:
    """Names of functions and methods that train in the files that a script imports from its folder or from here.

    Of a package all files count: it may import by names that it puts together.
    """
    own, files = Path(script).resolve(), dict[Path, ast.Module]()
    roots, awaiting = (own.parent, Path.cwd()), [own]
    while awaiting and len(files) <= MOST_FILES:
        path = awaiting.pop(0)
        if path in files:
            continue
        try:
            files[path] = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        awaiting += [each for name in _imported(files[path]) for root in roots for each in _files_of(root, name)]
    return names_that_train([tree for path, tree in files.items() if path != own])


def _imported(tree: ast.Module) -> Iterator[str]:
    """First names of the modules that a file imports; empty of those beside it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").partition(".")[0]


def _files_of(root: Path, name: str) -> Iterator[Path]:
    """Files of the module or package of a name in a folder, if it is there."""
    module, package = root / f"{name}.py", root / name
    if name and module.is_file() and not is_library(str(module)):
        yield module
    if package.is_dir() and not is_library(f"{package}/"):
        paths = _files_below(package) if name else sorted(root.glob("*.py"))
        yield from itertools.islice(paths, MOST_FILES)


def _files_below(package: Path) -> Iterator[Path]:
    """A package's files; a folder without any is none of it but pictures, say, which may be millions."""
    for folder, folders, names in os.walk(package):
        files = sorted(name for name in names if name.endswith(".py"))
        if not files:
            folders.clear()
        yield from (Path(folder, name) for name in files)
