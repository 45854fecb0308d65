"""What is pasted is a model's folder, the same for the same text; what is no configuration is refused by name."""

import json
import os

import pytest

from forerun.errors import InvalidSettings
from forerun.web import pasted
from forerun.web.pasted import keep_config

CONFIG = {"model_type": "bert", "hidden_size": 64}


def test_one_text_is_one_folder(tmp_path):
    first = keep_config(json.dumps(CONFIG), tmp_path)
    assert keep_config(json.dumps(dict(reversed(CONFIG.items())), indent=2), tmp_path) == first
    assert json.loads((tmp_path / os.path.basename(first) / "config.json").read_text()) == CONFIG
    assert len(os.listdir(first)) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "JSON"), ("{", "JSON"), ("[1]", "model_type"), ('{"model_type": 3}', "model_type"), ("[" * 100_000, "JSON"), ("1" * 2**21, "at most")],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(tmp_path, text, reason):
    with pytest.raises(InvalidSettings, match=reason):
        keep_config(text, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(pasted, "MOST_CONFIGS", 2)
    folders = []
    for width in (1, 2, 3):
        folders.append(keep_config(json.dumps({**CONFIG, "hidden_size": width}), tmp_path))
        os.utime(folders[-1], (width, width))
    keep_config(json.dumps({**CONFIG, "hidden_size": 2}), tmp_path)
    assert sorted(map(str, tmp_path.iterdir())) == sorted(folders[1:])
