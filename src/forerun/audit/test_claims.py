"""Claims files: what is read, and errors that name the field and the remedy."""

import pytest
import yaml

from forerun.audit.claims import claims_from, contexts_of, load_claims
from forerun.audit.kinds import KINDS, describe_kinds
from forerun.audit.shipped_claims import claims_path
from forerun.errors import InvalidSettings

FILE = {
    "document": "d",
    "configurations": {
        "a": {"gpu": "t4", "settings": {"model": {"name": "gpt2"}, "data": {"examples": 100}}},
        "b": {"like": "a", "set": ["batch.micro_batch_size=8"]},
    },
    "claims": [{"id": "one", "quote": "q", "kind": "global-batch", "claimed": 1}],
}


def with_claim(**claim):
    return {**FILE, "claims": [{"id": "one", "quote": "q", **claim}]}


def test_a_single_check_may_stand_in_the_claim():
    claim = claims_from(FILE).claims[0]
    assert claim.quote == "q"
    assert len(claim.checks) == 1


def test_a_configuration_may_change_another():
    contexts = contexts_of(claims_from(FILE))
    assert contexts[None] is contexts["a"]
    assert contexts["b"].run.batch.micro_batch_size == 8
    assert contexts["b"].device.name == "t4"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (with_claim(kind="global-bach", claimed=1), ["claim one", "global-bach", "global-batch", "--kinds"]),
        (with_claim(kind="global-batch", claimd=1), ["claimd", "claimed", "claim one"]),
        (with_claim(kind="global-batch"), ["claimed", "required by global-batch"]),
        (with_claim(kind="run-time", step="2", claimed="1 h"), ["step", "45 min", "found '2'"]),
        (with_claim(kind="global-batch", claimed=1, of="c"), ["'c'", "configuration"]),
        (with_claim(), ["checks", "required"]),
        ({**FILE, "claims": []}, ["claims", "at least 1"]),
        ({**FILE, "documnt": "x"}, ["documnt", "document"]),
        ({**FILE, "configurations": {"a": {"like": "z"}}}, ["like", "'z'"]),
    ],
)
def test_errors_name_field_and_remedy(content, words):
    with pytest.raises(InvalidSettings) as error:
        claims_from(content)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("configurations", "words"),
    [
        ({"a": {"settings": {"model": {"name": "gpt2"}, "btach": {}}}}, ["configurations.a", "btach", "batch"]),
        ({"a": {"like": "b"}, "b": {"like": "a"}}, ["circle", "a → b → a"]),
    ],
)
def test_errors_of_configurations(configurations, words):
    with pytest.raises(InvalidSettings) as error:
        contexts_of(claims_from({**FILE, "configurations": configurations}))
    for word in words:
        assert word in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "torn.yaml").write_text("a: [")
    for name, word in (("none.yaml", "cannot be read"), ("list.yaml", "mapping"), ("torn.yaml", "not YAML")):
        with pytest.raises(InvalidSettings, match=word):
            load_claims(tmp_path / name)
    with pytest.raises(InvalidSettings, match="example"):
        claims_path("exampel")


def test_every_kind_says_what_it_checks():
    assert [kind for kind, *_ in describe_kinds()] == list(KINDS)
    assert all(what.endswith(".") or what.endswith(")") for _, what, _ in describe_kinds())


def test_the_example_is_a_claims_file():
    content = yaml.safe_load(claims_path("example").read_text())
    assert len(claims_from(content).claims) == 7
