"""Commands as a user types them: the line-by-line table, and a first-time user's way through each system."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.origins.collect import FOLDER, RUNS, documents, keep

ANSWERS = (0, 3, 4)
"""Exit codes that are answers: done, does not fit, a criterion failed."""
LIMIT_SECONDS = 1800
ROOT = Path(__file__).parents[2]
FORERUN = re.compile(r"(?:^|(?<=[;&|] ))forerun ")
NOISE = re.compile(r"FutureWarning|^\s*output = func|\[transformers\]|it/s\]")
"""Lines of other libraries that say nothing of the command."""
HEAD_LINES, TAIL_LINES = 6, 14
"""Lines of a command's output that a transcript shows."""
Content = dict[str, Any]


def run_line(command: str, folder: Path) -> Content:
    """Exit code, seconds and all lines of a shell command in a folder; `forerun` is this one, with its own ledger."""
    environment = os.environ | {"FORERUN_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}", "COLUMNS": "110"}
    words = FORERUN.sub(f"{sys.executable} -m forerun ", command)
    start = time.perf_counter()
    try:
        done = subprocess.run(
            ["bash", "-c", words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = 124, f"stopped after {LIMIT_SECONDS} s"
    for place, name in ((str(folder), "."), (str(ROOT), "…"), (sys.prefix, "…"), (str(Path.home()), "~")):
        output = output.replace(place, name)
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and not NOISE.search(line)]
    return {"command": command, "exit_code": code, "seconds": time.perf_counter() - start, "output": lines}


def make_lines(say: Callable[[str], None], only: str = "") -> None:
    """Run the command of every line of `lines.toml` that has `only` in its document or command."""
    lines = tomllib.loads((FOLDER / "lines.toml").read_text(encoding="utf-8"))["line"]
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            if only not in f"{line['document']} {line['command']}":
                continue
            outcome = run_line(line["command"], Path(folder))
            works = "yes" if outcome["exit_code"] in ANSWERS else "**no**"
            content = {**line, "works": works, "exit_code": outcome["exit_code"], "seconds": outcome["seconds"]}
            keep("lines", f"{line['document']}:{line['line']:03}", content)
            last = "" if works == "yes" else f": {outcome['output'][-3:]}"
            say(f"{works} {outcome['exit_code']} {outcome['seconds']:.0f} s {line['command']}{last}")


def make_transcripts(say: Callable[[str], None], only: str = "") -> None:
    """Each system from `forerun recipes` to a used model, in a folder and with a ledger of its own below `runs`."""
    steps = tomllib.loads((FOLDER / "lines.toml").read_text(encoding="utf-8"))["transcript"]
    for document in documents():
        if only not in document["name"]:
            continue
        folder = (RUNS / document["name"]).resolve()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        outcomes = []
        for command in steps[document["name"]]:
            outcomes.append(run_line(command, folder))
            say(f"{outcomes[-1]['exit_code']} {outcomes[-1]['seconds']:.0f} s {command}")
        for outcome in outcomes:
            lines = outcome["output"]
            cut = len(lines) - HEAD_LINES - TAIL_LINES
            if cut > 1:
                outcome["output"] = [*lines[:HEAD_LINES], f"  … {cut} lines …", *lines[-TAIL_LINES:]]
        keep("transcripts", document["title"], outcomes)
