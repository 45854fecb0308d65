"""Errors name the field, the rule and the remedy; overrides, defaults and the hash."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from forerun.errors import InvalidSettings
from forerun.settings.load import load_settings, recipe_options, settings_from
from forerun.settings.schema import Section, Settings

MINIMAL = {"name": "r", "workload": "causal-lm", "model": {"name": "gpt2"}}
CONTRACT = """
name: my-run
workload: causal-lm
model: {name: llama-2-7b, config: {}, attention: auto}
adapter: {kind: none}
quantization: none
precision: bf16-mixed
optimizer: {name: adamw, learning_rate: 2.0e-4, weight_decay: 0.01, implementation: auto}
batch: {micro_batch_size: 4, gradient_accumulation_steps: 4, sequence_length: 768, padding: fixed}
data: {examples: 16750, mean_tokens: null}
schedule: {epochs: 3, max_steps: null, warmup_steps: 150, frozen_encoder_epochs: 0}
activation_checkpointing: none
compile: none
parallel: {kind: none, world_size: 1}
checkpoints: {every_steps: 400, keep_last: 10}
evaluation: {every_epochs: 1, examples: 0, new_tokens: 0}
"""


def test_settings_that_name_no_machines_keep_the_hash_of_before():
    """Recorded at 9078e73, before `cluster`: ledgers are keyed by it."""
    assert settings_from(MINIMAL).hash == "3f50ce956c8ba800"
    assert settings_from({**MINIMAL, "cluster": {"gpus_per_node": 8}}).hash == "3f50ce956c8ba800"


def test_machines_are_named_or_described():
    named = settings_from({**MINIMAL, "cluster": {"gpus_per_node": 4, "network": "efa-p5"}})
    assert (named.cluster.gpus_per_node, named.cluster.network) == (4, "efa-p5")
    own = {"kind": "infiniband", "adapters": 4, "gigabit_per_second": 200}
    assert settings_from({**MINIMAL, "cluster": {"network": own}}).cluster.network == own
    with pytest.raises(InvalidSettings, match="cluster.gpus_per_node"):
        settings_from({**MINIMAL, "cluster": {"gpus_per_node": 0}})


def test_a_layout_counts_its_devices_and_a_whole_record_of_settings_takes_another_strategy():
    sharded = settings_from(MINIMAL, ["parallel.shard=4", "parallel.replicate=2", "parallel.tensor=2"])
    assert (sharded.parallel.kind, sharded.parallel.world_size, sharded.parallel.data_ranks) == ("fsdp", 16, 8)
    whole = settings_from(MINIMAL).model_dump()
    for kind, devices in (("fsdp", 1), ("ddp", 4)):
        changed = settings_from(whole, [f"parallel.kind={kind}", f"parallel.world_size={devices}"])
        assert (changed.parallel.kind, changed.parallel.world_size) == (kind, devices)
    with pytest.raises(InvalidSettings, match="follows from the layout"):
        settings_from(MINIMAL, ["parallel.kind=ddp", "parallel.shard=4"])


def test_the_contracts_file_is_valid():
    settings = settings_from(yaml.safe_load(CONTRACT))
    assert settings.global_batch_size == 16
    assert settings.steps_per_epoch(16750) == 1047
    assert settings.total_steps(16750) == 3141


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"btach": {}}, ["btach", "no such setting", "batch"]),
        ({"batch": {"micro_batch_sise": 1}}, ["batch.micro_batch_sise", "micro_batch_size"]),
        ({"batch": {"micro_batch_size": -1}}, ["batch.micro_batch_size", "greater than or equal to 1", "-1"]),
        ({"batch": {"micro_batch_size": "many"}}, ["batch.micro_batch_size", "many"]),
        ({"precision": "bf8"}, ["precision", "bf16-mixed", "bf8"]),
        ({"quantization": "nf4"}, ["quantization", "adapter.kind", "lora"]),
        ({"batch": {"micro_batch_size": 8}, "data": {"examples": 4}}, ["micro_batch_size", "8", "4 or less"]),
        ({"parallel": {"world_size": 2}}, ["parallel.world_size", "ddp or fsdp"]),
        ({"schedule": {"epochs": 1, "frozen_encoder_epochs": 2}}, ["frozen_encoder_epochs"]),
        ({"data": {"examples": 9, "mean_tokens": 600}}, ["data.mean_tokens", "sequence_length"]),
        ({"data": {"examples": 9, "too_long": "drop"}}, ["data.too_long", "mean of the samples that are left"]),
        ({"adapter": {"kind": "lora", "targets": []}}, ["adapter.targets"]),
        ({"model": {}}, ["model.name", "required"]),
    ],
)
def test_errors_name_field_rule_and_remedy(change, words):
    with pytest.raises(InvalidSettings) as caught:
        settings_from({**MINIMAL, **change})
    for word in words:
        assert word in str(caught.value)


def test_overrides_reach_nested_fields_and_leave_the_mapping_alone():
    content = {**MINIMAL, "batch": {"micro_batch_size": 2}}
    settings = settings_from(
        content, ["batch.micro_batch_size=8", "optimizer.learning_rate=2e-4", "model.config.n_layer=3"]
    )
    assert settings.batch.micro_batch_size == 8
    assert settings.optimizer.learning_rate == 2e-4
    assert settings.model.config == {"n_layer": 3}
    assert content["batch"] == {"micro_batch_size": 2}


@pytest.mark.parametrize("override", ["batch", "batch.micro_batch_size", "=3", "name.inner=3", "batch.=1"])
def test_bad_overrides_are_explained(override):
    with pytest.raises(InvalidSettings, match="--set"):
        settings_from(MINIMAL, [override])


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [1\n", ""])
def test_files_that_are_no_settings(tmp_path, content):
    path = tmp_path / "settings.yaml"
    path.write_text(content)
    with pytest.raises(InvalidSettings, match="Settings file"):
        load_settings(path)


def test_missing_file():
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load_settings(Path("no/such.yaml"))


def test_a_file_without_a_name_is_called_by_its_own(tmp_path):
    content = yaml.safe_load(CONTRACT)
    (tmp_path / "try-3.yaml").write_text(yaml.safe_dump({key: content[key] for key in content if key != "name"}))
    settings = load_settings(tmp_path / "try-3.yaml")
    assert (settings.name, settings) == ("try-3", settings_from(content | {"name": "try-3"}))


def test_hash_ignores_the_name_and_sees_everything_else():
    one = settings_from(MINIMAL)
    assert one.hash == settings_from({**MINIMAL, "name": "other"}).hash
    assert one.hash != settings_from({**MINIMAL, "seed": 1}).hash
    assert one.hash != settings_from({**MINIMAL, "cluster": {"network": "ib-ndr400"}}).hash
    assert one.hash == Settings.model_validate_json(one.model_dump_json()).hash


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 100_000))
def test_steps_cover_every_example_once(size, accumulation, examples):
    batch = {"micro_batch_size": size, "gradient_accumulation_steps": accumulation}
    settings = settings_from({**MINIMAL, "batch": batch})
    steps = settings.steps_per_epoch(examples)
    assert (steps - 1) * settings.global_batch_size < examples <= steps * settings.global_batch_size


class _Options(Section):
    """Options of a made-up recipe."""

    depth: Annotated[int, Field(ge=1)] = 2
    rule: Literal["one", "two"] = "one"


def test_a_recipe_checks_its_own_options():
    assert recipe_options(settings_from({**MINIMAL, "recipe": {"depth": 3}}), _Options).depth == 3
    with pytest.raises(InvalidSettings, match=r"recipe\.dept: no such setting\. Nearest: depth"):
        recipe_options(settings_from(MINIMAL, ["recipe.dept=3"]), _Options)
    with pytest.raises(InvalidSettings, match=r"recipe\.rule: .*'three'"):
        recipe_options(settings_from(MINIMAL, ["recipe.rule=three"]), _Options)


@pytest.mark.parametrize("word", ["flash", "efficient", "math"])
def test_old_words_for_attention_are_read_with_a_warning(word):
    content = {"name": "a", "workload": "causal-lm", "model": {"name": "gpt2", "attention": word}}
    with pytest.warns(FutureWarning, match=f"now written 'sdpa:{word}'"):
        settings = settings_from(content)
    assert settings.model.attention == f"sdpa:{word}"
