"""The real client of the Hugging Face hub against a server on this machine: what users get, and what they are told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fake_hub import FakeHub

pytestmark = pytest.mark.medium  # one process that imports transformers, some 5 s
HERE = Path(__file__).resolve().parent
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512}
LATE_SECONDS = 2.0
"""Longer than the client waits in `hub_driver.py`."""
OF_HUBS = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_")
"""Beginnings of the environment's names that lead a client elsewhere."""
NAMES = (
    "acme/whole", "acme/whole@v1", "acme/whole@v9", "acme/gated", "acme/forbidden", "acme/none", "acme/empty",
    "acme/busy", "acme/late", "acme/own-code", "acme/single", "old-name", "no-such-name", "acme/packed",
)  # fmt: skip


def repository(root: Path, name: str, **config: object) -> Path:
    folder = root / "models" / "acme" / name
    folder.mkdir(parents=True)
    stated = {"model_type": "llama", "hidden_size": 64, **SIZES, **config}
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Answers to all names, from one process."""
    root = tmp_path_factory.mktemp("hub")
    whole = repository(root, "whole")
    words = {"[UNK]": 0, "good": 1, "day": 2}
    tokenizer = {
        "version": "1.0", "added_tokens": [], "truncation": None, "padding": None, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }  # fmt: skip
    (whole / "tokenizer.json").write_text(json.dumps(tokenizer))
    (whole / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}')
    (whole / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 12345}, "weight_map": {}}')
    (repository(root, "single") / "model.safetensors").write_bytes(b"x" * 77)
    (root / "models" / "old-name").mkdir(parents=True)
    (root / "models" / "old-name" / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    packed = {"quant_method": "gptq", "bits": 4}
    repository(root, "packed", quantization_config=packed)
    repository(root, "whole@v1", hidden_size=32)
    for name in ("gated", "forbidden", "busy", "late"):
        repository(root, name)
    (root / "models" / "acme" / "empty").mkdir()
    own = repository(root, "own-code", model_type="unheard-of", auto_map={"AutoConfig": "own_code.Own"})
    (own / "own_code.py").write_text("raise SystemExit('was run')")
    with FakeHub(root) as hub:
        hub.refused = {
            "acme/gated": (401, {"X-Error-Code": "GatedRepo"}), "acme/forbidden": (403, {"X-Error-Code": "GatedRepo"}),
            "acme/busy": (429, {"Retry-After": "77"}),
        }  # fmt: skip
        hub.late = {"acme/late": LATE_SECONDS}
        own = {name: value for name, value in os.environ.items() if not name.startswith(OF_HUBS)}
        environment = {
            **own, "HF_ENDPOINT": hub.address, "HF_HOME": str(root / "cache"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent), str(HERE)]),
        }  # fmt: skip
        process = subprocess.run(
            [sys.executable, str(HERE / "hub_driver.py"), *NAMES],
            env=environment, cwd=HERE.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-2000:]
        return {**json.loads(process.stdout.splitlines()[-1]), "asked": list(hub.asked)}


def test_an_id_gives_its_configuration_and_tokenizer(told):
    answer = {"hidden_size": 64, "tokens": [1, 2], "file_bytes": 12345, "seconds": 0}
    assert told["online"]["acme/whole"] | {"seconds": 0} == answer


def test_sizes_of_the_weights_come_from_their_index_or_the_one_file(told):
    assert told["online"]["acme/single"]["file_bytes"] == 77
    assert told["offline"]["acme/whole"]["file_bytes"] == 12345
    assert not any(line.startswith("GET") and line.endswith("model.safetensors") for line in told["asked"])


def test_ids_of_before_there_were_owners_are_asked_for(told):
    assert told["online"]["old-name"]["hidden_size"] == 4096
    assert "Check the id" in told["online"]["no-such-name"]["error"]


def test_weights_packed_for_running_are_refused(told):
    assert "packed for running (gptq)" in told["online"]["acme/packed"]["error"]


def test_a_pin_gives_that_revision_and_a_wrong_one_is_said(told):
    assert told["online"]["acme/whole@v1"]["hidden_size"] == 32
    assert any("/revision/v1" in line for line in told["asked"])
    assert "acme/whole has no revision 'v9'" in told["online"]["acme/whole@v9"]["error"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("acme/gated", "accept its terms on the page of acme/gated, then log in with `hf auth login`"),
        ("acme/forbidden", "accept its terms on the page of acme/forbidden"),
        ("acme/none", "Check the id, or log in with `hf auth login` where it is private. Nearest in the catalogue"),
        ("acme/empty", "acme/empty has no config.json that names a type of transformers"),
        ("acme/busy", "The hub limits requests: wait 77 s, or log in"),
        ("acme/late", "The hub did not answer in time: try again, or raise HF_HUB_ETAG_TIMEOUT"),
    ],
)
def test_each_refusal_has_its_remedy(told, name, remedy):
    error = told["online"][name]["error"]
    assert remedy in error
    assert "\n" not in error


def test_code_of_a_model_is_never_run(told):
    error = told["online"]["acme/own-code"]["error"]
    assert "code of its own, which forerun never runs" in error
    assert "forerun exec" in error
    assert not told["modules"]
    assert not any("own_code.py" in line for line in told["asked"])


def test_what_was_once_loaded_needs_no_network(told):
    assert told["offline"]["acme/whole"]["hidden_size"] == 64
    assert told["offline"]["acme/whole"]["tokens"] == [1, 2]
    assert "the Hugging Face hub could not give it" in told["offline"]["acme/never"]["error"]
