import gzip
import json
import os
import tracemalloc
from decimal import Decimal

import pytest

from forerun.data.own.formats import layout_of
from forerun.data.own.repairs import Repairs
from forerun.data.own.rows import read_own_rows, row_meaning, rows_of
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

PARTS = ("train", "test")
ROWS = [{"text": "one, two", "label": "x"}, {"text": 'a "b"\nc; ü', "label": "y"}]


def csv_text(delimiter):
    return f'text{delimiter}label\n"one, two"{delimiter}x\n"a ""b""\nc; ü"{delimiter}y\n'


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
FILES = {
    "a.csv": csv_text(",").encode(),
    "semicolons.csv": csv_text(";").encode(),
    "bars.csv": csv_text("|").encode(),
    "windows.csv": b"\xef\xbb\xbf" + csv_text(",").replace("\n", "\r\n").encode(),
    "excel.csv": csv_text("\t").encode("utf-16"),
    "mark.csv": b"\xef\xbb\xbfsep=;\r\n" + csv_text(";").encode(),
    "a.tsv": csv_text("\t").encode(),
    "a.csv.gz": gzip.compress(csv_text(",").encode()),
    "a.jsonl": ("\n" + LINES + "\n").encode(),
    "lines.json": LINES.encode(),
    "list.json": json.dumps(ROWS, indent=1).encode(),
    "list.json.gz": gzip.compress(b"\xef\xbb\xbf" + json.dumps(ROWS, ensure_ascii=False).encode()),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_table_gives_the_same_rows(name, tmp_path):
    (tmp_path / name).write_bytes(FILES[name])
    rows = [{**row, "text": row["text"].replace("\r\n", "\n")} for row in read_own_rows(str(tmp_path / name))]
    assert rows == ROWS


HEADLESS = "".join(f"some text {n}\t{'pos' if n % 2 else 'neg'}\n" for n in range(20))


def test_a_first_line_that_seems_a_row_is_decided_on(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(HEADLESS)
    with pytest.raises(BadData, match="found 'neg', which is also the value of 9 of the next 19 rows .*header: none"):
        list(read_own_rows(str(path)))
    rows = list(read_own_rows(str(path), fields={"header": "none"}))
    assert rows[0] == {"column_1": "some text 0", "column_2": "neg"}
    assert len(rows) == 20
    assert len(list(read_own_rows(str(path), fields={"header": "first"}))) == 19


def test_quotes_of_a_file_of_tabs_may_be_letters(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('text\tlabel\n"Yes" , he said\tx\n" never closed\ty\n"all of it"\tx\n')
    assert [row["text"] for row in read_own_rows(str(path))] == ['"Yes" , he said', '" never closed', '"all of it"']
    path.write_text('text\tlabel\n"a ""b"" c"\tx\n"d"\ty\n')
    assert [row["text"] for row in read_own_rows(str(path))] == ['a "b" c', "d"]


def test_numbered_columns_and_repeated_headers_name_columns(tmp_path):
    (tmp_path / "a.csv").write_text("0,1\n" + "a text,1\nanother,0\n" * 9)
    (tmp_path / "b.csv").write_text("text,label\n" + "a text,x\ntext,label\n" * 9)
    assert next(read_own_rows(str(tmp_path / "a.csv"))) == {"0": "a text", "1": "1"}
    assert len(list(read_own_rows(str(tmp_path / "b.csv"), ["ragged-rows"]))) == 9


def test_a_text_with_annotations_is_a_row(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([["EU rejects", {"entities": [[0, 2, "ORG"]]}]]))
    assert list(read_own_rows(str(tmp_path / "a.json"))) == [{"text": "EU rejects", "entities": [[0, 2, "ORG"]]}]
    (tmp_path / "a.json").write_text(json.dumps([["EU rejects", "x"]]))
    with pytest.raises(BadData, match="row 1: each row is a JSON object; found list"):
        list(read_own_rows(str(tmp_path / "a.json")))


def test_a_table_of_one_column_needs_quotes_around_commas(tmp_path):
    (tmp_path / "a.csv").write_text("text\none\ntwo, three\n")
    with pytest.raises(BadData, match=r"line 3: has 1 field, as the header; found 2\. A text with ',' in it stands in"):
        list(read_own_rows(str(tmp_path / "a.csv")))


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_of_one_object_are_those_of_its_only_list(tmp_path, indent):
    path = tmp_path / "a.json"
    for whole in ({"version": 1, "data": ROWS}, {"count": 2, "results": ROWS, "next": None, "errors": []}):
        path.write_text(json.dumps(whole, indent=indent))
        assert list(read_own_rows(str(path))) == ROWS
    answered = {"id": "q", "question": "Is it?", "answers": [{"text": "red", "answer_start": 6}]}
    article = {"title": "t", "paragraphs": [{"context": "It is red.", "qas": [answered, {"question": "Why?"}]}]}
    path.write_text(json.dumps({"version": "1.1", "data": [article]}, indent=indent))
    first, second = read_own_rows(str(path))
    assert first == {
        "id": "q",
        "title": "t",
        "context": "It is red.",
        "question": "Is it?",
        "answers": {"text": ["red"]},
    }
    assert second["answers"] == {"text": []}


def test_one_object_with_a_table_inside_is_no_row(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"rows": ROWS, "others": ROWS}))
    (tmp_path / "b.json").write_text(json.dumps({"train": [list(row.values()) for row in ROWS]}))
    (tmp_path / "c.json").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}] * 2}))
    for name, inside in (("a", "a list of 2 objects under 'rows'"), ("b", "a list of 2 lists under 'train'")):
        with pytest.raises(BadData, match=inside):
            list(read_own_rows(str(tmp_path / f"{name}.json")))
    (tmp_path / "d.jsonl").write_text(json.dumps({"a": [1, 2], "b": [3, 4]}))
    assert [len(list(read_own_rows(str(tmp_path / name)))) for name in ("c.json", "d.jsonl")] == [1, 1]


def test_parquet_and_arrow_give_the_same_rows_with_named_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["x", "y"])})
    data = datasets.Dataset.from_list(
        [{"text": row["text"], "label": "xy".index(row["label"])} for row in ROWS], features
    )
    data.to_parquet(str(tmp_path / "a.parquet"))
    data.save_to_disk(str(tmp_path / "arrow"))
    datasets.DatasetDict(train=data, test=data.select([1])).save_to_disk(str(tmp_path / "splits"))
    assert list(read_own_rows(str(tmp_path / "a.parquet"))) == ROWS
    assert list(read_own_rows(str(tmp_path / "arrow"))) == ROWS
    assert [row["split"] for row in read_own_rows(str(tmp_path / "splits"))] == ["train", "train", "test"]


def test_bytes_of_parquet_that_are_text_are_read_as_text(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["ä one".encode()], "blob": [b"\xff\xfe"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_own_rows(str(tmp_path / "a.parquet"))) == [{"text": "ä one", "blob": b"\xff\xfe"}]


def test_paragraphs_or_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\n\nthree\n")
    (tmp_path / "b.md").write_text("\none\ntwo\n\n")
    assert [row["text"] for row in read_own_rows(str(tmp_path / "a.txt"))] == ["one\ntwo", "three"]
    assert [row["text"] for row in read_own_rows(str(tmp_path / "b.md"))] == ["one", "two"]
    assert "paragraph" in row_meaning(str(tmp_path / "a.txt"))
    assert "line" in row_meaning(str(tmp_path / "b.md"))


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_pictures_beside_texts_are_left_out_and_said(tmp_path):
    write(tmp_path, a__1_dot_md="one", b__2_dot_md="two", b__plan_dot_png="\0")
    assert [row["text"] for row in read_own_rows(str(tmp_path))] == ["one", "two"]
    assert row_meaning(str(tmp_path)) == "a file, labelled by its folder (2 files; left out: 1, such as b/plan.png)"


def test_folders_are_labels_and_splits(tmp_path):
    write(tmp_path, train__pos__1_dot_txt="good", train__neg__1_dot_txt="bad", test__pos__2_dot_txt="fine", README="x")
    rows = list(read_own_rows(str(tmp_path)))
    assert {(row["text"], row["label"], row["split"]) for row in rows} == {
        ("good", "pos", "train"), ("bad", "neg", "train"), ("fine", "pos", "test"),
    }  # fmt: skip
    assert "labelled by its folder" in row_meaning(str(tmp_path))


def test_files_beside_folders_of_classes_are_left_out_and_said(tmp_path):
    """As aclImdb is unpacked."""
    texts = {f"{part}__{label}__{n}_dot_txt": label for part in PARTS for label in "ab" for n in range(9)}
    write(tmp_path, **texts, train__unsup__1_dot_txt="?", imdb_dot_vocab="the", train__urls_pos_dot_txt="http://x")
    rows = list(read_own_rows(str(tmp_path)))
    assert {(row["label"], row["split"]) for row in rows if row["label"]} == {(a, b) for a in "ab" for b in PARTS}
    assert [row["text"] for row in rows if row["label"] is None] == ["?"]
    left = "left out: 2, such as imdb.vocab, train/urls_pos.txt"
    assert row_meaning(str(tmp_path)) == f"a file, labelled by its folder (37 files; {left})"
    assert layout_of(DataSettings(source=str(tmp_path)), rows).fields == {"text": "text", "label": "label"}


def test_a_folder_of_words_with_tags_is_sentences(tmp_path):
    write(tmp_path, train_dot_txt="Bo B-PER\nruns O\n\nHi O\n", test_dot_txt="Al B-PER\n")
    rows = list(read_own_rows(str(tmp_path)))
    assert [(row["tokens"], row["split"]) for row in rows] == [
        (["Al"], "test"), (["Bo", "runs"], "train"), (["Hi"], "train"),
    ]  # fmt: skip
    assert row_meaning(str(tmp_path)) == "a sentence of words with tags (2 files)"
    write(tmp_path, notes_dot_txt="Some words.")
    assert row_meaning(str(tmp_path)) == "a file (3 files)"


def test_other_folders_are_documents(tmp_path):
    write(tmp_path, a_dot_txt="one\n\ntwo", src__main_dot_py="print(1)")
    assert [(row["file"], row["text"]) for row in read_own_rows(str(tmp_path))] == [
        ("a.txt", "one\n\ntwo"),
        ("src/main.py", "print(1)"),
    ]


def test_tables_of_a_folder_are_one_data_set_with_splits_by_their_names(tmp_path):
    write(tmp_path, train_dot_csv="text,label\na,x\n", test_dot_csv="text,label\nb,y\n")
    assert [row["split"] for row in read_own_rows(str(tmp_path))] == ["test", "train"]
    write(tmp_path, valid_dot_csv="text,stars\na,x\n")
    with pytest.raises(BadData, match=r"text, stars in valid\.csv"):
        list(read_own_rows(str(tmp_path)))


GOOD = "id,text,label\n1,a,x\n2,b,y\n"
FAULTS = {
    "encoding": ("a.csv", GOOD.encode() + b"3,caf\xe9 \x80,x\n", r"line 4: must be UTF-8; found the bytes e9", 3),
    "ragged-rows": ("a.csv", GOOD.encode() + b"3,c\n", r"line 4: has 3 fields, as the header; found 2", 2),
    "ragged-rows by a quote": ("a.csv", GOOD.encode() + b'3,"c"d,x\n', r"line 4: must be CSV", 2),
    "ragged-rows by the header": ("a.csv", GOOD.encode() + b"\xef\xbb\xbf" + GOOD.encode()[:14] + b"\n3,c,x\n", r"line 4: must be a row; found the header again", 3),
    "broken-lines by a repeated field": ("a.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n', r"line 2: .* found the field 'text' twice", 1),
    "broken-lines": ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"line 2: must be a JSON object on one line", 1),
    "broken-lines by a list": ("a.jsonl", b'{"text": "a"}\n[1]\n', r"line 2: .* found list \[1\]", 1),
    "repeated-ids": ("a.csv", GOOD.encode() + b"1,c,x\n", r"row 3: ids in the column 'id' .* found '1' again", 2),
    "repeated-ids out of order": ("a.jsonl", b'{"id": "b"}\n{"id": "a"}\n{"id": "b"}\n', r"row 3: .* found 'b' again", 2),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_bad_row_is_an_error_or_an_allowed_counted_and_listed_repair(case, tmp_path):
    name, content, message, rows_left = FAULTS[case]
    path, kind = tmp_path / name, case.split()[0]
    path.write_bytes(content)
    with pytest.raises(BadData, match=rf"{message}.*data\.repair: \[{kind}\]"):
        list(read_own_rows(str(path)))
    repairs = Repairs([kind])
    assert len(list(read_own_rows(str(path), repairs=repairs))) == rows_left
    assert repairs.counts == {kind: 1}
    assert str(path) in repairs.places[kind][0]


def test_windows_bytes_are_read_as_what_they_are(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"text,label\ncaf\xe9 \x80 \xc3\xbc,x\n")
    assert next(iter(read_own_rows(str(tmp_path / "a.csv"), ["encoding"])))["text"] == "café € ü"


HOPELESS = {
    "not there": ("gone.csv", None, "gone.csv.* cannot be read"),
    "no such ending": ("a.docx", b"x", "which is none of them"),
    "packed otherwise": ("a.jsonl.lz4", b"x", "Unpack it, or pack it as .gz"),
    "a table of another library": ("a.feather", b"x", "Write it as Parquet"),
    "a spreadsheet": ("a.xlsx", b"PK", "which is none of them. Save it from the spreadsheet as CSV"),
    "empty": ("a.csv", b"", "must name the columns"),
    "header only": ("a.csv", b"text,label\n", "at least one row"),
    "one column twice": ("a.csv", b"text,text\na,b\n", "'text' twice"),
    "no header": ("a.csv", b"x" * 300 + b",1\n", "Add a header line"),
    "quote never closed": ("a.csv", b'text,label\n"a,x\nb,y\n', "line 2: a quote that opens a field closes it"),
    "a quote that swallows rows": (
        "a.csv",
        b'text,label\n"a,x\nb,y\n"c"",z\nd,"x"\n',
        "line 2: a quote that opens a field closes it; found none before line",
    ),
    "CR within a line": ("a.csv", b"text,label\ra,x\nb,y\rc,z\n", "found CR alone within the line"),
    "a field twice": (
        "a.json",
        b'[{"text": "a"}, {"text": "b", "text": "c"}]',
        "row 2: names each field once; found the field 'text' twice",
    ),
    "gzip by another name": ("a.jsonl", gzip.compress(b"{}"), "found gzip, which its name hides. Rename it"),
    "a spreadsheet by another name": ("a.csv", b"PK\x03\x04", "found a spreadsheet"),
    "a page": ("a.csv", b"\n<!DOCTYPE html><html>", "found a web page"),
    "a pointer": ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "UTF-32": ("a.csv", "text\n".encode("utf-32"), "found UTF-32"),
    "UTF-16 without its mark": ("a.csv", "text\n".encode("utf-16-le"), "UTF-16 without its mark"),
    "binary": ("a.csv", b"text\n\x00\x01", "zero byte"),
    "torn gzip": ("a.csv.gz", gzip.compress(GOOD.encode() * 900)[:60], "Fetch the file anew"),
    "no gzip": ("a.csv.gz", b"text,label\n", "Fetch the file anew"),
    "broken list": ("a.json", b'[{"text": "a"}, {"text": ]', "row 2: must be one JSON list"),
    "torn list": ("a.json", b'[{"text": "a"}, {"text": "b"}', "after row 2: a comma or the list's end"),
    "object over many lines": ("a.json", b'{\n"data": [\n]}', "one object over many lines"),
    "no parquet": ("a.parquet", b"x" * 100, "cannot be read as Parquet"),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_what_no_repair_is_for_is_an_error_in_one_paragraph(case, tmp_path):
    name, content, message = HOPELESS[case]
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=message) as error:
        list(read_own_rows(str(tmp_path / name), ["encoding", "ragged-rows", "repeated-ids"]))
    assert name in str(error.value)


def test_where_all_rows_are_left_out_the_first_rule_is_said(tmp_path):
    (tmp_path / "a.jsonl").write_text("{'text': 'a'}\n{'text': 'b'}\n")
    with pytest.raises(BadData, match=r"2 left out, the first: .*line 1: must be a JSON object .* double quotes"):
        list(read_own_rows(str(tmp_path / "a.jsonl"), ["broken-lines"]))


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(BadData, match="found a pipe or a device"):
        list(read_own_rows(str(tmp_path / "a.csv")))


def test_links_of_a_folder_are_never_passed_over_in_silence(tmp_path):
    write(tmp_path, a_dot_txt="one", b_dot_txt="two")
    (tmp_path / "self").symlink_to(tmp_path)
    assert "left out: 1, such as self" in row_meaning(str(tmp_path))
    (tmp_path / "c.txt").symlink_to("gone.txt")
    with pytest.raises(BadData, match="is a link to what is not there"):
        list(read_own_rows(str(tmp_path)))


def test_a_folder_of_pictures_alone_is_no_text(tmp_path):
    write(tmp_path, a_dot_png="\0", b_dot_jpg="\0")
    with pytest.raises(BadData, match="2 files such as a.png: pictures"):
        list(read_own_rows(str(tmp_path)))


def test_exact_decimals_of_parquet_are_numbers(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"label": [Decimal(2), None]}), tmp_path / "a.parquet")
    assert list(read_own_rows(str(tmp_path / "a.parquet"))) == [{"label": 2.0}, {"label": None}]


def test_ten_megabytes_in_one_line_are_read_and_more_than_the_limit_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\n{'word ' * 2_000_000},x\n")
    assert len(next(iter(read_own_rows(str(path))))["text"]) == 10_000_000
    monkeypatch.setattr("forerun.data.own.text_lines.LONGEST_LINE", 2**20)
    with pytest.raises(BadData, match="line 2: lines of at most 1 MiB"):
        list(read_own_rows(str(path)))


def test_ids_that_name_no_row_can_be_said_to(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    data = DataSettings(source=str(tmp_path / "a.jsonl"), fields={"id": "none"})
    assert len(list(rows_of(data))) == 2


def test_ids_may_come_again_in_another_split(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 0, "split": "train"}\n{"id": 0, "split": "test"}\n')
    assert len(list(read_own_rows(str(tmp_path / "a.jsonl")))) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.txt"])
def test_memory_does_not_grow_with_the_file(name, tmp_path):
    text = "word " * 200
    with (tmp_path / name).open("w") as file:
        file.write({"a.csv": "text\n", "a.json": "[{}"}.get(name, ""))
        for _ in range(20_000):
            file.write(
                {"a.csv": f"{text}\n", "a.txt": f"{text}\n\n", "a.jsonl": f'{{"text": "{text}"}}\n'}.get(
                    name, f',{{"text": "{text}"}}'
                )
            )
        file.write("]" if name == "a.json" else "")
    tracemalloc.start()
    count = sum(1 for _ in read_own_rows(str(tmp_path / name)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count in (20_000, 20_001)
    assert peak < 6 * 2**20  # the file has 20 MB


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_lines_that_end_in_cr_alone_are_refused_with_a_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"text,label\rx,y\r" if name == "a.csv" else b'{"text": "x"}\r{"text": "y"}\r')
    with pytest.raises(BadData, match="found CR alone"):
        list(read_own_rows(str(tmp_path / name)))


def test_lines_of_comments_before_a_table_are_left_out_and_counted(tmp_path):
    comments = "# exported by a tool\n# licence: CC-BY\n"
    for name, delimiter in (("a.tsv", "\t"), ("a.csv", ","), ("b.csv", ";")):
        path = tmp_path / name
        path.write_text(comments + csv_text(delimiter), encoding="utf-8")
        assert list(read_own_rows(str(path))) == ROWS, name
        assert row_meaning(str(path)) == "a row of the table (after 2 lines of comments)"
    path.write_text('#text;#label\n"#1 is\n good";yes\n#2 is bad;no\nboth;no\n')
    assert [row["#text"] for row in read_own_rows(str(path))] == ["#1 is\n good", "#2 is bad", "both"]
    path.write_text("# x\na;b\n1;2;3\n")
    with pytest.raises(BadData, match="line 3: has 2 fields, as the header; found 3"):
        list(read_own_rows(str(path)))


def test_a_first_line_that_is_a_row_is_counted_once(tmp_path):
    (tmp_path / "a.csv").write_bytes("é one,a\né two,b\n".encode("latin-1"))
    repairs = Repairs(("encoding",))
    rows = list(read_own_rows(str(tmp_path / "a.csv"), repairs=repairs, fields={"header": "none"}))
    assert [row["column_1"] for row in rows] == ["é one", "é two"]
    assert repairs.counts["encoding"] == 2
