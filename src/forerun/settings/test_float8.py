"""Which words of `float8` go together, and whose hashes they change."""

import pytest

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from

BASE = {
    "name": "f", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "data": {"examples": 8},
    "precision": "bf16-mixed",
}  # fmt: skip
ON = {"recipe": "tensorwise"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"float8": {"recipe": "delayed"}}, "float8.recipe"),
        ({"float8": ON, "adapter": {"kind": "lora"}}, "adapters gain nothing by it; found 'tensorwise' with adapter.kind='lora'"),
        ({"float8": ON, "precision": "fp32"}, "take and give bfloat16; found precision='fp32'"),
        ({"float8": ON | {"all_gather": True}}, "float8.all_gather: .* parallel.kind='none'"),
        ({"float8": {"recipe": "rowwise", "all_gather": True}, "parallel": {"shard": 2}}, "float8.all_gather: .*'rowwise'"),
        ({"float8": {"skip": ["*"]}}, "float8.skip: .*found float8.recipe='none'"),
    ],
)  # fmt: skip
def test_wrong_words_are_refused(changes, message):
    with pytest.raises(InvalidSettings, match=message):
        settings_from(BASE | changes)


def test_float8_is_another_run_and_none_is_what_was_before():
    usual, other = settings_from(BASE), settings_from(BASE | {"float8": ON})
    said = settings_from(BASE | {"float8": {"recipe": "none"}})
    assert said.hash == usual.hash != other.hash
    assert said.resumable_hash == usual.resumable_hash != other.resumable_hash
