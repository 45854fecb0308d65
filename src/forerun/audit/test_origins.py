"""The five origin documents against the checklist that was made of them by hand: 123 rows, each with its verdict.

The checklist is only here: no claims file says how its claims come out.
"""

import re
from pathlib import Path

import pytest
import yaml

from forerun.api import find_device, forecast_settings
from forerun.audit import check
from forerun.audit.claims import load_claims
from forerun.audit.findings import FAILED, RULES
from forerun.audit.shipped_claims import shipped_documents

CHECKLIST = {
    "ok": """0.2 0.7 0.8 0.16 0.19 0.22 0.24 0.29 0.32 0.33 0.34 1.3 1.8 1.14 1.16 1.24 1.29 2.1 2.2 2.3 2.4 2.5 2.6
        2.10 2.13 2.14 2.15 2.17 3.2 3.7 4.1 4.2 4.3 4.8 4.15 4.17 4.18""",
    "soft": """0.1 0.3 0.12 0.15 0.17 0.21 0.31 1.17 1.20 1.21 1.27 2.11 2.21 2.22 3.9 3.10 3.14 3.17 3.18 4.6 4.7 4.9
        4.12 4.14""",
    "wrong": """0.4 0.5 0.6 0.9 0.10 0.11 0.13 0.18 0.20 0.23 0.25 0.26 0.27 0.28 0.30 1.1 1.4 1.6 1.7 1.9 1.10 1.11
        1.12 1.13 1.15 1.18 1.19 1.22 1.23 1.26 2.7 2.8 2.9 2.12 2.16 2.18 2.19 2.20 3.1 3.3 3.4 3.5 3.6 3.8 3.11 3.12
        3.15 3.16 3.19 3.20 4.4 4.5 4.10 4.11 4.13""",
    "missed": "0.14 1.2 1.5 1.25 1.28",
    "other": "3.13 4.16",
}
ROWS = {row: verdict for verdict, rows in CHECKLIST.items() for row in rows.split()}
ALLOWED = {
    "ok": {"consistent"}, "soft": {"unsupported", "consistent"}, "wrong": {"wrong", "impossible"},
    "missed": {"wrong", "impossible"}, "other": {"wrong", "unsupported"},
}  # fmt: skip
DISAGREEMENTS = {"0.32": "unsupported"}
"""Row → our verdict; argued in the claim's note."""
IMPOSSIBLE = {"0.4", "0.20", "0.27", "0.30", "2.7", "2.8", "2.9", "2.19", "3.11", "3.19"}
"""Beyond a bound of physics or arithmetic: what the checklist calls impossible, and memory that no such card has."""
RIGHT = {
    "0.20": "4.16", "0.23": "298", "0.28": "67.1 %", "1.1": "9.50 h to 11.5 h", "1.6": "1.75 h to 2.62 h", "1.11": "2,400",
    "1.12": "4.8 %", "1.13": "5.23 GB", "1.19": "2.22 GB", "2.16": "2.43 h", "3.1": "123.7M", "3.4": "303.4M",
    "3.6": "583.9M", "4.4": "+44.4 %",
}  # fmt: skip
"""The checklist's right numbers, as the deciding finding prints them."""


SLOW_TO_FORECAST = "1.15"
"""The claim whose forecast takes more than all else; it is wrong by arithmetic too, and asked for in a slow test."""


def forecaster(settings, gpu):
    return forecast_settings(settings, find_device(gpu))


def without_slow(file):
    claims = [
        claim.model_copy(update={"checks": [c for c in claim.checks if c.kind != "fits"]})
        if claim.id == SLOW_TO_FORECAST else claim
        for claim in file.claims
    ]  # fmt: skip
    return file.model_copy(update={"claims": claims})


@pytest.fixture(scope="module")
def reports():
    return {
        name: check.audit(without_slow(load_claims(path)), forecaster) for name, path in shipped_documents().items()
    }


@pytest.fixture(scope="module")
def claims(reports):
    return {claim.id: claim for report in reports.values() for claim in report.claims}


def test_every_row_is_audited_once(claims, reports):
    assert len(ROWS) == 123
    assert set(claims) == set(ROWS)
    assert sum(len(report.claims) for report in reports.values()) == 123


def test_every_wrong_row_is_found_and_no_right_one_accused(claims):
    unlike = {row: claims[row].verdict for row in ROWS if claims[row].verdict not in ALLOWED[ROWS[row]]}
    assert unlike == DISAGREEMENTS
    assert all(claims[row].note for row in unlike), "a disagreement is argued"
    assert not any(claims[row].verdict in FAILED for row in ROWS if ROWS[row] in ("ok", "soft"))


def test_a_soft_row_that_is_consistent_has_a_caveat(claims):
    for row in (row for row, verdict in ROWS.items() if verdict == "soft"):
        assert claims[row].verdict == "unsupported" or any(f.said for f in claims[row].findings), row


def test_impossible_rows(claims):
    assert {row for row, claim in claims.items() if claim.verdict == "impossible"} == IMPOSSIBLE


@pytest.mark.slow
def test_the_second_document_does_not_fit_by_our_forecast_either():
    """Its author went back from micro-batches of 8 to 4, "to prevent OOM"."""
    file = load_claims(next(path for name, path in shipped_documents().items() if name.startswith("1")))
    claims = [claim for claim in file.claims if claim.id == SLOW_TO_FORECAST]
    (claim,) = check.audit(file.model_copy(update={"claims": claims}), forecaster).claims
    assert claim.verdict == "impossible"
    assert claim.worst.kind == "fits"


def test_right_numbers(claims):
    for row, number in RIGHT.items():
        assert number in claims[row].worst.right, (row, claims[row].worst.right)


def test_all_findings_say_what_is_right_by_which_formula_and_whose(claims):
    for claim in claims.values():
        for finding in claim.findings:
            assert finding.rule in RULES
            assert finding.right
            assert finding.formula
            assert finding.source
            assert finding.said or finding.verdict == "consistent"


def test_no_file_says_how_its_claims_come_out():
    for path in shipped_documents().values():
        for claim in yaml.safe_load(path.read_text())["claims"]:
            assert not {"expected", "verdict", "checklist"} & set(claim)


def test_every_rule_is_applied_by_a_check():
    texts = [path.read_text() for path in Path(check.__file__).parent.glob("*.py") if not path.name.startswith("test_")]
    assert {name for text in texts for name in re.findall(r'\bfinding\(\s*"(\w+)"', text)} == set(RULES)


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("0.2", {"claimed": 512}),
        ("0.7", {"claimed": "150M"}),
        ("0.22", {"total": 48000}),
        ("0.24", {"claimed": 37}),
        ("0.29", {"claimed": "850M"}),
        ("0.33", {"memory": "80 GB"}),
        ("2.2", {"total": "314,000"}),
        ("2.4", {"claimed": 47}),
        ("2.14", {"claimed": "< 1 h"}),
        ("2.17", {"claimed": "4-5x"}),
        ("3.2", {"claimed": "200M"}),
        ("4.1", {"capability": 8.0}),
        ("4.2", {"claimed": "1.20x"}),
        ("4.8", {"at_least": 7.0}),
        ("4.17", {"calls": ["scale", "backward", "clip", "unscale", "step"]}),
        ("4.18", {"cuda": "12.1"}),
    ],
)
def test_a_right_claim_made_wrong_is_found(row, changes):
    """So that no row passes because its check cannot fail."""
    content = yaml.safe_load(next(path for name, path in shipped_documents().items() if name[0] == row[0]).read_text())
    (claim,) = (c for c in content["claims"] if c["id"] == row)
    report = check.audit(check.claims_from({**content, "claims": [{**claim, **changes}]}))
    assert report.claims[0].verdict in FAILED


@pytest.mark.parametrize(
    ("row", "changes"),
    [
        ("0.6", {"stated": {"line 41": "~38,000", "line 231": 38018}}),
        ("0.13", {"times": ["~12 min", "~4 min"]}),
        ("0.20", {"claimed": [4.3, 4.2]}),
        ("0.23", {"claimed": 298}),
        ("0.28", {"steps": 100}),
        ("1.1", {"total": "~10-11 h"}),
        ("1.6", {"claimed": "1.75-2.6 h"}),
        ("1.10", {"called": "square-root", "new": 2e-4}),
        ("1.11", {"claimed": 2400}),
        ("1.23", {"tera": {"t4": 65, "a100-40gb": 312}}),
        ("1.26", {"samples": 5000}),
        ("2.16", {"claimed": "~2.4 h"}),
        ("3.1", {"claimed": "124M"}),
        ("3.3", {"claimed": "355M"}),
        ("3.16", {"condition": "(step + 1) % N == 0"}),
        ("4.4", {"after": "0.32 GB", "factor": 1.4}),
        ("4.11", {"parameters": {"learning_rate": "live"}}),
        ("4.13", {"checked": 15}),
    ],
)
def test_a_wrong_claim_put_right_is_not_accused(row, changes):
    content = yaml.safe_load(next(path for name, path in shipped_documents().items() if name[0] == row[0]).read_text())
    (claim,) = (c for c in content["claims"] if c["id"] == row)
    report = check.audit(check.claims_from({**content, "claims": [{**claim, **changes}]}))
    assert report.claims[0].verdict == "consistent", report.claims[0].worst


def test_the_page_quotes_these_results(reports):
    """`docs/audit.md`: rows, and consistent / unsupported / wrong and impossible together, by document."""
    page = (Path(check.__file__).parents[3] / "docs" / "audit.md").read_text()
    for name, report in reports.items():
        (line,) = re.findall(rf"^\| `{name}` \|.*$", page, re.MULTILINE)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        consistent, unsupported, wrong, impossible = map(int, cells[-1].split(" / "))
        counts = report.counts
        assert int(cells[1]) == len(report.claims)
        assert (consistent, unsupported) == (counts["consistent"], counts["unsupported"])
        assert wrong + impossible == counts["wrong"] + counts["impossible"]
        rows = [claim for claim in report.claims if ROWS[claim.id] in ("wrong", "missed")]
        assert cells[2] == f"{sum(claim.verdict in FAILED for claim in rows)} of {len(rows)}"
