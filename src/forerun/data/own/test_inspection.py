import json
import random

import pytest

from forerun.data.own.findings import findings_of
from forerun.data.own.formats import RowLayout, layout_of
from forerun.data.own.inspection import estimated_tokens, inspect
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import rows_of
from forerun.data.own.splits import keyed_rows, split_rows
from forerun.settings.schema import DataSettings

WORDS = [f"word{n}" for n in range(400)]


def text(seed, length=12):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def look(tmp_path, rows, **data):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stated = DataSettings(source=str(tmp_path / "a.jsonl"), **data)
    sample = list(rows_of(stated))
    return inspect(stated, layout_of(stated, sample), sample)


def kinds(inspection):
    return {finding.kind for finding in inspection.findings}


CLEAN = [{"text": text(n), "label": "ab"[n % 2]} for n in range(400)]


def test_clean_data_have_no_findings(tmp_path):
    inspection = look(tmp_path, CLEAN)
    assert kinds(inspection) == set()
    assert (inspection.rows, inspection.labels, inspection.label_count) == (400, {"a": 200, "b": 200}, 2)
    assert sum(inspection.parts.values()) == 400
    assert inspection.words.at == {5: 12, 25: 12, 50: 12, 75: 12, 95: 12, 99: 12, 100: 12}
    assert inspection.truncated(inspection.tokens.at[100]) == 0
    assert inspection.truncated(1) > 0.9


def test_rows_that_will_be_cut_are_counted(tmp_path):
    rows = [{"text": "a" * (20_000 if n % 3 else 70) + f"{n:03}", "label": n % 2} for n in range(300)]
    inspection = look(tmp_path, rows)
    assert inspection.tokens.at[25] < 20
    assert [inspection.truncated(length) for length in (18, 19, 512, 5000, 5001)] == [1, 2 / 3, 2 / 3, 2 / 3, 0]
    at = inspection.tokens.at
    assert inspection.truncated(at[95]) <= 0.05
    assert "rows" not in inspection.model_dump(mode="json")["tokens"]


def with_stated(rows, part):
    return [{**row, "split": part} for row in rows]


FAULTS = {
    "one class": [{"text": text(n), "label": "a"} for n in range(400)],
    "unseen labels": with_stated(CLEAN, "train") + with_stated([{"text": text(-1), "label": "c"}], "test"),
    "unbalanced": [{"text": text(n), "label": "a" if n % 25 else "b"} for n in range(1000)],
    "rare labels": [*CLEAN, {"text": text(-1), "label": "c"}],
    "labels alike": [{**row, "label": "A " if n % 9 == 0 else row["label"]} for n, row in enumerate(CLEAN)],
    "contradictions": [*CLEAN, {**CLEAN[0], "label": "b"}],
    "gives the label away": [{"text": text(n) + (" package" if n % 2 else ""), "label": n % 2} for n in range(400)],
    "column tells the label": [{**row, "name": "human" if row["label"] == "a" else "robot"} for row in CLEAN],
    "leak": with_stated(CLEAN, "train") + with_stated(CLEAN[:60], "test"),
    "near leak": with_stated([{"text": text(n, 60), "label": n % 2} for n in range(300)], "train")
    + with_stated([{"text": text(n, 60) + " end", "label": n % 2} for n in range(9)], "test"),
    "shared groups": [{**row, "task": f"t{n % 41}"} for n, row in enumerate(CLEAN)],
    "secrets": [*CLEAN, {"text": "my key is AKIA" + "A" * 16, "label": "a"}],
    "e-mail addresses": [*CLEAN, {"text": "write to jo.doe@example.org now", "label": "a"}],
    "duplicates": [*CLEAN, CLEAN[0]],
    "html": [{**row, "text": f"<p>{row['text']}</p>"} for row in CLEAN],
    "dated": [{**row, "at": f"2025-{1 + n % 12:02}-{1 + n % 28:02} 10:00"} for n, row in enumerate(CLEAN)],
    "few rows": CLEAN[:100],
}  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_each_defect_is_named(kind, tmp_path):
    inspection = look(tmp_path, FAULTS[kind])
    assert kind in kinds(inspection)
    assert kind not in kinds(look(tmp_path, CLEAN))


def test_the_parts_are_those_of_a_run(tmp_path):
    found = look(tmp_path, CLEAN, validation=0.2, test=0.2)
    data = DataSettings(source=str(tmp_path / "a.jsonl"), validation=0.2, test=0.2)
    layout = layout_of(data, CLEAN)
    split = split_rows((key for _, key in keyed_rows(data, layout, Repairs())), data)
    assert (found.parts, found.split_hash) == (split.counts, split.hash)


def test_secrets_are_counted_and_never_repeated(tmp_path):
    secret = "ghp_" + "q7" * 18
    inspection = look(tmp_path, [*CLEAN, {"text": f"token {secret}", "label": "a"}])
    assert inspection.secrets == 1
    assert secret not in inspection.model_dump_json()


def test_allowed_repairs_are_counted(tmp_path):
    rows = [*CLEAN, {"text": "", "label": "a"}, {"text": "x y", "label": None}]
    inspection = look(tmp_path, rows, repair=["empty-texts", "missing-labels"], labels="one")
    assert inspection.repairs == {"empty-texts": 1, "missing-labels": 1}
    assert inspection.rows == 400


def test_letters_of_chinese_are_more_tokens_than_those_of_latin():
    assert estimated_tokens("a" * 40) == estimated_tokens("ö" * 40) == 10
    assert estimated_tokens("日本한글" * 10) == 27
    assert estimated_tokens("") == 0


def test_counted_tokens_take_the_place_of_estimates(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CLEAN))
    data, sampled = DataSettings(source=str(tmp_path / "a.jsonl")), []
    inspection = inspect(data, RowLayout("text", {"text": "text"}), CLEAN, sampled)
    assert sorted(row.text for row in sampled) == sorted(row["text"] for row in CLEAN)
    assert not inspection.are_tokens_counted
    assert inspection.labels == {}
    counted = inspection.with_tokens([len(row.text.split()) for row in sampled], are_counted=True)
    assert counted.are_tokens_counted
    assert counted.tokens == counted.words
    assert counted.truncated(counted.tokens.at[100]) == 0


def test_chats_written_as_text_are_told_where_all_is_learned(tmp_path):
    rows = [{"text": f"### Human: {row['text']} ### Assistant: yes"} for row in CLEAN]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(source=str(tmp_path / "a.jsonl"))
    inspection = inspect(data, RowLayout("text", {"text": "text"}), rows)
    assert inspection.turns == inspection.rows
    assert "turns" in kinds(inspection)


def test_findings_are_worst_first(tmp_path):
    inspection = look(tmp_path, [*FAULTS["one class"], FAULTS["e-mail addresses"][-1]])
    findings = findings_of(inspection, inspection.labels)
    assert [finding.weight for finding in findings] == sorted(
        (f.weight for f in findings), key=["stop", "warning", "note"].index
    )
    assert findings[0].kind == "one class"


def test_findings_count_every_label(tmp_path):
    rare = [{"text": text(1000 + n), "label": f"R{n}"} for n in range(60)]
    often = [{"text": text(n), "label": f"L{n % 50}"} for n in range(1000)]
    (finding,) = (f for f in look(tmp_path, often + rare).findings if f.kind == "rare labels")
    assert finding.text == "60 labels have fewer than 10 rows."
    alike = [{"text": text(n), "label": f"{'Ll'[n % 2]}{n % 14 // 2}"} for n in range(200)]
    texts = [f.text for f in look(tmp_path, alike).findings if f.kind == "labels alike"]
    assert (len(texts), texts[-1]) == (6, "2 more pairs of labels differ only in capitals or blanks.")


@pytest.mark.parametrize(("tags", "is_unnamed"), [([3, 0], True), (["B-A", "O"], False)])
def test_tags_that_are_numbers_without_names_are_a_finding(tmp_path, tags, is_unnamed):
    rows = [{"tokens": [f"a{n}", "b"], "ner_tags": tags} for n in range(300)]
    assert ("tags without names" in kinds(look(tmp_path, rows))) == is_unnamed
