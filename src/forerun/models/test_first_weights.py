import pytest

from forerun.models.first_weights import first_weights, is_from_scratch
from forerun.models.minilm import minilm_directory, minilm_is_installed
from forerun.settings.load import settings_from


def settings_of(name, **config):
    return settings_from({"name": "a", "workload": "causal-lm", "model": {"name": name, "config": config}})


def test_a_name_of_the_hub_keeps_its_weights_unless_its_size_is_changed():
    assert first_weights(settings_of("bert-base-uncased")) == "google-bert/bert-base-uncased"
    assert first_weights(settings_of("bert-base-uncased", hidden_dropout_prob=0.3)) == "google-bert/bert-base-uncased"
    assert first_weights(settings_of("bert-base-uncased", num_hidden_layers=2)) is None


def test_a_tiny_model_starts_from_scratch():
    assert is_from_scratch(settings_of("tiny-bert"))
    assert not is_from_scratch(settings_of("smollm2-135m"))


def test_a_folder_without_weights_is_only_an_architecture(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert is_from_scratch(settings_of(str(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert first_weights(settings_of(str(tmp_path))) == str(tmp_path)


def test_a_folder_keeps_its_weights_where_sizes_are_named_but_not_changed(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 64, "num_hidden_layers": 2}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert first_weights(settings_of(str(tmp_path), hidden_size=64)) == str(tmp_path)
    assert first_weights(settings_of(str(tmp_path), hidden_size=128)) is None


@pytest.mark.minilm
@pytest.mark.skipif(not minilm_is_installed(), reason="needs the minilm extra")
def test_minilm_is_a_folder_of_its_wheel():
    assert first_weights(settings_of("minilm")) == str(minilm_directory())
