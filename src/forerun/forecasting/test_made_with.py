"""The digest follows what decides a forecast, and nothing else."""

import shutil

import pytest

from forerun.forecasting.made_with import PACKAGE, deciding_digest, made_with


def test_libraries_and_code_are_named():
    assert set(made_with()) == {"python", "code", "torch", "transformers"}
    assert made_with()["code"] == deciding_digest(PACKAGE)


@pytest.mark.parametrize(
    ("changed", "matters"),
    [("clock/priors.json", True), ("step/precision.py", True), ("clock/test_priors.py", False), ("cli/main.py", False)],
)
def test_only_what_decides_a_forecast_matters(tmp_path, changed, matters):
    package = shutil.copytree(PACKAGE, tmp_path / "forerun")
    before = deciding_digest(str(package))
    with (package / changed).open("a") as file:
        file.write(" ")
    assert (deciding_digest(str(package)) != before) == matters
