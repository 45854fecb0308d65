"""What settings freeze is frozen, by name or not at all; a paged optimizer takes nothing from the allocator."""

import pytest
import torch

from forerun.api import forecast
from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.step.test_decoder_types import small

CONTENT = {
    "name": "f", "workload": "causal-lm", "precision": "bf16-true", "model": {"name": "tiny-llama"},
    "batch": {"micro_batch_size": 2, "sequence_length": 64}, "data": {"examples": 8},
}  # fmt: skip


def settings(freeze=(), **changes):
    return settings_from({**CONTENT, "model": {"name": "tiny-llama", "freeze": list(freeze)}, **changes})


def test_frozen_parameters_have_no_gradient_and_no_state():
    patterns = ["model.embed_tokens.*", "model.layers.0.*"]
    with torch.device("meta"):
        model = prepare_model(settings(patterns), generic_workload("causal-lm"), pretrained=False)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen
    assert all(name.startswith(("model.embed_tokens.", "model.layers.0.")) for name in frozen)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result = forecast(settings(patterns), "a100-40gb")
    assert result.parameters.trainable == trained
    assert result.parameters.total == forecast(settings(), "a100-40gb").parameters.total
    # two moments of two bytes; blocks are rounded up to 512 bytes, and each parameter has a counter of its own
    state = result.memory.breakdown.optimizer_state_bytes
    assert 4 * trained <= state < 4 * trained + 3 * 512 * len(list(model.parameters()))


@pytest.mark.parametrize(
    ("patterns", "says"),
    [(["model.layer.0.*"], "model.layer.0.*"), (["*"], "leaves something to train")],
)
def test_a_pattern_that_names_nothing_or_everything_is_refused(patterns, says):
    with pytest.raises(InvalidSettings, match=r"model\.freeze") as refusal:
        forecast(settings(patterns), "a100-40gb")
    assert says in str(refusal.value)


def test_paged_state_of_32_bits_lives_outside_the_allocator():
    """Two fp32 moments of every parameter of 100,000 elements and more, in memory that the driver moves."""
    model = {"name": "tiny-llama", "config": {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 2048}}
    plain, paged = (
        forecast(settings(model=model, optimizer={"name": name}), "a100-40gb") for name in ("adamw", "paged-adamw")
    )
    with torch.device("meta"):
        whole = prepare_model(settings(model=model), generic_workload("causal-lm"), pretrained=False)
    small = sum(p.numel() for p in whole.parameters() if p.numel() < 100_000)
    large = sum(p.numel() for p in whole.parameters() if p.numel() >= 100_000)
    assert paged.memory.breakdown.optimizer_state_bytes < 8 * small + 1024 * len(list(whole.parameters()))
    assert plain.memory.breakdown.optimizer_state_bytes >= 4 * (small + large)
    # while the card has room, the pages stay on it
    outside = paged.memory.device_bytes.conservative - paged.memory.peak_reserved_bytes
    assert outside > 8 * large


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_router_that_is_a_linear_layer_gets_no_adapter_and_stays_as_it_is(quantization):
    """Llama 4's returns two tensors: peft and a packed layer would return one."""
    tiny = small("llama4_text")
    settings = settings_from(
        {
            "name": "a", "workload": "causal-lm", "model": tiny, "adapter": {"kind": "lora"}, "precision": "bf16-true",
            "quantization": quantization, "batch": {"sequence_length": 16},
        }
    )  # fmt: skip
    with torch.device("meta"):
        model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
    kinds = {type(module).__name__ for name, module in model.named_modules() if name.endswith("router")}
    assert kinds == {"Llama4Router"}
    assert any("lora_A" in name and "q_proj" in name for name, _ in model.named_parameters())
