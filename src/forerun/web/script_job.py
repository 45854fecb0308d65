"""Forecast a pasted script: `forerun exec` in a folder and behind walls of its own (`jail/script_cell.py`)."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from forerun.errors import InvalidSettings, NotSupported
from forerun.evaluate.jail.script_cell import NO_WALLS

LARGEST_SCRIPT = 2**18
"""Characters."""
LIMIT_SECONDS = 600.0
LARGEST_ANSWER = 2**24
"""Bytes of the document; a forecast has some 20 kB."""
CELL = (sys.executable, "-m", "forerun.evaluate.jail.script_cell")


def forecast_script(
    script: str, gpu: str, say: Callable[[str], None], *, cell: tuple[str, ...] = CELL
) -> Mapping[str, Any]:
    """The document of `forerun exec --json` for a script, which runs shut in; its own lines go to `say`.

    Raises:
        InvalidSettings: an empty or too long script, or one that cannot be run.
        NotSupported: this machine cannot shut it in.
    """
    if not script.strip() or len(script) > LARGEST_SCRIPT:
        raise InvalidSettings(f"script: 1 to {LARGEST_SCRIPT:,} characters of Python; found {len(script):,}.")
    with tempfile.TemporaryDirectory(prefix="forerun-script-") as folder:
        (Path(folder) / "train.py").write_text(script, encoding="utf-8")
        command = [*cell, folder, sys.executable, "-m", "forerun", "exec", "--gpu", gpu, "--json", "--", "python"]
        with subprocess.Popen(
            [*command, "train.py"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=folder, env=_environment(folder),
        ) as process:  # fmt: skip
            assert process.stdout is not None, "asked for above"
            assert process.stderr is not None, "asked for above"
            timer = threading.Timer(LIMIT_SECONDS, process.kill)
            lines: list[str] = []
            reader = threading.Thread(target=_follow, args=(process.stderr, lines, say))
            timer.start()
            reader.start()
            text = process.stdout.read(LARGEST_ANSWER)
            process.stdout.close()
            code = process.wait()
            reader.join()
            timer.cancel()
    return _document(code, text, lines)


def _document(code: int, text: bytes, lines: list[str]) -> Mapping[str, Any]:
    last = lines[-1] if lines else "it said nothing"
    if code == NO_WALLS:
        raise NotSupported(
            f"This machine offers no isolation for a pasted script ({last}). Run it yourself, where you trust it: "
            f"forerun exec -- python train.py"
        )
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidSettings(f"script: no forecast came of it (exit code {code}): {last}") from error


def _follow(stream: IO[bytes], lines: list[str], say: Callable[[str], None]) -> None:
    for line in stream:
        text = line[:500].decode(errors="replace").strip()
        if text:
            lines[:] = [*lines[-19:], text]
            say(text)


def _environment(folder: str) -> dict[str, str]:
    """Nothing of this process's own but where programs are; all that is written goes to the folder."""
    return {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "FORERUN_TRACES": "off", "FORERUN_CACHE": f"{folder}/cache", "FORERUN_LEDGER": f"sqlite:///{folder}/ledger",
    }  # fmt: skip
