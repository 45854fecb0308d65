"""The cache gives back what was made, makes it once, mends damage, and removes only what nobody reads."""

import json
import os
import subprocess
import sys
import time

import pytest

from forerun import disk_cache
from forerun.disk_cache import MANIFEST, cached, file_digest
from forerun.errors import FilesNotWritten

FILLING = """
import sys, time
from pathlib import Path
from forerun.disk_cache import cached

def fill(folder):
    with open(sys.argv[2], "a") as log:
        log.write("filled\\n")
    time.sleep(0.3)
    (folder / "rows").write_text("x" * 1000)
    return {"rows": 3}

print(cached({"a": 1}, fill, Path(sys.argv[1])).facts)
"""


def filling(log, text="content"):
    def fill(folder):
        log.append(text)
        (folder / "inner").mkdir()
        (folder / "inner" / "rows").write_text(text)
        return {"rows": len(text)}

    return fill


def test_an_entry_is_made_once_and_found_by_its_key(tmp_path):
    log = []
    first = cached({"a": 1, "b": [2]}, filling(log), tmp_path)
    again = cached({"b": [2], "a": 1}, filling(log), tmp_path)
    other = cached({"a": 2, "b": [2]}, filling(log, "other"), tmp_path)
    assert (log, first.folder, first.facts) == (["content", "other"], again.folder, {"rows": 7})
    assert (other.folder / "inner" / "rows").read_text() == "other"


@pytest.mark.parametrize("damage", ["content!", "contenT", None])
def test_a_damaged_entry_is_made_anew(tmp_path, damage):
    log = []
    path = cached({}, filling(log), tmp_path).folder / "inner" / "rows"
    path.write_text(damage) if damage else path.unlink()
    assert cached({}, filling(log), tmp_path).folder == path.parents[1]
    assert (len(log), path.read_text()) == (2, "content")


def test_what_fails_half_way_leaves_no_entry(tmp_path):
    def fill(folder):
        (folder / "rows").write_text("half")
        raise ValueError("row 3")

    with pytest.raises(ValueError, match="row 3"):
        cached({}, fill, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert cached({}, filling([]), tmp_path).facts == {"rows": 7}


def test_two_processes_make_one_entry(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", FILLING, str(tmp_path / "cache"), str(log)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate()[0] for process in processes} == {"{'rows': 3}\n"}
    assert log.read_text() == "filled\n"


def test_a_killed_process_leaves_nothing_that_is_read(tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", FILLING, str(tmp_path / "cache"), str(log)]
    process = subprocess.Popen(command)
    while not (log.exists() and log.read_text()):  # opened first, written when it is closed
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert subprocess.run(command, capture_output=True, text=True).stdout == "{'rows': 3}\n"
    assert log.read_text() == "filled\n" * 2


def test_the_longest_unread_entries_leave_but_none_that_is_read(tmp_path, monkeypatch):
    log = []
    entries = [cached({"n": number}, filling(log), tmp_path) for number in range(4)]
    for age, entry in enumerate(reversed(entries)):
        os.utime(entry.folder / MANIFEST, (time.time() - 100 * age - 10,) * 2)
    names = [entry.name for entry in entries]
    size = sum(path.stat().st_size for path in entries[0].folder.rglob("*"))
    del entries[1:], entry  # the first, the oldest, is still read
    monkeypatch.setattr(disk_cache, "MOST_BYTES", 2.5 * size)
    last = cached({"n": 3}, filling(log), tmp_path)
    there = {path.parent.name for path in tmp_path.glob(f"*/{MANIFEST}")}
    assert there == {names[0], names[2], last.name}
    monkeypatch.setattr(disk_cache, "UNREAD_SECONDS", 50)
    cached({"n": 3}, filling(log), tmp_path)
    assert {path.parent.name for path in tmp_path.glob(f"*/{MANIFEST}")} == {names[0], names[3]}


def test_a_folder_that_cannot_be_written_is_named_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FilesNotWritten, match="FORERUN_CACHE"):
        cached({}, filling([]), tmp_path / "file" / "cache")


def test_the_manifest_holds_the_sums(tmp_path):
    entry = cached({"a": "ü"}, filling([]), tmp_path)
    manifest = json.loads((entry.folder / MANIFEST).read_text())
    assert manifest["key"] == {"a": "ü"}
    assert manifest["files"]["inner/rows"]["sha256"] == file_digest(entry.folder / "inner" / "rows")
