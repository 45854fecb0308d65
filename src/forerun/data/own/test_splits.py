import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.data.own.formats import RowLayout
from forerun.data.own.repairs import Repairs
from forerun.data.own.splits import SplitKey, keyed_rows, split_rows
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

DATA = DataSettings(source="x")
LAYOUT = RowLayout("labelled", {"text": "text", "label": "label"})
texts = st.text("abcd", min_size=1, max_size=4)
keys = st.builds(SplitKey, text=texts, group=st.sampled_from("ABCDEFGH"), order=st.integers(0, 40).map(float), stated=st.sampled_from([None, None, "train", "val", "test"]))  # fmt: skip
VARIANTS = [
    DATA,
    DataSettings(source="x", group_by="g"),
    DataSettings(source="x", order_by="o"),
    DataSettings(source="x", test=0.3, validation=0.0),
]


def split_or_none(rows, data):
    """The split, or None where too few rows are there for one."""
    if data.group_by is None:
        rows = [SplitKey(key.text, None, key.order if data.order_by else None, key.stated) for key in rows]
    try:
        return rows, split_rows(rows, data)
    except BadData:
        return rows, None


@settings(max_examples=150, deadline=None)
@given(st.lists(keys, min_size=30, max_size=80), st.sampled_from(VARIANTS))
def test_no_text_is_trained_on_and_judged_by_and_stated_parts_stay(rows, data):
    rows, split = split_or_none(rows, data)
    if split is None:
        return
    parts = {part: {rows[place].text for place in split.places(part)} for part in ("train", "val", "test")}
    assert not parts["train"] & (parts["val"] | parts["test"])
    assert not parts["val"] & parts["test"]
    for place, key in enumerate(rows):
        if key.stated in ("val", "test"):
            assert split.part(place) in (key.stated, None)
    assert sum(split.counts.values()) + split.left_training + split.left_validation == len(rows)
    assert all(split.part(place) == "test" for place, key in enumerate(rows) if key.stated == "test")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, st.sampled_from("ABCDEFGHIJKL")), min_size=30, max_size=80))
def test_groups_are_never_torn(pairs):
    rows, split = split_or_none([SplitKey(text, group) for text, group in pairs], VARIANTS[1])
    if split is not None:
        for group in {key.group for key in rows}:
            assert len({split.part(n) for n, key in enumerate(rows) if key.group == group} - {None}) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, st.integers(0, 60)), min_size=30, max_size=80))
def test_what_is_tested_on_comes_last(pairs):
    rows, split = split_or_none([SplitKey(text, None, float(order)) for text, order in pairs], VARIANTS[2])
    if split is not None:
        last = {part: [rows[n].order for n in split.places(part)] for part in ("train", "val", "test")}
        assert max(last["train"]) < min(last["val"] or last["test"])
        assert not last["val"] or max(last["val"]) < min(last["test"])


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=30, max_size=60, unique=True), st.randoms())
def test_neither_order_nor_more_rows_move_a_row(names, random):
    parts = {}
    split = split_rows([SplitKey(name) for name in names], DATA)
    parts = {name: split.part(n) for n, name in enumerate(names)}
    shuffled = random.sample(names, len(names))
    again = split_rows([SplitKey(name) for name in shuffled], DATA)
    assert {name: again.part(n) for n, name in enumerate(shuffled)} == parts
    more = [*names, *(f"more {n}" for n in range(2000))]
    larger = split_rows([SplitKey(name) for name in more], DATA)
    if all(list(parts.values()).count(part) > 1 for part in ("val", "test")):  # of few rows one is drawn by its rank
        assert {name: larger.part(n) for n, name in enumerate(names)} == parts


def test_shares_are_about_those_that_are_stated():
    counts = split_rows(
        [SplitKey(f"text {n}") for n in range(20_000)], DataSettings(source="x", validation=0.05, test=0.2)
    ).counts
    assert counts["val"] == pytest.approx(1000, abs=130)  # four standard deviations of a draw
    assert counts["test"] == pytest.approx(4000, abs=230)


def test_duplicates_of_judged_rows_leave_training_and_are_counted():
    rows = [
        SplitKey("a", stated="train"),
        SplitKey("b", stated="train"),
        SplitKey("a", stated="test"),
        SplitKey("b", stated="val"),
        SplitKey("c", stated="train"),
        SplitKey("a", stated="val"),
    ]
    split = split_rows(rows, DATA)
    assert [split.part(n) for n in range(6)] == [None, None, "test", "val", "train", None]
    assert (split.left_training, split.left_validation) == (2, 1)


def test_a_missing_part_is_drawn_from_training_rows():
    rows = [SplitKey(f"{n}", stated="test" if n < 20 else "train") for n in range(400)]
    counts = split_rows(rows, DATA).counts
    assert counts["test"] == 20
    assert 0 < counts["val"] < 80


def test_no_part_is_empty_while_there_are_rows():
    with pytest.raises(BadData, match="the part val must have rows"):
        split_rows([SplitKey("a"), SplitKey("a")], DATA)
    assert min(split_rows([SplitKey(text) for text in "abcd"], DATA).counts.values()) > 0


def write(path, header, *rows):
    path.write_text("\n".join((header, *rows)) + "\n")
    return str(path)


def test_files_of_their_own_are_their_parts(tmp_path):
    data = DataSettings(
        source=write(tmp_path / "a.csv", "text,label", "one,x", "two,y", "three,x"),
        validation=write(tmp_path / "v.csv", "text,label", "four,y"),
        test=write(tmp_path / "t.csv", "text,label", "Two ,y", "five,x"),
    )
    records, split_keys = zip(*keyed_rows(data, LAYOUT, Repairs()), strict=True)
    split = split_rows(split_keys, data)
    assert [record.text for record in records] == ["one", "two", "three", "four", "Two ", "five"]
    assert [split.part(n) for n in range(6)] == ["train", None, "train", "val", "test", "test"]


def test_a_column_of_splits_is_taken_at_its_word(tmp_path):
    path = write(tmp_path / "a.csv", "text,label,split", "one,x,train", "two,y,dev", "three,x,Testing")
    split_keys = [key for _, key in keyed_rows(DataSettings(source=path), LAYOUT, Repairs())]
    assert [key.stated for key in split_keys] == ["train", "val", "test"]
    path = write(tmp_path / "b.csv", "text,label,split", "one,x,pea")
    with pytest.raises(BadData, match=r"b.csv, row 1: the column 'split' .*'pea'.*split: none"):
        list(keyed_rows(DataSettings(source=path), LAYOUT, Repairs()))
    data = DataSettings(source=path, fields={"split": "none"})
    assert [key.stated for _, key in keyed_rows(data, LAYOUT, Repairs())] == [None]


@pytest.mark.parametrize(("value", "message"), [("31.12.2024", "begin with the year"), ("", "needs a value")])
def test_an_order_that_cannot_be_told_is_refused(value, message, tmp_path):
    path = write(tmp_path / "a.csv", "text,label,day", f"one,x,{value}")
    with pytest.raises(BadData, match=f"row 1: data.order_by {message}|row 1: data.order_by needs .*{message}"):
        list(keyed_rows(DataSettings(source=path, order_by="day"), LAYOUT, Repairs()))
