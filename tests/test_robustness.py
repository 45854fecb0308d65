"""The page of attacks is what `benchmarks.robustness` makes of the kept runs, which are added up where they are parts."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
from benchmarks import robustness  # noqa: E402


def fuzz(seed: int, **outcomes: int) -> dict:
    return {
        "questions": sum(outcomes.values()), "seed": seed, "longest_seconds": 1.0 + seed, "most_bytes": 2**30,
        "kinds": {"settings": outcomes}, "failures": ["traceback: here"] * outcomes.get("traceback", 0),
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(robustness, "FILE", tmp_path / "kept.jsonl")


def keep(name, document):
    robustness.keep(name, (), document, load=1.0, when="2026-11-25", at="c0ffee00")


def test_the_page_is_made_of_the_kept_runs():
    assert robustness.PAGE.read_text(encoding="utf-8") == robustness.page(), "run `python -m benchmarks.robustness`"


def test_parts_of_the_fuzz_run_are_added_up_and_their_failures_listed(kept):
    keep("fuzz", fuzz(1, refused=5, forecast=2))
    keep("fuzz", fuzz(2, refused=1, traceback=1))
    text = robustness.page()
    assert "## 9 questions" in text
    assert "| **all** | **9** | **6** | **2** | **1** |" in text
    assert "1 kinds of failure:\n- traceback: here" in text
    assert "Longest answer 3.0 s, load 1," in text
    assert "9,991 are missing" in text
    assert "by the clock" not in text


def test_answers_that_only_the_clock_finds_late_are_said(kept):
    keep("fuzz", fuzz(1, refused=5) | {"late": [[75.2, 20.1], [64.0, 31.4]]})
    keep("fuzz", fuzz(2, traceback=1))
    keep("fuzz", fuzz(3, traceback=1))
    text = robustness.page()
    assert "2 more took over 60 s by the clock while others had the machine (up to 75 s), and at most 31 s" in text
    assert "1 kinds of failure:\n- traceback: here (in 2 parts)" in text


def test_a_note_stands_below_its_table(kept):
    keep("fuzz", fuzz(1, refused=5))
    robustness.keep("note", ["fuzz"], {"text": "Asked again."}, load=None, when="2026-11-25", at="c0ffee00")
    assert "Asked again. (2026-11-25)" in robustness.page().split("## Not run")[0]


def test_what_was_not_run_is_named(kept):
    keep("kills", {"kills": 3, "runs": 1, "began_anew": 0, "torn": 2, "faults": 0})
    text = robustness.page()
    assert "| 3 | 1 | 0 | 2 | 0 |" in text
    assert "benchmarks/faults.py" in text.split("Not run")[1]
    assert "benchmarks/kills.py" not in text.split("Not run")[1]


def test_escapes_are_kept_as_counts(kept):
    rows = [{"user": "root", "level": "all", "kind": "file", "got_out": out} for out in (False, True, False)]
    keep("escapes", {"tried": 3, "got_out": 1, "escapes": rows})
    assert robustness.records()[0]["document"]["escapes"] == [["root", "all", "file", 3, 1]]


def test_an_output_without_its_json_line_is_not_kept():
    assert robustness.last_document("a table\nand no more") is None
    assert robustness.last_document(f"a table\n{json.dumps({'method': 1})}\n") == {"method": 1}


def test_a_seed_that_is_asked_again_counts_once(kept):
    keep("fuzz", fuzz(1, traceback=1) | {"failures": ["a traceback"]})
    keep("fuzz", fuzz(2, refused=1))
    keep("fuzz", fuzz(1, refused=1))
    page = robustness.page()
    assert "seeds 1, 2," in page
    assert "0 kinds of failure." in page
