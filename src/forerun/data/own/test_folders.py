import pytest

from forerun.data.own.formats import recognise
from forerun.data.own.rows import plan_of, read_own_rows, row_meaning
from forerun.errors import BadData
from forerun.runs.data_questions import other_meanings

TRAIN = "id,text,target\n" + "".join(f"{n},some words about thing {n},{n % 2}\n" for n in range(40))


@pytest.fixture
def competition(tmp_path):
    (tmp_path / "train.csv").write_text(TRAIN)
    (tmp_path / "test.csv").write_text("id,text\n90,other words\n")
    (tmp_path / "sample_submission.csv").write_text("id,target\n90,0\n")
    return tmp_path


def test_tables_that_lack_columns_of_the_training_table_are_left_out_and_asked_about(competition):
    rows = list(read_own_rows(str(competition)))
    assert len(rows) == 40
    assert {row["split"] for row in rows} == {"train"}
    assert row_meaning(str(competition)).endswith("(1 files; left out: 2, such as sample_submission.csv, test.csv)")
    question, *_ = other_meanings(str(competition), recognise(rows)[0], rows)
    assert question.setting == "data.source"
    assert question.text.startswith("2 tables (sample_submission.csv, test.csv) lack columns that train.csv has.")
    assert question.default == "they are; forerun predict answers their rows"


def test_tables_with_the_same_columns_are_all_read(competition):
    (competition / "test.csv").write_text("target,text,id\n1,other words,90\n")
    assert plan_of(competition).left_out == (competition / "sample_submission.csv",)
    assert [row["split"] for row in read_own_rows(str(competition))].count("test") == 1


def test_a_table_with_columns_of_its_own_is_an_error(competition):
    (competition / "test.csv").write_text("id,text,place\n90,other words,x\n")
    with pytest.raises(BadData, match="tables of one folder have the same columns; found id, text, place in test.csv"):
        list(read_own_rows(str(competition)))


def test_without_a_training_table_none_is_left_out(competition):
    (competition / "train.csv").rename(competition / "all.csv")
    with pytest.raises(BadData, match="tables of one folder have the same columns"):
        list(read_own_rows(str(competition)))


def test_compiled_files_beside_code_are_left_out_and_named(tmp_path):
    for name in ("pkg/a.py", "pkg/sub/b.py", "web/c.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"the code of {name}\n")
    (tmp_path / "pkg" / "__pycache__").mkdir()
    (tmp_path / "pkg" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"\xcb\r\r\n\0")
    rows = list(read_own_rows(str(tmp_path)))
    assert [row["file"] for row in rows] == ["pkg/a.py", "pkg/sub/b.py", "web/c.js"]
    assert row_meaning(str(tmp_path)) == "a file (3 files; left out: 1, such as pkg/__pycache__/a.cpython-311.pyc)"
