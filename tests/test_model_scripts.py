"""The scripts that write files of the catalogue of models leave to others what others have, moved ids included."""

from pathlib import Path

import pytest
from benchmarks.other_rows import other_rows

import forerun.models

FOLDER = Path(forerun.models.__file__ or "").parent / "architectures"
ROW = """
[[architecture]]
name = "{name}"
aliases = ["{id}"]
family = "llama"
model_type = "llama"
config = {{}}
parameters = 1
parameters_of = "causal-lm"
source = "a test"
"""


def test_ids_of_other_files_are_theirs_also_those_that_they_give_a_row_of_the_file_that_is_written(tmp_path: Path):
    (tmp_path / "index.toml").write_text(ROW.format(name="one", id="a/one"))
    moved = '\n[[more_ids]]\nname = "one"\naliases = ["a/moved"]\n'
    (tmp_path / "completed.toml").write_text(ROW.format(name="two", id="a/two") + moved)
    rows, names = other_rows(tmp_path / "index.toml")
    assert [row.name for row in rows] == ["two"]
    assert names == {"two", "a/two", "a/moved"}


@pytest.mark.parametrize(
    ("file", "moved"),
    [
        ("hub.toml", {"ibm-granite/granite-3.1-8b-base", "ibm-granite/granite-3.3-2b-base"}),
        ("index.toml", {"microsoft/phi-3.5-mini-instruct"}),
        ("families.toml", {"facebook/opt-350m"}),
    ],
)
def test_what_was_moved_by_hand_is_not_written_back(file: str, moved: set[str]):
    assert moved <= other_rows(FOLDER / file)[1]
