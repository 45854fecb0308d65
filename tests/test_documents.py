"""Documents say what is so: the accuracy page is what was measured, links lead somewhere, the notebook runs."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.accuracy_page import PAGE, page  # noqa: E402

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
]


def test_the_accuracy_page_is_that_of_the_last_scoreboard():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks.accuracy_page`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_dockerfile_copies_what_is_there_and_installs_extras_that_exist():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert {"pyproject.toml", "./src".lstrip("./"), "README.md", "LICENSE", "NOTICE"} == set(copied)
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"\.\[([\w,]+)\]", "\n".join(lines))
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "docs" / "forerun.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "cells are kept without outputs"
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    printed = "\n".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )
    for words in ("fits: True", "t4", "GiB,", "Fits:", "peak memory was forecast: 0.0"):
        assert words in printed, f"{words!r} is missing in:\n{printed[-3000:]}"
