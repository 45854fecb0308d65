"""A command's own view of the file system: what is covered, what is thrown away, what is handed out, how it ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from forerun.cli import file_wall
from forerun.cli.main import throws_files_away

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw shared:1 - proc proc rw
24 22 0:30 / /mnt/a\\040disk rw,relatime shared:9 - xfs /dev/vdb rw
25 22 0:31 / /dev rw - devtmpfs devtmpfs rw
26 22 0:32 / /users rw - autofs /etc/auto.users rw
27 26 0:33 / /users/me rw - nfs4 server:/me rw
"""
INSIDE = """
    import os, signal, sqlite3, subprocess, sys
    from pathlib import Path
    from forerun.cli.file_wall import hand_out, is_inside, run_inside

    def work():
        if not is_inside():
            sys.exit(77)
        Path("mine.txt").write_text("changed")
        Path("written.txt").write_text("new")
        assert subprocess.run(["cat", "written.txt"], capture_output=True).stdout == b"new"
        os.system("echo hello > by_shell.txt; rm rows.txt")
        sqlite3.connect("runs.db").execute("create table runs (name)")
        assert sorted(os.listdir()) == ["by_shell.txt", "mine.txt", "runs.db", "written.txt"]
        Path("deep").mkdir()
        Path("deep/page.html").write_text("a page")
        hand_out(Path("deep/page.html").absolute())
        END

    run_inside(work)
    assert False, "the outside ends as the inside did"
"""


def run(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    for name in ("mine.txt", "rows.txt"):
        (folder / name).write_text("mine")
    program = textwrap.dedent(INSIDE).replace("END", end)
    environment = os.environ | {"TMPDIR": str(folder.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode == 77:
        pytest.skip("this machine offers no view of the file system of one's own")
    return done


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), signal.SIGTERM)", -15), ("os.abort()", -6)]
)
def test_what_is_written_inside_is_gone_but_what_is_handed_out(tmp_path, end, code):
    folder = tmp_path / "work"
    folder.mkdir()
    done = run(folder, end)
    assert done.returncode == code, done.stderr
    there = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert there == {"mine.txt": "mine", "rows.txt": "mine", "deep/page.html": "a page"}
    assert list(tmp_path.iterdir()) == [folder]  # the overlay is removed


def test_what_cannot_be_written_outside_is_an_error(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    blocked = (
        "Path('mine.txt').unlink(); Path('mine.txt').mkdir(); Path('mine.txt/x').touch(); hand_out(Path('mine.txt/x'))"
    )
    done = run(folder, blocked)
    assert "FilesNotWritten: mine.txt/x cannot be written: File exists" in done.stderr
    assert (folder / "mine.txt").read_text() == "mine"


def test_every_folder_of_users_is_covered_and_none_with_a_mount_below_it(monkeypatch):
    mounts = list(file_wall.mount_points(MOUNTS))
    kinds = {"/": "ext4", "/proc": "proc", "/mnt/a disk": "xfs", "/dev": "devtmpfs", "/users": "autofs"}
    assert dict(mounts) == kinds | {"/users/me": "nfs4"}
    tree = {"/": ["home", "mnt", "proc", "dev", "bin", "users"], "/mnt": ["a disk", "b"]}  # users is not listed
    monkeypatch.setattr(os, "listdir", lambda folder: tree[folder])
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    monkeypatch.setattr(os.path, "islink", lambda path: path == "/bin")
    assert file_wall.covering_places(mounts) == ["/home", "/mnt/a disk", "/mnt/b", "/users/me"]


def test_files_are_kept_where_that_is_asked_for():
    assert throws_files_away(["exec", "--gpu", "t4", "--", "python", "train.py", "--keep-files"])
    assert not throws_files_away(["exec", "--keep-files", "--", "python", "train.py"])
    assert not throws_files_away(["forecast", "exec"])
    assert not throws_files_away([])


def test_a_variable_that_names_another_namespace_protects_nothing(monkeypatch):
    monkeypatch.setenv(file_wall.VARIABLE, "mnt:[1]")
    assert not file_wall.is_inside()
