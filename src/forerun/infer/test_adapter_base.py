"""An adapter names its base so that peft finds it: by a whole path, an id with its revision, or not at all."""

import pytest
import torch
from safetensors.torch import save_file

from forerun.infer.adapter_base import named_base
from forerun.settings.load import settings_from


def settings(name, **config):
    return settings_from({"name": "a", "workload": "causal-lm", "model": {"name": name, "config": config},
                          "optimizer": {"learning_rate": 1e-3}})  # fmt: skip


def test_a_folder_is_named_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    save_file({"w": torch.zeros(1)}, tmp_path / "mine" / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert named_base(settings("mine")) == (str(tmp_path.resolve() / "mine"), None)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("some/model", ("some/model", None)), ("some/model@v1", ("some/model", "v1")), ("tiny-llama", (None, None)),
        ("smollm2-135m", (None, None)),
    ],
)  # fmt: skip
def test_a_hub_id_is_named_with_its_revision_and_a_seed_not_at_all(name, base):
    assert named_base(settings(name)) == base
