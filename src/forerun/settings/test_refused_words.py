"""Words of other tools are refused with what they mean here; every remedy that is named exists."""

import re

import pytest

from forerun.errors import InvalidSettings
from forerun.settings.load import known_keys, settings_from
from forerun.settings.refused_words import KEYS, VALUES

MINIMAL = {"name": "r", "workload": "causal-lm", "model": {"name": "gpt2"}, "adapter": {"kind": "lora"}}
VALUED = [(path, word) for path, words in VALUES.items() for word in words]


@pytest.mark.parametrize(("path", "word"), VALUED)
def test_a_value_of_another_tool_is_refused_with_its_reason(path, word):
    with pytest.raises(InvalidSettings, match=re.escape(VALUES[path][word][:40])) as refusal:
        settings_from(MINIMAL, [f"{path}={word}"])
    assert path in str(refusal.value)


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_of_another_tool_is_refused_with_ours(key):
    with pytest.raises(InvalidSettings, match=re.escape(KEYS[key][:40])):
        settings_from({**MINIMAL, key: True})


def test_no_refused_word_is_one_that_is_taken():
    for path, word in VALUED:
        with pytest.raises(InvalidSettings):
            settings_from(MINIMAL, [f"{path}={word}"])
    assert not set(KEYS) & set(known_keys())


def test_settings_that_reasons_name_exist():
    texts = [*KEYS.values(), *(text for words in VALUES.values() for text in words.values())]
    for text in texts:
        for section, key in re.findall(r"\b(model|parallel|optimizer|adapter)\.([a-z_]+)\b", text):
            assert key in known_keys((section,)), text
