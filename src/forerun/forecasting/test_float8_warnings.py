from forerun.forecasting.float8_warnings import NOT_COMPILED, ROWS, float8_warnings
from forerun.settings.load import settings_from

BASE = {
    "name": "f", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 8},
    "precision": "bf16-mixed",
}  # fmt: skip


def test_what_is_slower_than_it_looks_is_said():
    assert float8_warnings(settings_from(BASE)) == []
    assert float8_warnings(settings_from(BASE | {"float8": {"recipe": "tensorwise"}})) == [NOT_COMPILED]
    rows = settings_from(BASE | {"float8": {"recipe": "rowwise_with_gw_hp"}, "compile": "default"})
    assert float8_warnings(rows) == [ROWS]
