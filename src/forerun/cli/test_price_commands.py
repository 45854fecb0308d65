import json
import sys

import pytest

from forerun.cli.main import main
from forerun.hardware.catalogue import forget_prices


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    forget_prices()

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["forerun", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr()

    yield call
    monkeypatch.undo()
    forget_prices()


def test_prices_are_updated_listed_and_taken(run, tmp_path):
    code, printed = run("prices", "--gpu", "a10g", "--json")
    (shipped,) = json.loads(printed.out)["prices"]
    assert (shipped["cloud"], shipped["region"], shipped["date"]) == ("aws", "us-east-1", "2026-09-06")
    assert json.loads(printed.out)["date"] is None  # no update yet
    (tmp_path / "aws").mkdir()
    table = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice\ng5.xlarge,A10G,1,1.006,0.4\nx,Inferentia,1,1,1\n"
    (tmp_path / "aws" / "vms.csv").write_text(table, encoding="utf-8")
    code, printed = run("prices", "update", "--from", str(tmp_path), "--cloud", "aws", "--cloud", "oci")
    assert code in (0, None)
    assert "a10g" in printed.out
    assert "oci was left out" in printed.err
    assert "Inferentia" in printed.err
    code, printed = run("prices", "--gpu", "g5.xlarge", "--json")
    (price,) = json.loads(printed.out)["prices"]
    assert (price["gpu"], price["dollars_per_hour"], price["spot_dollars_per_hour"]) == ("a10g", 1.006, 0.4)
    code, printed = run("gpus", "--search", "a10g", "--json")
    assert json.loads(printed.out)["gpus"][0]["price_per_hour"] == 1.006


def test_prices_of_one_cloud_are_listed_and_an_unknown_one_is_refused(run):
    code, printed = run("prices", "--cloud", "CoreWeave")
    assert code in (0, None)
    assert "2026-09-20" in printed.out
    assert "lambda" not in printed.out
    code, printed = run("prices", "--cloud", "coreweav")
    assert code == 2
    assert "coreweave" in printed.err


def test_a_cloud_and_a_price_are_not_both_taken(run):
    code, printed = run("forecast", "okadfa", "--gpu", "t4", "--cloud", "aws", "--price", "1")
    assert code == 2
    assert "Drop one" in printed.err
