"""Sections and values are TOML; what they say is tested with the jobs (`test_cluster_launchers.py`)."""

import tomllib

from forerun.plan.other_tools import torchtitan_settings
from forerun.settings.load import settings_from


def test_names_with_quotes_and_unlimited_gradients_are_toml():
    settings = settings_from({
        "name": 'a "run" \\ two', "workload": "causal-lm", "model": {"name": "llama-3-8b"}, "precision": "bf16-mixed",
        "data": {"examples": 99},
    })  # fmt: skip
    toml = tomllib.loads(torchtitan_settings(settings))
    assert toml["job"]["description"] == 'a "run" \\ two'
    assert toml["training"]["max_norm"] == 1e6
    assert "steps" not in toml["training"]
    assert toml["checkpoint"]["enable"] is True
