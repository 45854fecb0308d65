"""Lists with a value for each layer follow the depth where they can, and say so where they cannot."""

import pytest
import torch

from forerun.errors import InvalidSettings
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.models.layer_lists import lists_of_depth, period

STATED = {"n": 4, "layer_kinds": ["a", "b", "a", "b"], "sizes": [1, 2, 3, 4], "others": [1, 2], "n_heads": 4}


def test_shallower_models_have_the_first_layers():
    assert lists_of_depth(STATED, "n", {"n": 3}) == {"layer_kinds": ["a", "b", "a"], "sizes": [1, 2, 3]}
    assert lists_of_depth(STATED, "n", {"n": 3, "sizes": [1, 1, 1]}) == {"layer_kinds": ["a", "b", "a"]}
    assert lists_of_depth(STATED, "n", {}) == lists_of_depth(STATED, "n", {"n": 4}) == {}


def test_deeper_ones_go_on_as_the_layers_repeat():
    repeating = {"n": 4, "layer_kinds": ["a", "b", "a", "b"]}
    assert lists_of_depth(repeating, "n", {"n": 7}) == {"layer_kinds": list("abababa")}
    assert period([1, 1, 1]) == 1
    with pytest.raises(InvalidSettings, match="values of sizes; it has 4"):
        lists_of_depth(STATED, "n", {"n": 5})


def test_words_that_are_as_many_by_chance_stay():
    assert lists_of_depth({"n": 2, "pos_att_type": ["c2p", "p2c"]}, "n", {"n": 7}) == {}


ALL_ALIKE, TWO_KINDS = ("tiny-longformer", "tiny-qwen2"), ("tiny-modernbert", "tiny-gemma2")


@pytest.mark.parametrize(
    ("name", "depth"),
    [*[(name, depth) for name in ALL_ALIKE for depth in (1, 3, 5)], *[(name, 1) for name in TWO_KINDS]],
)
def test_models_with_such_lists_build_at_any_depth(name, depth, tmp_path):
    """By name, and from a folder, whose file states the lists that a name leaves to the class."""
    model_config(name, {}, "eager").save_pretrained(tmp_path)
    for source in (name, str(tmp_path)):
        config = model_config(source, {"num_hidden_layers": depth}, "eager")
        with torch.device("meta"):
            model = build_model(config, "encoder")
        assert len(max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)) == depth


def test_kinds_that_are_stated_with_their_number_follow_the_depth():
    stated = {"num_layers": 12, "attention_types": [[["global", "local"], 6]]}
    assert lists_of_depth(stated, "num_layers", {"num_layers": 3}) == {
        "attention_types": [[["global", "local", "global"], 1]]
    }
    config = model_config("EleutherAI/gpt-neo-125m", {"num_layers": 2}, "auto")
    assert config.attention_layers == ["global", "local"]
