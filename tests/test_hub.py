"""Loading from a hub that is faked: calls, and clear errors."""

import sys
import types

import pytest

from forerun.data.hub_rows import load_from_hub
from forerun.errors import BadData, MissingExtra, UnknownModel
from forerun.models import pretrained_tokenizer
from forerun.models.pretrained_tokenizer import load_tokenizer


def hub(monkeypatch, answer):
    calls = []

    def load_dataset(*names, **options):
        calls.append((names, options))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset, __version__="4.4.1"))
    return calls


def test_a_data_set_is_asked_for_by_name_and_configuration(monkeypatch):
    calls = hub(monkeypatch, [{"text": "a"}])
    assert load_from_hub("owner/name", "small", split="train") == [{"text": "a"}]
    assert calls == [(("owner/name", "small"), {"split": "train"})]


@pytest.mark.parametrize("error", [OSError("offline\nand more"), ValueError("no such configuration"), RuntimeError()])
def test_a_hub_that_gives_nothing_is_said_in_a_line(monkeypatch, error):
    hub(monkeypatch, error)
    with pytest.raises(BadData, match=r"the hub could not give owner/name:small: \w+.* Go online") as failure:
        load_from_hub("owner/name", "small")
    assert "\n" not in str(failure.value)


def test_without_the_package_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"forerun\[hub\]"):
        load_from_hub("owner/name")


def test_a_tokenizer_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(pretrained_tokenizer, "hub_is_reachable", lambda: False)
    for source in ("owner/none", tmp_path):
        with pytest.raises(UnknownModel, match="the tokenizer of it is needed; loading it from .* failed: .* Do this."):
            load_tokenizer(source, purpose="it is needed", instead="Do this.")
