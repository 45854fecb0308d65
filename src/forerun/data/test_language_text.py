import gzip
import json
import sys

import pytest

from forerun.data.language_text import _articles, open_text
from forerun.errors import BadData, InvalidSettings, MissingExtra


def test_the_shipped_addresses():
    text = open_text(None)
    assert {split: len(documents) for split, documents in text.documents.items()} == {"train": 53, "val": 2, "test": 9}
    assert text.words("train") == 258_701
    assert text.bytes("test") == 293_036


def test_a_text_file_is_cut_by_documents_in_order(tmp_path):
    path = tmp_path / "notes.txt.gz"
    path.write_bytes(gzip.compress("\n\n".join(f"paragraph {n}" for n in range(40)).encode()))
    documents = open_text(str(path)).documents
    assert [len(documents[split]) for split in ("train", "val", "test")] == [36, 2, 2]
    assert documents["test"] == ["paragraph 38", "paragraph 39"]


def test_json_lines_keep_their_splits(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"t{n}", "split": split} for n, split in enumerate(["train", "test", "val", "train"])]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert open_text(str(path)).documents == {"train": ["t0", "t3"], "val": ["t2"], "test": ["t1"]}


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("a.txt", b"\xff\xfe", "UTF-8"),
        ("a.jsonl", b"{", "JSON"),
        ("a.jsonl", b'{"txt": 1}', "text"),
        ("a.txt", b"one", "20"),
    ],
)
def test_broken_files_are_refused(tmp_path, name, content, word):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=word):
        open_text(str(tmp_path / name))


def test_a_source_that_is_nothing_is_refused():
    with pytest.raises(InvalidSettings, match="wikitext-2-raw-v1"):
        open_text("nowhere.txt")


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="hub"):
        open_text("Salesforce/wikitext:wikitext-2-raw-v1")


def test_rows_of_wikitext_become_articles():
    lines = ["", " = One = \n", "", " = = Part = = \n", " text \n", " = Two = \n", " more \n"]
    assert _articles(lines) == ["= One = \n = = Part = = \n text", "= Two = \n more"]


WIKITEXT = " \n = One = \n \n words of it \n \n = = Part = = \n \n more \n \n = Two = \n \n rest \n "


def test_held_out_files_are_read_whole_and_training_keeps_what_they_stand_for(tmp_path):
    (tmp_path / "notes.txt").write_text("\n\n".join(f"paragraph {n}" for n in range(40)))
    (tmp_path / "wiki.test.txt").write_text(WIKITEXT)
    source, test = str(tmp_path / "notes.txt"), str(tmp_path / "wiki.test.txt")
    text = open_text(source, test=test)
    assert [len(text.documents[split]) for split in ("train", "val", "test")] == [36, 4, 2]
    assert text.documents["test"][0].startswith("= One = \n \n words of it")
    assert text.name == "notes.txt, test wiki.test.txt"
    both = open_text(source, validation=test, test=test)
    assert [len(both.documents[split]) for split in ("train", "val", "test")] == [40, 2, 2]
    assert len(open_text(None, test=test).documents["train"]) == 53  # shipped rows have splits


def test_a_held_out_file_that_is_missing_or_empty_names_its_setting(tmp_path):
    with pytest.raises(InvalidSettings, match="data.test.*not there"):
        open_text(None, test=str(tmp_path / "none.txt"))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(BadData, match="data.validation.*no text"):
        open_text(None, validation=str(tmp_path / "empty.txt"))
