from forerun.data.own.formats import recognise
from forerun.data.own.listed_texts import each_text
from forerun.data.own.rows import read_own_rows

ROW = {"id": 1, "query": "Which car?", "pos": ["A red one."], "neg": ["A dog.", "A cat."]}
FIELDS = {"anchor": "query", "positive": "pos", "negative": "neg"}


def test_each_text_of_a_list_is_a_row():
    assert list(each_text([ROW], FIELDS)) == [{**ROW, "pos": "A red one.", "neg": neg} for neg in ROW["neg"]]
    assert list(each_text([ROW], {"text": "query"})) == [ROW]
    assert list(each_text([{**ROW, "neg": []}], FIELDS)) == [{**ROW, "pos": "A red one.", "neg": []}]
    assert list(each_text([{"pos": "a"}], FIELDS)) == [{"pos": "a"}]


def test_lists_are_recognised_and_read(tmp_path):
    best = recognise([ROW] * 3)[0]
    assert (best.format, best.fields, best.is_certain) == ("triplets", FIELDS, True)
    assert recognise([{"query": "Which car?", "pos": ["A red one.", "This."]}] * 3)[0].format == "pairs"
    assert recognise([{"question": "Which car?", "answer": ["A red one."]}] * 3)[0].format == "text"
    path = tmp_path / "a.csv"
    path.write_text("id,query,pos,neg\n1,Which?,\"['a', 'b']\",c\n")
    assert [row["pos"] for row in read_own_rows(str(path), fields=FIELDS)] == ["a", "b"]
