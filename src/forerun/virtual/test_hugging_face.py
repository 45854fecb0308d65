"""Models of transformers whose batch has a mask are traced with the package's attention, as a run without padding is."""

import pytest

from forerun.api import forecast


@pytest.mark.parametrize("attention", ["flash_attention_2", "sdpa"])
def test_an_encoder_with_a_mask_takes_its_attention(attention):
    settings = {
        "name": "asked", "workload": "embedding", "model": {"name": "tiny-bert", "attention": attention},
        "precision": "bf16-mixed", "batch": {"sequence_length": 32}, "data": {"examples": 64},
    }  # fmt: skip
    gaps = " ".join(forecast(settings, gpu="a100-40gb").not_modelled)
    assert ("padding, which flash attention leaves out" in gaps) == (attention != "sdpa")
    assert ("reads of tensor values" in gaps) == (
        attention == "sdpa"
    )  # whether a batch has padding, taken to have some
