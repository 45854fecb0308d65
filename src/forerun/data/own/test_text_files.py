import gzip
from pathlib import Path

import pytest

from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows, row_meaning
from forerun.data.own.text_files import PLAIN, is_text_file, text_file_kind
from forerun.errors import BadData
from forerun.runs.data_questions import header_of

FASTTEXT = "__label__good A good  film.\n__label__bad __label__long A film, too long.\n"
TABS = "".join(f"{label}\tSee you there {n}.\n" for n, label in enumerate(["ham", "spam", "ham", "ham"]))


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


def rows(source, **options):
    return [dict(row) for row in read_own_rows(source, **options)]


def test_labels_before_a_line_are_those_of_fasttext(write):
    path = write("a.txt", FASTTEXT)
    assert rows(path) == [
        {"label": "good", "text": "A good  film."}, {"label": "bad|long", "text": "A film, too long."},
    ]  # fmt: skip
    assert row_meaning(path) == "a line with labels"
    assert rows(write("b.txt", f"{FASTTEXT}no label here\n"))[-1] == {"text": "no label here"}, "no longer that format"


def test_a_later_line_without_a_label_is_an_error_or_left_out(write):
    path = write("a.txt", FASTTEXT * 600 + "no label here\n")
    with pytest.raises(BadData, match=r"line 1201: begins with __label__ .*found 'no label here'"):
        rows(path)
    repairs = Repairs(("ragged-rows",))
    assert len(rows(path, repairs=repairs)) == 1200
    assert repairs.counts["ragged-rows"] == 1


def test_as_many_tabs_in_each_line_are_a_table(write):
    path = write("a.txt", f"label\ttext\n{TABS}")
    assert rows(path)[1] == {"label": "spam", "text": "See you there 1."}
    assert row_meaning(path) == "a row of the table"
    assert rows(write("sms", TABS), fields={"header": "none"})[0] == {
        "column_1": "ham",
        "column_2": "See you there 0.",
    }
    assert rows(path, fields={"header": PLAIN})[1] == {"text": "ham\tSee you there 0."}
    assert rows(write("c.txt", f"label\ttext\n{TABS}".encode("utf-16")))[1]["label"] == "spam", "as Excel writes it"


@pytest.mark.parametrize("text", ["\tan item\n\tanother\n", "a\tb\nc d\n", "a\tb\n\nc\td\n", "one line\n", ""])
def test_other_lines_are_text(write, text):
    path = Path(write("a.txt", text))
    assert is_text_file(path)
    assert text_file_kind(path) in ("lines", "paragraphs")


def test_a_file_without_an_ending_and_a_log_are_text(write):
    for name in ("app.log", "README"):
        assert rows(write(name, "one\ntwo\n")) == [{"text": "one"}, {"text": "two"}]
    assert rows(write("README.gz", gzip.compress(b"one\n"))) == [{"text": "one"}]
    with pytest.raises(BadData, match="zero byte"):
        rows(write("binary", b"a\0b"))


@pytest.mark.parametrize(("name", "text"), [("rows", '{"text": "a"}\n'), ("rows.dat", "a\n")])
def test_a_file_of_another_kind_is_to_be_renamed(write, name, text):
    with pytest.raises(BadData, match="Rename it after what it holds"):
        rows(write(name, text))


def test_words_with_tags_and_blank_lines_are_sentences(write):
    path = write("train.txt", "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n")
    assert [row["tokens"] for row in rows(path)] == [["EU", "rejects"], ["Peter"]]
    assert row_meaning(path) == "a sentence of words with tags"
    assert len(list(read_own_rows(path, fields={"header": "plain"}))) == 3
    _, (question,) = header_of(path)
    assert question.others == ("workload: causal-lm, format: text, fields: {header: plain, text: text}",)


@pytest.mark.parametrize("mark", [";", "|"])
def test_lines_that_end_in_a_label_are_a_table(write, mark):
    text = "".join(f"i feel so {n}{',' * (n % 3 > 1)} and more{mark}{'joy' if n % 2 else 'fear'}\n" for n in range(30))
    path = write("train.txt", text)
    assert rows(path, fields={"header": "none"})[1] == {"column_1": "i feel so 1 and more", "column_2": "joy"}
    fields, (lines, first_line) = header_of(path)
    assert fields == {"header": "none"}
    assert lines.text.startswith("all lines have as many fields")
    assert "does the first line name the columns" in first_line.text
    assert len(rows(path, fields={"header": PLAIN})) == 30
    path = write("other.txt", "".join(f"i feel {n}{mark} and more of it, {n * n}\n" for n in range(30)))
    assert rows(path)[0] == {"text": f"i feel 0{mark} and more of it, 0"}
