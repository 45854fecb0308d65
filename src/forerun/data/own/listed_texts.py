"""Several texts that belong to one, or do not, as lists in one row: `{"query": "…", "pos": ["…"], "neg": ["…", "…"]}`.

Each becomes a row of its own, as many as the longer list has; the shorter one begins again.
"""

from collections.abc import Iterable, Iterator, Mapping

from forerun.data.own.columns import Row, value_at

PARTS = ("positive", "negative")


def each_text(rows: Iterable[Row], fields: Mapping[str, str]) -> Iterator[Row]:
    """Rows with one text in the columns of `positive` and `negative`; rows as they are where those hold no lists."""
    columns = [fields[part] for part in PARTS if part in fields]
    for row in rows:
        lists = {name: value for name in columns if isinstance(value := value_at(row, name), list) and value}
        for number in range(max(map(len, lists.values()), default=1)):
            yield {**row, **{name: value[number % len(value)] for name, value in lists.items()}} if lists else row
