from types import SimpleNamespace

import pytest

from forerun.api import describe_model
from forerun.errors import MissingPeak, UnknownDevice, UnknownModel
from forerun.hardware.catalogue import device
from forerun.models.catalogue import model_config
from forerun.runs.model_description import described


def test_a_model_of_the_catalogue():
    precisions = []

    def ask(settings, gpu):
        precisions.append((gpu.name, settings.precision, settings.quantization))
        if settings.quantization == "nf4" and gpu.name == "gtx-1660":
            raise MissingPeak("no rate")
        memory = SimpleNamespace(device_bytes=SimpleNamespace(conservative=1e9), capacity_bytes=gpu.memory_bytes)
        return SimpleNamespace(fits=True, memory=memory, step=SimpleNamespace(seconds=SimpleNamespace(expected=0.1)))

    model = described("tiny-llama", [device("a100-40gb"), device("t4"), device("gtx-1660")], [], ask)
    assert (model.parameters, model.shape.layers, model.family) == (138_048, 2, "llama")
    assert model.footprint.weights_bf16_bytes == 2 * model.parameters
    assert model.coarse[0].cards["consumer"] == "gtx-1660"
    ways = {(option.gpu, option.way): option for option in model.options}
    assert len(ways) == 9
    assert ways["a100-40gb", "full, AdamW, mixed"].step_seconds == 0.1
    assert ways["gtx-1660", "QLoRA, nf4"].refusal == "no rate"
    assert precisions[0] == ("a100-40gb", "bf16-mixed", "none")
    assert precisions[4] == ("t4", "fp16-true", "none")
    assert precisions[6] == ("gtx-1660", "fp32", "none"), "its float16 is slower"


def test_a_folder_is_counted_without_weights(tmp_path):
    model_config("tiny-bert", {}, "auto").save_pretrained(tmp_path)
    model = describe_model(str(tmp_path))
    assert model.parameters_of == "encoder"
    assert model.parameters == 111_552
    assert "without weights" in model.source
    assert model.options == ()


def test_bad_input_is_an_error_of_ours():
    with pytest.raises(UnknownModel, match="Nearest"):
        describe_model("no-such-model")
    with pytest.raises(UnknownDevice):
        describe_model("tiny-bert", ["zzz"])
