from forerun.forecasting.engine_warnings import NOT_COMPILED, engine_warnings
from forerun.settings.load import settings_from

BASE = {"name": "t", "workload": "causal-lm", "model": {"name": "tiny-llama"}}
LAYOUT = {"shard": 2, "zero": 1}


def test_fused_layers_without_compile_are_told():
    megatron = LAYOUT | {"engine": "megatron"}
    assert engine_warnings(settings_from(BASE | {"parallel": megatron})) == [NOT_COMPILED]
    assert engine_warnings(settings_from(BASE | {"parallel": LAYOUT})) == []
    assert engine_warnings(settings_from(BASE | {"parallel": megatron, "compile": "default"})) == []
