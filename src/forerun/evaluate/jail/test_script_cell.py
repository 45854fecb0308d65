"""A pasted script reads libraries, writes to its folder, and reaches nothing else; without walls it is not begun."""

import json
import os
import subprocess
import sys

import pytest

from forerun.evaluate.jail.script_cell import NO_WALLS

PROBE = """
import json, os, socket, sys
def tried(action):
    try:
        return f"done: {action()}"
    except Exception as error:
        return type(error).__name__
secret, parent = sys.argv[1:]
print(json.dumps({
    "reads a secret": tried(lambda: open(secret).read()),
    "writes beside it": tried(lambda: open(secret + ".new", "w").write("x")),
    "writes a library": tried(lambda: open(os.__file__, "a").write("x")),
    "lists home": tried(lambda: os.listdir(os.path.expanduser("~root"))),
    "kills its parent": tried(lambda: os.kill(int(parent), 0)),
    "reads its environment": tried(lambda: open(f"/proc/{parent}/environ").read()),
    "reaches a port": tried(lambda: socket.create_connection(("127.0.0.1", 80), 1)),
    "reaches the world": tried(lambda: socket.create_connection(("192.0.2.1", 80), 1)),
    "makes a file": tried(lambda: open("made", "w").write("x")),
    "imports": tried(lambda: __import__("yaml").__name__),
    "throws away": tried(lambda: open(os.devnull, "w").write("x")),
}))
"""
ALLOWED = {"makes a file", "imports", "throws away"}


def shut_in(folder, *command, start="pass"):
    code = f"import sys; from forerun.evaluate.jail import script_cell, kernel, walls; {start}; script_cell.main()"
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), sys.executable, *map(str, command)], capture_output=True, text=True
    )


def test_a_script_reaches_its_folder_and_libraries_only(tmp_path):
    folder, secret = tmp_path / "job", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("token")
    (folder / "probe.py").write_text(PROBE)
    result = shut_in(folder, "probe.py", secret, os.getpid())
    if result.returncode == NO_WALLS:
        pytest.skip(f"this machine offers no isolation: {result.stderr}")
    outcomes = json.loads(result.stdout)
    assert {name for name, outcome in outcomes.items() if outcome.startswith("done")} == ALLOWED, outcomes
    assert (folder / "made").read_text() == "x"
    assert not secret.with_suffix(".new").exists()


@pytest.mark.parametrize(
    ("wall", "call"), [("namespaces", "walls.unshare_as_root_inside"), ("Landlock", "kernel.restrict_files")]
)
def test_without_a_wall_nothing_runs(tmp_path, wall, call):
    """The kernel's refusal, at the call in which it would come."""
    refusal = f"exec('def no(*a): raise OSError(1, \"not permitted\")'); {call} = no"
    result = shut_in(tmp_path, "-c", "print('it ran')", start=refusal)
    assert result.returncode == NO_WALLS
    assert result.stderr.startswith(wall)
    assert result.stdout == ""


def test_the_exit_code_is_that_of_the_command(tmp_path):
    result = shut_in(tmp_path, "-c", "raise SystemExit(3)")
    assert result.returncode in (3, NO_WALLS)
