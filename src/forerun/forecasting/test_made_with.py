"""The digest follows what decides a forecast, and nothing else."""

import shutil
from pathlib import Path

import pytest

import forerun
from forerun.forecasting.made_with import _digest, made_with


def test_libraries_and_code_are_named():
    assert set(made_with()) == {"python", "code", "torch", "transformers"}
    assert made_with()["code"] == _digest(Path(forerun.__file__).parent)


@pytest.mark.parametrize(
    ("changed", "matters"),
    [("clock/priors.json", True), ("step/precision.py", True), ("clock/test_priors.py", False), ("cli/main.py", False)],
)
def test_only_what_decides_a_forecast_matters(tmp_path, changed, matters):
    package = shutil.copytree(Path(forerun.__file__).parent, tmp_path / "forerun")
    before = _digest(package)
    with (package / changed).open("a") as file:
        file.write(" ")
    assert (_digest(package) != before) == matters
