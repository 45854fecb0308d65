"""How does a run start on the machine here? The device is detected, ledger and folders are opened, the run is shown.

`forerun run` and a copied recipe file both call `run_locally`; the run itself is in `run.py`.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from forerun.errors import FilesNotWritten
from forerun.hardware.detect import detect
from forerun.ledger.store import open_ledger
from forerun.runs.pages import write_page
from forerun.runs.progress import TerminalProgress
from forerun.runs.recipe import Experiment
from forerun.runs.run import RUNS_FOLDER, RunResult, follow, run_experiment
from forerun.train.interrupt import Interrupted
from forerun.train.launch import begun
from forerun.train.ranks import is_follower, join_group


def run_locally(
    experiment: Experiment, url: str, *, resume: str | None = None, quiet: bool = False, trackers: Sequence[str] = ()
) -> RunResult | None:
    """Run with the ledger at `url`, show it on the terminal, and write its page; None for all ranks but the first.

    Raises:
        Interrupted: stopped on request; how to go on has been said.
        FilesNotWritten: there is no place for checkpoints.
    """
    device = detect().device
    require_writable(RUNS_FOLDER)
    if is_follower():
        join_group(experiment.settings, device.kind)
        follow(experiment, device)
        return None
    progress, stderr = TerminalProgress(quiet=quiet), Console(stderr=True)
    with open_ledger(url) as ledger:
        try:
            result = run_experiment(
                experiment, device, ledger, RUNS_FOLDER, resume=begun(resume), listener=progress, trackers=trackers
            )
        except Interrupted as stop:
            progress.close()
            how = f"Go on with the same command and --resume {progress.run_id}"
            stderr.print(f"{stop} {how}", soft_wrap=True, highlight=False)
            raise
        try:
            message = f"Page: {write_page(ledger, result.run_id)}"
        except OSError as error:
            message = f"The page could not be written: {error}. Free space; then: forerun report {result.run_id}"
    stderr.print(message, soft_wrap=True, highlight=False)
    return result


def require_writable(folder: Path) -> None:
    """Make sure that files can be written into `folder`, before anything is forecast or trained.

    Raises:
        FilesNotWritten: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"forerun")
            file.flush()
    except OSError as error:
        raise FilesNotWritten(
            f"Checkpoints and pages of runs go to {folder.resolve()}, which cannot be written: {error}. Free space or "
            f"change permissions there, or start from another folder."
        ) from error
