import pytest

from forerun.models.footprint import footprint_of, shape_of
from forerun.models.rows import architecture
from forerun.units import GIB


def test_sizes_under_the_names_of_each_family():
    assert shape_of({"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}).model_dump() == {
        "layers": 12, "hidden": 768, "heads": 12, "key_value_heads": None, "vocabulary": 50257, "positions": None,
        "experts": None,
    }  # fmt: skip
    assert shape_of({"d_model": 512, "num_layers": 6, "num_local_experts": 8}).layers == 6


@pytest.mark.literature
def test_llama_2_7b_weighs_what_is_published():
    """13.5 GB in 16 bits is the size of its files; QLoRA's paper has 4-bit 7B models at about 5 GB with embeddings."""
    row = architecture("llama-2-7b")
    shape = shape_of({"vocab_size": 32000, "hidden_size": 4096})
    footprint = footprint_of(row, shape, is_tied=False)
    assert footprint.weights_bf16_bytes == 2 * 6_738_415_616
    assert footprint.weights_nf4_bytes / GIB == pytest.approx(3.9, abs=0.1)
    assert footprint.full_training_bytes / GIB == pytest.approx(100.4, abs=0.1)
