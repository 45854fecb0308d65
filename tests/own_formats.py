"""The sets of `own_sets.py` in the other formats of rows and of files that own data may have: `write_format`."""

import csv
import gzip
import json

from own_sets import write_set


def conversation(row):
    """ShareGPT's names of who speaks."""
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    return {"conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in row["messages"]]}


def alpaca(row):
    """The last question and its answer, those before as history."""
    _, *turns = (turn["content"] for turn in row["messages"])
    return {"instruction": turns[2], "input": "", "output": turns[3], "history": [turns[:2]]}


def prompt(row):
    """A prompt and its completion, as texts."""
    return {"prompt": row["messages"][1]["content"], "completion": row["messages"][2]["content"]}


def lines(rows, to):
    """JSON lines."""
    to.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def gzipped(rows, to):
    """JSON lines, packed."""
    to.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode()))


def json_list(rows, to):
    """One list of objects."""
    to.write_text(json.dumps(rows))


def tsv(rows, to):
    """Columns with tabs between them; lists as JSON in a cell."""
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t")
        writer.writeheader()
        writer.writerows({name: json.dumps(value) for name, value in row.items()} for row in rows)


def parquet(rows, to):
    """A table of Arrow's Parquet."""
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.Table.from_pylist(rows), to)


def paragraphs(rows, to):
    """Texts with blank lines between them."""
    to.write_text("\n\n".join(row["text"] for row in rows))


def text_files(rows, to):
    """A file for each text."""
    to.mkdir()
    for number, row in enumerate(rows):
        (to / f"{number:04}.txt").write_text(row["text"])


def arrow(rows, to):
    """What `datasets.save_to_disk` writes."""
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(to)


FORMATS = {
    "conversations": ("chat", "rows-2.jsonl", conversation, lines),
    "alpaca": ("chat", "rows-2.jsonl", alpaca, lines),
    "prompt-completion": ("chat", "rows-2.jsonl", prompt, lines),
    "one JSON list": ("preference", "rows.json", dict, json_list),
    "gzipped lines": ("masked", "rows.jsonl.gz", dict, gzipped),
    "TSV": ("tags", "rows.tsv", dict, tsv),
    "Parquet": ("pair", "rows.parquet", dict, parquet),
    "paragraphs": ("packed", "rows.txt", dict, paragraphs),
    "folder of texts": ("text", "texts", dict, text_files),
    "Arrow folder": ("translation", "arrow", dict, arrow),
}
"""Format → kind of rows, name of the file or folder, what a row becomes, and what writes them."""


def write_format(folder, name, **sections):
    """Write rows in a format into `folder`, whole or not at all; returns settings that train on them."""
    kind, target, change, write = FORMATS[name]
    settings = write_set(folder, kind, **sections)
    if not (folder / target).exists():
        rows = [change(json.loads(line)) for line in (folder / "rows.jsonl").read_text().splitlines()]
        partial = folder / f"partial-{target}"
        if partial.is_dir():  # a process was killed while it wrote
            partial.rename(folder / f"left-{len(list(folder.iterdir()))}")
        write(rows, partial)
        partial.rename(folder / target)
    return settings.model_copy(update={"data": settings.data.model_copy(update={"source": str(folder / target)})})
