"""Start a command in several processes by `torchrun`, which starts all of them again when one is lost."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

NOTE = "FORERUN_ELASTIC_NOTE"
"""Environment variable of processes started together: a file that keeps the run's id for a second start."""
RESTARTS = 3
"""Lost processes that a run survives on one machine."""


def launch(arguments: Sequence[str], processes: int) -> int:
    """Run `forerun ARGUMENTS` in `processes` processes on this machine; returns the exit status."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
        f"--max-restarts={RESTARTS}", "-m", "forerun", *arguments,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        environment = {NOTE: str(Path(folder) / "run"), **os.environ}  # a job's own note outlives this machine
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
        return subprocess.run(command, env=environment, check=False).returncode


def begun(resume: str | None) -> str | None:
    """The run to go on with: what was asked for, or the one that these processes had begun before one was lost."""
    note = os.environ.get(NOTE)
    if resume is None and note is not None and Path(note).exists():
        return Path(note).read_text(encoding="utf-8") or None
    return resume


def note_run(run_id: str) -> None:
    """Leave the id of a run for processes that are started again."""
    if NOTE in os.environ:
        Path(os.environ[NOTE]).write_text(run_id, encoding="utf-8")
