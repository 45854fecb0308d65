"""Two processes and one run: the second one is told who has it, and a killed one leaves nothing to clean up."""

import os
import subprocess
import sys

import pytest

from forerun.errors import RunBusy
from forerun.ledger.store import open_ledger
from forerun.ledger.test_store import RUN
from forerun.runs.folder_lock import only_process, trains_elsewhere
from forerun.runs.run import run_experiment, run_folder

HOLDER = """
import os, sys, time
from pathlib import Path
from forerun.runs.folder_lock import only_process
with only_process(Path(sys.argv[1])):
    child = os.fork()  # as a worker of a loader: it outlives its killed parent
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lock")
    with open_ledger(f"sqlite:///{folder / 'ledger.sqlite'}") as opened:
        yield opened


@pytest.fixture(scope="module")
def row(ledger, tmp_path_factory):
    run_id = ledger.start_run(**{**RUN, "folder": str(tmp_path_factory.mktemp("runs"))})
    return ledger.run(run_id)


def test_a_second_process_is_refused_until_the_first_is_gone(ledger, row, monkeypatch):
    folder = run_folder(row)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        assert trains_elsewhere(folder)
        monkeypatch.setattr("forerun.runs.folder_lock.WAIT_SECONDS", 0.0)
        with pytest.raises(RunBusy, match=f"{row.id} is trained by process {holder.pid} on .*kill {holder.pid}"):
            run_experiment(None, None, ledger, folder.parent, resume=row.id)  # type: ignore[arg-type]
        assert ledger.run(row.id).state == "started", "a refusal leaves no event"
        holder.kill()
        holder.wait()
    os.kill(worker, 0)  # still there, and holds nothing
    try:
        assert not trains_elsewhere(folder)
        with only_process(folder):
            pass
        with only_process(folder):  # and again, after one that ended as it should
            pass
    finally:
        os.kill(worker, 9)
