"""`forerun audit` from outside: the document, exit codes, the tables, and errors in one paragraph."""

import json
import re
from pathlib import Path

import pytest
import yaml

from command_driver import run_command
from forerun.audit.findings import RULES
from forerun.audit.kinds import KINDS
from forerun.audit.shipped_claims import shipped_documents

ROOT = Path(__file__).parents[1]
GOOD = {
    "document": "Good",
    "claims": [{"quote": "three parts of 1 GB make 3 GB", "line": 4, "kind": "sum", "unit": "size", "parts": ["1 GB"] * 3, "total": "3 GB"}],
}  # fmt: skip


@pytest.fixture
def forerun(tmp_path, monkeypatch, capfd):
    """Exit code, stdout and stderr of `forerun audit` in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_LEDGER", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    monkeypatch.setenv("COLUMNS", "120")
    Path("good.yaml").write_text(yaml.safe_dump(GOOD))

    def run(*arguments):
        code, out, err = run_command(monkeypatch, capfd, "audit", *arguments)
        return code, out, " ".join(err.split())

    return run


def test_nothing_wrong_is_exit_0(forerun):
    code, out, _ = forerun("good.yaml", "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["passed"]) == ("forerun.audit/1", True)
    assert document["counts"] == {"consistent": 1, "unsupported": 0, "wrong": 0, "impossible": 0}
    assert document["claims"][0]["line"] == 4


def test_something_wrong_is_exit_4_with_the_document(forerun):
    """The example has it on purpose."""
    code, out, err = forerun("example", "--json")
    document = json.loads(out)
    assert code == 4
    failed = [c for c in document["claims"] if c["verdict"] in ("wrong", "impossible")]
    assert err.endswith(
        f"claims are wrong or impossible: {'; '.join(c['id'] + ', line ' + str(c['line']) for c in failed)}."
    )
    assert document["passed"] is False
    (late,) = (c for c in document["claims"] if c["quote"].startswith("At 2 s"))
    assert late["verdict"] == "wrong"
    finding = late["findings"][0]
    assert (finding["rule"], finding["right"], finding["source"]) == ("R02", "1.75 h", "arithmetic")
    assert "3,141 steps" in finding["formula"]


def test_tables_say_claim_verdict_right_number_formula_and_source(forerun):
    code, out, _ = forerun("4-autocast", "good.yaml")
    assert code == 4
    for words in ("4.4, line 26", "wrong", "+44.4 %", "0.65 GB / 0.45 GB", "R16", "Audit by document", "18 claims"):
        assert words in out
    assert "three parts" not in out, "consistent claims are left out"
    assert "three parts" in forerun("good.yaml", "--all")[1]


def test_several_documents_are_one_json_document(forerun):
    document = json.loads(forerun("4-autocast", "good.yaml", "--json")[1])
    assert document["schema"] == "forerun.audits/1"
    assert [audit["passed"] for audit in document["audits"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--from-run", "--kinds"]),
        (("good.yaml", "--from-run", "last"), ["--from-run"]),
        (("none.yaml",), ["none.yaml", "origins"]),
        (("--from-run", "last"), ["no runs yet"]),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_2(forerun, arguments, words):
    code, out, err = forerun(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_kinds_are_listed(forerun):
    document = json.loads(forerun("--kinds", "--json")[1])
    assert [row["kind"] for row in document["kinds"]] == list(KINDS)
    assert [row["rule"] for row in document["rules"]] == list(RULES)
    assert "contrastive-loss" in forerun("--kinds")[1]


def test_the_page_names_every_kind_rule_and_document():
    page = (ROOT / "docs" / "audit.md").read_text()
    for name in (*KINDS, *RULES, *shipped_documents()):
        assert re.search(rf"`?\b{name}\b`?", page), name
