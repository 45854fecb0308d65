import pytest

from forerun.data.own.columns import columns_of
from forerun.data.own.flag_columns import with_flags
from forerun.data.own.formats import layout_of, recognise
from forerun.data.own.repairs import Repairs
from forerun.errors import BadData
from forerun.settings.schema import DataSettings

ROWS = [
    {"comment_text": f"some words on {n}", "rude": str(n % 2), "long": "1" if n % 3 == 0 else "0"} for n in range(40)
]
LABEL = "rude + long"


def test_columns_of_yes_and_no_are_several_labels():
    assert columns_of(ROWS)["rude"].are_flags
    assert not columns_of(ROWS)["comment_text"].are_flags
    best = recognise(ROWS)[0]
    assert (best.fields["label"], best.is_certain) == (LABEL, False)
    rows = list(with_flags(ROWS, LABEL, "a.csv"))
    assert [row[LABEL] for row in rows[:4]] == [["long"], ["rude"], [], ["rude", "long"]]
    data = DataSettings(source="a.csv", format="labelled", fields={"text": "comment_text", "label": LABEL})
    assert layout_of(data, rows).labels == "several"


def test_an_empty_cell_leaves_the_row_without_labels_or_says_no():
    rows = [{"rude": "1", "long": ""}, {"rude": "nan", "long": "0"}]
    assert [row[LABEL] for row in with_flags(rows, LABEL, "a.csv", Repairs(("missing-labels",)))] == [None, None]
    repairs = Repairs(("none-apply",))
    assert [row[LABEL] for row in with_flags(rows, LABEL, "a.csv", repairs)] == [["rude"], []]
    assert repairs.lines() == ["none-apply: 2 (a.csv, row 1, a.csv, row 2)"]
    assert columns_of([*ROWS, rows[0]])["long"].are_flags


def test_rows_without_labels_stay_as_they_are():
    assert list(with_flags([{"comment_text": "a"}], LABEL, "a.csv")) == [{"comment_text": "a"}]
    assert list(with_flags(ROWS, "rude", "a.csv")) == ROWS


@pytest.mark.parametrize(("row", "message"), [({"rude": "2", "long": "0"}, "found '2'"), ({"long": "0"}, "no such")])
def test_what_says_neither_is_an_error(row, message):
    with pytest.raises(BadData, match=f"a.csv, row 1: the column 'rude' .*{message}"):
        list(with_flags([row], LABEL, "a.csv"))
