"""What quantization leaves out is told with its bytes; peft's preparation makes exactly those bytes fp32."""

import pytest
import torch

from forerun.api import forecast
from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.units import format_bytes

LAYERS, EXPERTS, WIDTH, INNER = 2, 4, 64, 128
BATCH = {"batch": {"micro_batch_size": 2, "sequence_length": 64}, "data": {"examples": 8}}
MIXTRAL = {
    "name": "q", "workload": "causal-lm", "precision": "bf16-true", "quantization": "nf4", **BATCH,
    "model": {"name": "tiny-mixtral", "config": {
        "num_hidden_layers": LAYERS, "num_local_experts": EXPERTS, "hidden_size": WIDTH, "intermediate_size": INNER,
    }},
    "adapter": {"kind": "lora", "targets": ["q_proj", "v_proj"]},
}  # fmt: skip
LLAMA = {**MIXTRAL, "model": {"name": "tiny-llama"}}


def test_experts_that_stay_as_they_are_are_told_with_their_bytes():
    warning = next(w for w in forecast(MIXTRAL, "a100-40gb").warnings if "experts" in w)
    # three matrices of width × inner for each expert, two bytes a weight; four bits packed
    weights = LAYERS * EXPERTS * 3 * WIDTH * INNER
    assert f"{format_bytes(weights * 2)} of experts" in warning
    assert f"take {format_bytes(weights / 2)}." in warning
    assert not any("experts" in w for w in forecast(LLAMA, "a100-40gb").warnings)


def test_a_model_whose_layers_are_of_a_class_of_their_own_stays_as_it_is():
    """Falcon's are `FalconLinear`; transformers/integrations/bitsandbytes.py:189 (5.24)."""
    falcon = {**LLAMA, "model": {"name": "tiny-falcon"}, "adapter": {"kind": "lora"}}
    assert any("next to all of the model" in w for w in forecast(falcon, "a100-40gb").warnings)
    assert not any("next to all of the model" in w for w in forecast(LLAMA, "a100-40gb").warnings)
    older = forecast({**falcon, "versions": {"transformers": "5.4.0"}}, "a100-40gb")
    assert not any("next to all of the model" in w for w in older.warnings)
    assert older.memory.breakdown.parameter_bytes < forecast(falcon, "a100-40gb").memory.breakdown.parameter_bytes


def test_preparation_widens_all_that_is_not_packed():
    plain, prepared = (forecast({**LLAMA, "kbit_preparation": value}, "a100-40gb") for value in (False, True))
    warning = next(w for w in plain.warnings if "prepare_model_for_kbit_training" in w)
    assert not any("prepare_model_for_kbit_training" in w for w in prepared.warnings)
    with torch.device("meta"):
        model = prepare_model(settings_from(LLAMA), generic_workload("causal-lm"), pretrained=False)
    narrow = sum(p.nbytes for p in model.parameters() if p.dtype == torch.bfloat16 and not p.requires_grad)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}, "adapters are fp32 either way"
    more = prepared.memory.breakdown.parameter_bytes - plain.memory.breakdown.parameter_bytes
    assert more == pytest.approx(narrow, rel=0.02)
    assert f"takes {format_bytes(narrow)} more" in warning
    assert prepared.memory.breakdown.activation_bytes > 1.2 * plain.memory.breakdown.activation_bytes


def test_mixed_precision_has_these_casts_already():
    mixed = {**LLAMA, "precision": "bf16-mixed"}
    plain, prepared = (forecast({**mixed, "kbit_preparation": value}, "a100-40gb") for value in (False, True))
    assert plain.memory == prepared.memory
    assert not any("prepare_model_for_kbit_training" in w for w in plain.warnings)


def test_preparation_without_quantization_is_refused():
    with pytest.raises(NotSupported, match="kbit_preparation"):
        forecast({**LLAMA, "quantization": "none", "kbit_preparation": True}, "a100-40gb")


def test_int8_multiplies_gradients_in_float32_where_the_inputs_are():
    wide = {**LLAMA, "quantization": "int8", "model": {"name": "tiny-llama", "config": {
        "num_hidden_layers": LAYERS, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8,
    }}, "batch": {"micro_batch_size": 8, "sequence_length": 512, "gradient_accumulation_steps": 4}}  # fmt: skip
    mixed, narrow = (forecast({**wide, "precision": name}, "a100-40gb") for name in ("fp16-mixed", "bf16-true"))
    (warning,) = (w for w in mixed.warnings if "multiplies gradients" in w)
    assert not any("multiplies gradients" in w for w in narrow.warnings)
    # forward and backward products of a token: 4 of width², 3 of width × inner; only those backward are in float32
    tokens = 8 * 512 * 4
    flop = LAYERS * tokens * 2 * (2 * 1024**2 + 2 * 1024**2 + 3 * 1024 * 4096)
    seconds = float(warning.split("here: ")[1].split(" ms")[0]) / 1e3
    assert flop / 19.5e12 < seconds < 2.5 * flop / 19.5e12, "between the A100's peak in float32 and 40 % of it"
    assert mixed.step.seconds.expected > 1.5 * narrow.step.seconds.expected
