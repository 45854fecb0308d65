import json
import warnings

import pytest

from forerun.errors import UnknownModel
from forerun.models.catalogue import model_config
from forerun.spelling import NameNote

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def folder(tmp_path, **stated):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **stated}))
    return str(tmp_path)


@pytest.mark.parametrize("method", ["gptq", "awq", "hqq"])
def test_weights_packed_for_running_are_refused(tmp_path, method):
    name = folder(tmp_path, **SIZES, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(UnknownModel, match=rf"packed for running \({method}\).* nf4 forecasts QLoRA"):
        model_config(name, {}, "auto")


@pytest.mark.parametrize(
    ("packed", "note"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantization: nf4 forecasts them so"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "quantization: int8 forecasts them so"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "unpacked to the settings' precision"),
    ],
)
def test_weights_that_training_unpacks_are_said(tmp_path, packed, note):
    with pytest.warns(NameNote, match=note):
        assert model_config(folder(tmp_path, **SIZES, quantization_config=packed), {}, "auto").hidden_size == 64


def test_a_file_without_sizes_is_said(tmp_path):
    with pytest.warns(NameNote, match="states no size: those of transformers' LlamaConfig"):
        model_config(folder(tmp_path, architectures=["LlamaForCausalLM"]), {}, "auto")


def test_a_plain_file_is_taken_in_silence(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model_config(folder(tmp_path, **SIZES), {}, "auto")
