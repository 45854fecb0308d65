import json

import pytest

from forerun.models import published_files
from forerun.models.published_files import INDEX, published_bytes


def test_a_folder_has_what_its_index_or_its_files_say(tmp_path):
    assert published_bytes(str(tmp_path)) is None
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"x" * 5)
    assert published_bytes(str(tmp_path)) == 15
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 14}, "weight_map": {}}))
    assert published_bytes(str(tmp_path)) == 14


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"metadata": {"total_size": "many"}}'])
def test_an_index_without_a_size_says_nothing(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    assert published_bytes(str(tmp_path)) is None


def test_nobody_is_asked_without_a_network_or_an_id(monkeypatch):
    monkeypatch.setattr(published_files, "hub_is_reachable", lambda: False)
    assert published_bytes("owner/unheard-of") is None
    assert published_bytes("llama 3 8b") is None
