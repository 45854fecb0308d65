import pytest

from forerun.errors import MissingExtra
from forerun.models import minilm


def test_missing_wheel_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    assert not minilm.minilm_is_installed()
    with pytest.raises(MissingExtra, match=r"pip install 'forerun\[minilm\]'"):
        minilm.minilm_directory()


@pytest.mark.minilm
@pytest.mark.skipif(not minilm.minilm_is_installed(), reason="needs the minilm extra")
def test_the_wheel_holds_model_and_tokeniser():
    directory = minilm.minilm_directory()
    assert all((directory / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))
