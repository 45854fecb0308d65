"""Numbers beyond any model's are refused wherever they stand; those of the catalogue pass."""

import pytest

from forerun.errors import InvalidSettings
from forerun.models.catalogue import architectures
from forerun.models.config_limits import MOST_TRACED_BLOCKS, require_buildable, require_depth
from forerun.settings.load import settings_from


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_hidden_layers": 10**6}, "x.num_hidden_layers: at most 1,000; found 1000000"),
        ({"n_layer": 1_001}, "at most 1,000"),
        ({"num_labels": 2**40}, "x.num_labels: at most 1,048,576"),
        ({"vocab_size": 2**31}, "at most 2,147,483,647"),
        ({"vocab_size": -(10**30)}, "a whole number up to"),
        ({"text_config": {"num_hidden_layers": 10**6}}, "x.text_config.num_hidden_layers"),
        ({"rope_theta": float("nan")}, "a finite number"),
        ({"layer_types": {1, 2}}, "found a set"),
    ],
)
def test_what_cannot_be_built_is_named(fields, reason):
    with pytest.raises(InvalidSettings, match=reason):
        require_buildable(fields, "x")


def test_what_is_no_size_has_no_limit():
    """Files of Bamba and Mamba 2 hold an open end, and Gemma 3n's a large threshold; both are built with it."""
    require_buildable({"time_step_limit": [0.0, float("inf")], "audio_config": {"gradient_clipping": 1e10}}, "x")
    for field in ({"hidden_size": float("inf")}, {"time_step_limit": [float("nan"), 1.0]}, {"num_layers": 1e9}):
        with pytest.raises(InvalidSettings):
            require_buildable(field, "x")


def test_every_model_of_the_catalogue_is_buildable():
    for row in architectures():
        require_buildable(row.config, row.name)


def test_a_model_that_is_traced_whole_has_fewer_layers():
    alone = {"name": "d", "workload": "causal-lm", "model": {"name": "tiny-llama"}}
    require_depth(settings_from(alone), 1_000)
    for change in ({"compile": "default"}, {"parallel": {"kind": "ddp", "world_size": 2}}):
        require_depth(settings_from({**alone, **change}), MOST_TRACED_BLOCKS)
        with pytest.raises(InvalidSettings, match="at most 160 layers in a model that is compiled or spread"):
            require_depth(settings_from({**alone, **change}), MOST_TRACED_BLOCKS + 1)
