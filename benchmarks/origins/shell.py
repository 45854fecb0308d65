"""Commands as a user types them: the line-by-line table, and a first-time user's way through each system."""

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.origins.collect import FOLDER, documents, keep

ANSWERS = (0, 3, 4)
"""Exit codes that are answers: done, does not fit, a criterion failed."""
LIMIT_SECONDS = 900
HEAD_LINES, TAIL_LINES = 6, 14
"""Lines of a command's output that a transcript shows."""
Content = dict[str, Any]


def run_line(command: str, folder: Path) -> Content:
    """Exit code, seconds and all lines of `command` (it begins with `forerun`) in a folder, with its own ledger."""
    environment = os.environ | {"FORERUN_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}", "COLUMNS": "110"}
    words = command.replace("forerun ", f"{sys.executable} -m forerun ", 1)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            ["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
        code, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        code, output = 124, f"stopped after {LIMIT_SECONDS} s"
    lines = [line for line in output.replace(str(folder), ".").splitlines() if line.strip()]
    return {"command": command, "exit_code": code, "seconds": time.perf_counter() - start, "output": lines}


def make_lines(say: Callable[[str], None]) -> None:
    """Run the command of every line of `lines.toml`."""
    lines = tomllib.loads((FOLDER / "lines.toml").read_text(encoding="utf-8"))["line"]
    with tempfile.TemporaryDirectory() as folder:
        for number, line in enumerate(lines):
            outcome = run_line(line["command"], Path(folder))
            works = "yes" if outcome["exit_code"] in ANSWERS else "**no**"
            content = {**line, "works": works, "exit_code": outcome["exit_code"], "seconds": outcome["seconds"]}
            keep("lines", f"{number:03}", content)
            say(f"{works} {line['command']}: {outcome['output'][-1:]}")


def make_transcripts(say: Callable[[str], None]) -> None:
    """Each system from `forerun recipes` to a used model, in a folder and with a ledger of its own."""
    steps = tomllib.loads((FOLDER / "lines.toml").read_text(encoding="utf-8"))["transcript"]
    for document in documents():
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [run_line(command, Path(folder)) for command in steps[document["name"]]]
        for outcome in outcomes:
            lines = outcome["output"]
            cut = len(lines) - HEAD_LINES - TAIL_LINES
            if cut > 1:
                outcome["output"] = [*lines[:HEAD_LINES], f"  … {cut} lines …", *lines[-TAIL_LINES:]]
        keep("transcripts", document["title"], outcomes)
        say(f"{document['name']}: exit codes {[outcome['exit_code'] for outcome in outcomes]}")
