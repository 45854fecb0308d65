"""Experts as layers compute what the fused ones do, and bitsandbytes packs them."""

import pytest
import torch

from forerun.api import forecast
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.step.linear_experts import experts_as_layers

SIZES = {"num_hidden_layers": 2, "num_local_experts": 4, "hidden_size": 64, "intermediate_size": 128}
MIXTRAL = {
    "name": "e", "workload": "causal-lm", "precision": "bf16-true", "quantization": "nf4", "data": {"examples": 8},
    "batch": {"micro_batch_size": 2, "sequence_length": 64}, "model": {"name": "tiny-mixtral", "config": SIZES},
    "adapter": {"kind": "lora", "targets": ["q_proj", "v_proj"]},
}  # fmt: skip
LAYERS = 2 * 4 * 3


def test_layers_compute_what_fused_experts_do():
    torch.manual_seed(0)
    model = build_model(model_config("tiny-mixtral", SIZES, "eager"), "causal-lm").eval()
    ids = torch.randint(0, 100, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        fused = [dict(m.named_parameters()) for m in model.modules() if hasattr(m, "gate_up_proj")]
        experts_as_layers(model)
        layers = [m for m in model.modules() if type(m).__name__ == "LinearExperts"]
        for weights, block in zip(fused, layers, strict=True):
            for number, expert in enumerate(block):
                gate, up = weights["gate_up_proj"][number].chunk(2)
                for layer, weight in (("w1", gate), ("w3", up), ("w2", weights["down_proj"][number])):
                    getattr(expert, layer).weight.copy_(weight)
        assert torch.allclose(model(ids).logits, expected, atol=1e-5)
    assert len(layers) == 2


def test_experts_are_packed_before_transformers_5():
    now, then = forecast(MIXTRAL, "a100-40gb"), forecast(MIXTRAL | {"versions": {"transformers": "4.57"}}, "a100-40gb")
    less = now.memory.breakdown.parameter_bytes - then.memory.breakdown.parameter_bytes
    packed = LAYERS * (64 * 128 / 2 + 64 * 128 / 64 * 4 + 512)  # four bits, a scale for 64 weights, a table of codes
    assert less == pytest.approx(LAYERS * 64 * 128 * 2 - packed, rel=0.02)
    assert not any("experts are not packed" in w or "packs" in w for w in then.warnings)
    assert then.parameters.total == now.parameters.total
