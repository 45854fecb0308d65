from pathlib import Path

import pytest
import torch

from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings, UnknownModel
from forerun.recipes.code_lora import base_model as b
from forerun.recipes.code_lora.data.rows import CodeLoraOptions
from forerun.recipes.code_lora.recipe import SETTINGS
from forerun.settings.load import settings_from

SMALL = ["model.config.hidden_size=32", "model.config.num_hidden_layers=1", "model.config.intermediate_size=64"]
OPTIONS = CodeLoraOptions(documents=64)


@pytest.fixture(scope="module")
def settings():
    return settings_from(SETTINGS.model_dump(), SMALL)


@pytest.fixture(scope="module")
def tokens(settings):
    return b.tokens_of(settings, local_only=True)


def test_the_base_is_made_once_and_kept_by_what_it_depends_on(settings, tokens, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(b, "BASES", tmp_path / "bases")
    assert "2 steps once" in b.missing_base(settings, OPTIONS, tokens)
    base = b.base_directory(settings, OPTIONS, tokens)
    assert b.missing_base(settings, OPTIONS, tokens) is None
    assert sorted(p.name for p in base.parent.iterdir()) == [base.name], "nothing of the work is left"
    assert "step 2 of 2" in capsys.readouterr().err
    assert b.base_directory(settings, OPTIONS, tokens) == base
    assert capsys.readouterr().err == ""
    other = settings_from(settings.model_dump(), ["seed=1"])
    assert b.base_directory(other, OPTIONS, tokens) != base
    adapted = b.CodeLora(base).build_model(settings, pretrained=True)
    fresh = b.CodeLora(base).build_model(settings, pretrained=False)
    name = "model.embed_tokens.weight"
    again = b.CodeLora(base).build_model(settings, pretrained=True)
    assert torch.equal(adapted.state_dict()[name], again.state_dict()[name])
    assert not torch.equal(adapted.state_dict()[name], fresh.state_dict()[name])


def test_documents_are_learned_from_their_statements(tokens):
    for sample in b.document_samples(5, 0, tokens):
        first = next(place for place, label in enumerate(sample.target) if label != IGNORED)
        assert tokens.text(sample.ids[:first]).startswith("# ")
        assert tokens.text(sample.ids[:first]).endswith("):\n")
        assert tokens.text(sample.ids[first:-1]).lstrip().startswith(("return", "xs", "n ", "s ", "ws", "b "))
        assert sample.ids[-1] == tokens.end_ids[0]


def test_what_pretraining_cannot_do_is_said(settings):
    with pytest.raises(InvalidSettings, match="fp16-mixed"):
        b.pretraining_settings(settings.model_copy(update={"precision": "fp16-mixed"}), OPTIONS)
    unknown = settings_from(SETTINGS.model_dump(), [f"model.name={Path('/nowhere/at-all')}"])
    with pytest.raises(UnknownModel, match="tokenizer of /nowhere/at-all"):
        b.tokens_of(unknown, local_only=True)
