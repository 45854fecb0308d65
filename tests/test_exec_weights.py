"""Pretrained models of the hub and of folders, loaded without a value."""

import resource
import sys

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

import forerun
from forerun.models import catalogue

TINY = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 5000, "n_positions": 64}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    catalogue.hub_is_reachable.cache_clear()
    yield
    catalogue.hub_is_reachable.cache_clear()


def test_a_model_of_the_hub_has_the_catalogues_configuration():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2", dtype=torch.bfloat16).cuda()
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sum(p.numel() for p in model.parameters()) == catalogue.architecture("gpt2").parameters
    assert any("that of the catalogue" in line and line.startswith("test_exec_weights.py:") for line in gpu.assumed)


@pytest.mark.parametrize("names", [("hub.resolve_revision",), ("hub.cached_files", "import_utils.is_fake_tensor")])
def test_releases_of_transformers_without_some_of_its_functions_are_followed(monkeypatch, names):
    """5.17 has no `resolve_revision`, 4.48 has none of the three."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **TINY))
    for name in names:
        monkeypatch.delattr(f"transformers.utils.{name}")
    with forerun.virtual_cuda("t4") as gpu:
        model.cuda()
        torch.nn.Linear(2, 2, device="cuda")(torch.zeros(1, 2, device="cuda"))
    assert gpu.memory.peak_allocated_bytes > 0


def test_seven_billion_parameters_need_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with forerun.virtual_cuda("h100-80gb") as gpu:
        AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf", dtype=torch.bfloat16, device_map="cuda")
    assert gpu.memory.peak_allocated_bytes >= 2 * catalogue.architecture("llama-2-7b").parameters
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_weights_whose_dtype_nobody_says_are_float32_and_that_is_listed():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=3).cuda()
    assert model.dtype == torch.float32
    assert model.classifier.out_features == 3
    assert any("dtype of the weights" in line for line in gpu.assumed)


def test_an_unknown_model_is_the_hubs_own_error():
    with forerun.virtual_cuda("t4"), pytest.raises(OSError, match="nobody/nothing"):
        AutoConfig.from_pretrained("nobody/nothing")


def test_a_folder_is_opened_for_its_header(tmp_path):
    config = AutoConfig.for_model("gpt2", **TINY)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    with forerun.virtual_cuda("t4") as gpu:
        model = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cuda")
        assert model.dtype == torch.bfloat16
        assert model.transformer.wte.weight.is_cuda
        assert not any("dtype" in line for line in gpu.assumed)
    assert safe_open is sys.modules["safetensors"].safe_open


def test_small_tensors_and_integers_keep_their_values(tmp_path):
    table = torch.arange(3_000_000)
    save_file(
        {"table": table, "scale": torch.tensor([2.5]), "large": torch.ones(1000, 1000)}, tmp_path / "w.safetensors"
    )
    with forerun.virtual_cuda("t4"):
        found = load_file(tmp_path / "w.safetensors")
        assert torch.equal(found["table"], table)
        assert found["scale"].item() == 2.5
        assert found["large"].shape == (1000, 1000)
    assert torch.equal(load_file(tmp_path / "w.safetensors")["large"], torch.ones(1000, 1000))


def test_downloads_of_torch_hub_change_nothing():
    layer = nn.Linear(2, 2)
    with forerun.virtual_cuda("t4"):
        layer.load_state_dict(torch.hub.load_state_dict_from_url("https://nowhere.invalid/weights.pth"))
        with pytest.raises(RuntimeError, match="Missing key"):
            layer.load_state_dict({})


def test_pretrained_models_of_timm_are_made_without_a_download():
    timm = pytest.importorskip("timm")
    with forerun.virtual_cuda("t4"):
        assert timm.create_model("resnet18", pretrained=True, num_classes=3).fc.out_features == 3
