"""torchao lies beside PyTorch on many machines (Colab); transformers imports it, and a forecast must not show that."""

import subprocess
import sys

import pytest


@pytest.mark.medium
def test_a_forecast_beside_torchao_writes_nothing_of_it(tmp_path):
    settings = "name: a\nworkload: causal-lm\nmodel: {name: tiny-llama}\ndata: {examples: 8}\n"
    (tmp_path / "run.yaml").write_text(settings, encoding="utf-8")
    command = [sys.executable, "-m", "forerun", "forecast", "run.yaml", "--gpu", "t4"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "torchao" not in result.stderr + result.stdout
    assert "pytree" not in result.stderr
