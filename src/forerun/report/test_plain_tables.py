"""Tables of the terminal say the same as Markdown and as CSV."""

import csv
import io

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forerun.report.fitted_table import FittedTable
from forerun.report.plain_tables import PlainTable, as_csv, as_markdown, lines_of, plain_parts
from forerun.report.tables import ResultTable


def view():
    table = Table("[bold]name[/bold]", title="Cards", caption="per hour")
    table.add_column(Text("cost"))
    table.add_row('a|b, "c"', "[red]1.50[/red]")
    table.add_row(Text("[extra] <i>"), "-")
    result = ResultTable(title="Scores", note="of 3", columns=["what", "score"], rows=[["f1", 0.5], ["ece", None]])
    return Group(Text("Fits."), table, Panel("inside"), FittedTable(result))


def test_tables_and_lines_come_in_order():
    parts = plain_parts(view())
    assert parts[0] == "Fits."
    assert parts[1] == PlainTable(
        title="Cards", columns=["name", "cost"], rows=[['a|b, "c"', "1.50"], ["[extra] <i>", "-"]]
    )
    assert parts[2] == "per hour"
    assert "inside" in parts[3]
    assert parts[4].rows == [["f1", "0.500"], ["ece", "–"]]
    assert parts[5] == "of 3"


def test_markdown_keeps_what_is_special():
    text = as_markdown(plain_parts(view()))
    assert '**Cards**\n\n| name | cost |\n| --- | --- |\n| a\\|b, "c" | 1.50 |\n| \\[extra] \\<i> | - |' in text
    assert text.startswith("Fits.\n\n")


def test_csv_is_read_back():
    text = as_csv(plain_parts(view()))
    first, second = text.split("\n\n")
    assert list(csv.reader(io.StringIO(first)))[1:] == [['a|b, "c"', "1.50"], ["[extra] <i>", "-"]]
    assert list(csv.reader(io.StringIO(second))) == [["what", "score"], ["f1", "0.500"], ["ece", "–"]]
    assert lines_of(plain_parts(view()))[0] == "Fits."
