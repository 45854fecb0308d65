"""What is handed on: the lock file fits pyproject.toml, the wheel is the same twice, the audit says what it could not ask."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = (ROOT / ".ci" / "requirements.txt").read_text(encoding="utf-8")
LOCKED_EXTRAS = ("dev", "scripts")
PYTHON_OF_LOCK = {"python_version": "3.11", "python_full_version": "3.11.0", "sys_platform": "linux"}
NOT_LOCKED = "torch"


def pins(lock: str) -> dict[str, tuple[Version, list[str]]]:
    """Version and hashes of each package."""
    blocks = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;]+)[^\n]*\n((?:[ ]+[^\n]*\n?)*)", lock, flags=re.MULTILINE)
    return {canonicalize_name(name): (Version(v), re.findall(r"sha256:[0-9a-f]{64}", rest)) for name, v, rest in blocks}


def unmet(requirements: list[str], lock: str) -> list[str]:
    """Requirements that the lock leaves out, gives another version of, or no hash."""
    locked = pins(lock)
    needed = [Requirement(text) for text in requirements]
    needed = [each for each in needed if each.name != NOT_LOCKED]
    return [
        str(each)
        for each in needed
        if (each.marker is None or each.marker.evaluate(PYTHON_OF_LOCK))
        and not (
            (pin := locked.get(canonicalize_name(each.name))) is not None and each.specifier.contains(pin[0]) and pin[1]
        )
    ]


def test_the_lock_satisfies_pyproject():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for extra in LOCKED_EXTRAS for each in extras[extra])]
    assert unmet(wanted, LOCK) == [], "run `make lock`"


def test_the_lock_has_hashes_no_cuda_and_no_place_of_one_machine():
    locked = pins(LOCK)
    assert len(locked) == len(re.findall("==", re.sub("#.*", "", LOCK)))
    assert all(hashes for _, hashes in locked.values())
    assert not {name for name in locked if name == "torch" or name.startswith(("triton", "cuda", "nvidia"))} - {
        "nvidia-ml-py"
    }
    assert "file:" not in LOCK
    assert "://" not in LOCK


@pytest.mark.parametrize(
    ("lock", "missing"),
    [
        ("a==1.2 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via b\n", []),
        ("a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n", ["a>=1.1"]),
        ("a==1.2\n", ["a>=1.1"]),
        ("b==1.2 \\\n    --hash=sha256:" + "0" * 64 + "\n", ["a>=1.1"]),
    ],
)
def test_an_old_lock_is_noticed(lock, missing):
    assert unmet(["a>=1.1", "torch>=9", "other; sys_platform == 'win32'"], lock) == missing


SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
VULNERABLE = {"name": "a", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": []}]}


@pytest.mark.parametrize(
    ("packages", "code", "text"),
    [
        ([CLEAN], 0, "no known vulnerability in 1 packages"),
        ([VULNERABLE, CLEAN], 1, "a 1.0: PYSEC-1, fixed in 1.1"),
        ([CLEAN, SKIPPED], 2, "1 of 2 packages asked about could not be audited: Dependency not found"),
        ([VULNERABLE, SKIPPED], 2, "PYSEC-1"),
    ],
)
def test_an_audit_without_advisories_is_none(packages, code, text):
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    audit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(audit)
    lines, result = audit.judge({"dependencies": packages})
    assert result == code
    assert text in "\n".join(lines)


def test_documents_name_the_torch_that_pyproject_asks_for():
    (asked,) = [each for each in PROJECT["dependencies"] if Requirement(each).name == "torch"]
    assert f'pip install "{asked}" --index-url https://download.pytorch.org/whl/cpu' in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def built(source: Path, folder: Path) -> bytes:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    result = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel.read_bytes()


@pytest.mark.medium
def test_the_wheel_is_the_same_twice_and_has_no_tests(tmp_path):
    """From a copy in another folder, with other times on its files."""
    copy = tmp_path / "copy"
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".gitignore"):
        copy.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, copy / name)
    shutil.copytree(ROOT / "src", copy / "src", copy_function=shutil.copyfile)
    assert built(ROOT, tmp_path / "first") == built(copy, tmp_path / "second")
    with zipfile.ZipFile(next((tmp_path / "first").glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert not [name for name in names if re.search(r"(^|/)(test_[^/]*|conftest)\.py$|__pycache__|(^|/)tests/", name)]
    assert {"forerun/cli/main.py", "forerun/hardware/gpus.toml"} <= set(names)
