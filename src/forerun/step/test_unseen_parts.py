import pytest
import torch

from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.step.unseen_parts import unseen_parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [("google/gemma-3-4b-it", 419_816_304), ("qwen/qwen3-vl-2b-instruct", 406_957_056)]
    + [("huggingfacetb/smolvlm-256m-instruct", 93_510_912)],
)
def test_what_reads_images_is_idle_in_a_step_of_tokens(name: str, count: int):
    with torch.device("meta"):
        model = build_model(model_config(name, {}, "auto"), "causal-lm")
    assert unseen_parameters(model) == count


def test_a_model_of_tokens_has_no_idle_part():
    with torch.device("meta"):
        assert unseen_parameters(build_model(model_config("tiny-llama", {}, "auto"), "causal-lm")) == 0
