"""What the other files of the catalogue of models have, while a script writes one of them anew.

Input: the file that is written. Output: rows of the others, and every name and id that they list, those for rows of the
file in question included. So an id that somebody moved by hand (`completed.toml`) stays where it is.
"""

import tomllib
from pathlib import Path

from forerun.models.rows import Architecture


def other_rows(target: Path) -> tuple[list[Architecture], set[str]]:
    """Rows of the files beside one, in the order of the catalogue, and their names and ids with further ids."""
    files = sorted(file for file in target.parent.glob("*.toml") if file.name != target.name)
    contents = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = [Architecture(**row) for content in contents for row in content["architecture"]]
    more = {alias for content in contents for entry in content.get("more_ids", []) for alias in entry["aliases"]}
    return rows, {name for row in rows for name in (row.name, *row.aliases)} | more
