"""A table keeps every figure on terminals of every width."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forerun.report.fitted_table import FittedTable, fit_columns, required_width
from forerun.report.tables import ResultTable

WORDS = st.lists(st.text("abcdefg0123456789.", min_size=1, max_size=12), min_size=1, max_size=3).map(" ".join)
TABLES = st.integers(1, 14).flatmap(
    lambda wide: st.tuples(
        st.lists(WORDS, min_size=wide, max_size=wide),
        st.lists(st.lists(WORDS, min_size=wide, max_size=wide), max_size=12),
    )
)


def render(columns, rows, width):
    out = io.StringIO()
    table = ResultTable(title="T", note="n", columns=list(columns), rows=[list(row) for row in rows])
    Console(file=out, width=width).print(FittedTable(table))
    return out.getvalue()


@given(TABLES, st.integers(60, 200))
def test_every_heading_and_every_cell_is_there_whole(table, width):
    columns, rows = table
    text = render(columns, rows, width)
    assert "…" not in text
    words = re.findall(r"[a-g0-9.]+", text)
    for text in (*columns, *(cell for row in rows for cell in row)):
        assert set(text.split()) <= set(words)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_a_table_that_fits_is_left_as_it_is():
    columns = [["variant", "r8", "r16"], ["pass@1", "0.305", "0.375"]]
    assert fit_columns(columns, 80) == [columns]
    assert required_width(columns) == 2 + 7 + 2 + 6


def test_few_long_rows_are_turned_and_many_are_shown_in_groups():
    wide = [[f"a long heading {n}" if n else "run", *("0.123" for _ in range(3))] for n in range(20)]
    (turned,) = fit_columns(wide, 80)
    assert [column[0] for column in turned] == ["run", "0.123", "0.123", "0.123"]
    wide = [[f"heading{n}", *("0.123" for _ in range(30))] for n in range(20)]
    groups = fit_columns(wide, 80)
    assert len(groups) > 1
    assert all(group[0] == wide[0] and required_width(group) <= 80 for group in groups)
    assert [column for group in groups for column in group[1:]] == wide[1:]


def test_sentences_in_the_first_column_are_wrapped_and_stand_upright():
    sentence = "The battery of this phone lasts " + "for a long and happy day " * 5
    rows = [[sentence, "neg", "pos", "0.998"], ["x" * 150, "pos", "neg", "0.761"]]
    for width in (80, 140):
        lines = render(["text", "true", "answer", "probability"], rows, width).splitlines()
        assert lines[2].split() == ["text", "true", "answer", "probability"]
        assert len(lines) < 15
        assert max(map(len, lines)) <= width
        assert "".join(lines).count("x") == 151  # with that of the heading
