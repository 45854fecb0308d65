import pytest
import yaml

from forerun.errors import InvalidSettings
from forerun.hardware.catalogue import device
from forerun.recipes.okadfa.presets import PRESETS, main, over_training, passes, preset_settings
from forerun.runs.registry import profiles
from forerun.settings.load import load_settings
from forerun.settings.schema import Settings


def test_updates_are_updates():
    """The original's max_steps counts micro-steps: 3k, 10k, 20k and 30k are these updates (workload note, 3.8)."""
    assert [preset.updates for preset in PRESETS.values()] == [3_000, 5_000, 5_000, 3_750]
    assert [round(preset.tokens / 1e6) for preset in PRESETS.values()] == [49, 102, 164, 123]


def test_passes_and_what_is_said_of_them():
    assert passes("fast", "wikitext-2-raw-v1") == pytest.approx(20.5, abs=0.1)
    assert "passes over 2.4M" in over_training("max", "wikitext-2-raw-v1")
    assert "tokens a parameter" in over_training("mega", "wikitext-103-raw-v1")
    assert over_training("production", "wikitext-103-raw-v1") == "0.665 tokens a parameter: it will learn them by heart"


@pytest.mark.parametrize("name", PRESETS)
def test_settings_follow_the_gpu_and_keep_the_global_batch(name):
    on_a100, on_t4 = (preset_settings(name, device(gpu)) for gpu in ("a100-40gb", "t4"))
    assert (on_a100.precision, on_t4.precision) == ("bf16-mixed", "fp16-mixed")
    smaller = preset_settings(name, device("a100-40gb"), micro_batch_size=2, documented=True)
    assert smaller.global_batch_size == on_a100.global_batch_size
    assert smaller.model.name == ("okadfa-fast" if name == "fast" else f"okadfa-{name}-4x")
    assert on_a100.schedule.warmup_steps <= 0.1 * PRESETS[name].updates


def test_wrong_presets_are_refused():
    with pytest.raises(InvalidSettings, match="mega"):
        preset_settings("mgea", device("a100-40gb"))
    with pytest.raises(InvalidSettings, match="40"):
        preset_settings("production", device("a100-40gb"), micro_batch_size=3)


def test_a_preset_as_yaml_is_its_settings(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["presets", "mega", "a100-80gb", "documented"])
    main()
    printed = yaml.safe_load(capsys.readouterr().out)
    assert Settings.model_validate(printed) == preset_settings("mega", device("a100-80gb"), documented=True)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_targets_by_name(name):
    assert load_settings(profiles()[f"okadfa-{name}"]) == preset_settings(name, device("a100-40gb"))
