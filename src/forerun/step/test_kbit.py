"""Number formats of a quantised model as trl's SFTTrainer leaves them."""

import pytest
import torch

from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload

LLAMA = {
    "name": "k", "workload": "causal-lm", "precision": "bf16-mixed", "quantization": "nf4", "data": {"examples": 8},
    "batch": {"micro_batch_size": 2, "sequence_length": 64}, "model": {"name": "tiny-llama"},
    "adapter": {"kind": "lora", "targets": ["q_proj"]},
}  # fmt: skip
NARROW, WIDE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("trl", "embedding", "adapter"),
    [("0.8.6", NARROW, NARROW), ("0.13.0", NARROW, WIDE), ("0.25.1", NARROW, WIDE), ("0.26.0", WIDE, NARROW)],
)
def test_formats_of_each_version(trl, embedding, adapter):
    settings = settings_from(LLAMA | {"versions": {"trl": trl}})
    with torch.device("meta"):
        model = prepare_model(settings, generic_workload("causal-lm"), pretrained=False)
    formats = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {d for n, d in formats.items() if "norm" in n} == {WIDE}
    assert {d for n, d in formats.items() if "embed_tokens" in n or "lm_head" in n} == {embedding}
    assert {d for n, d in formats.items() if "lora_" in n} == {adapter}
