"""What does a run lose when its machine fails it? Faults of disks, checkpoints, ledger, clock, numbers and devices.

    python -m benchmarks.faults [--only disk]      # 4 minutes on two cores

Each fault meets a tiny run on own data of `benchmarks.kills` after its fifth step of twelve, or between two processes
of it. Then the fault is mended, and the run goes on to its end. It must end with the weights, to the bit, of a run that
met nothing, with all its steps in the ledger, and what was said must be one line with the words of the table, without
a traceback. Full disks are real (a small tmpfs in a mount namespace, where the kernel allows one, and a limit on file
sizes); read-only folders are met by a process without rights; the GPU that disappears is what CUDA raises then.

Not covered: power failures; ten writers on one ledger are a test of their own (`ledger/test_tables.py`).
"""

import argparse
import contextlib
import ctypes
import datetime as dt
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from benchmarks.kills import Ending, difference, ending_of, hash_of, own_settings, write_ending

from forerun.errors import ForerunError
from forerun.hardware.catalogue import device
from forerun.ledger import store
from forerun.ledger.store import open_ledger
from forerun.runs.registry import open_experiment
from forerun.runs.run import enter_run, run_folder, start_training
from forerun.settings.load import settings_from
from forerun.step.workload import LossSum
from forerun.train.checkpoint_files import MANIFEST, TEMPORARY, checkpoints

METHOD = 1
AT_STEP = 5
LONGEST_SECONDS = 240.0
NOBODY = 65534
TMPFS_BYTES = 24 * 1024**2
MS_PRIVATE, MS_REC, NEW_MOUNTS, NEW_USERS = 1 << 18, 1 << 14, 0x20000, 0x10000000
Strike = Callable[[Any, Path], None]
"""What happens to a training, in its process, after the step."""
Damage = Callable[[Path], None]
"""What happens to a run's folder while no process is there."""


@dataclass(frozen=True)
class Fault:
    """One fault, and what must be said."""

    name: str
    words: str
    """Must be in what is said, in one line; empty where nothing needs to be."""
    strike: Strike | None = None
    damage: Damage | None = None
    before: Damage | None = None
    """Done in the process before the run is opened."""
    mend: Damage = lambda folder: None
    overrides: tuple[str, ...] = ()
    needs_tmpfs: bool = False


def train(folder: Path, fault: Fault | None, stop: bool) -> None:
    """Begin or go on with the run in `folder`, in a process of its own; what it says goes to a log beside it."""
    settings = settings_from(own_settings("one", folder).model_dump(), fault.overrides if fault else ())
    with open_ledger(f"sqlite:///{folder / 'ledger' / 'ledger.sqlite'}") as ledger:
        experiment = open_experiment(settings)
        cpu = device("a100-40gb").model_copy(update={"kind": "cpu"})
        if not ledger.runs(1):
            ledger.rebuild(folder / "runs")  # as `forerun runs rebuild` does after a ledger was lost
        rows = ledger.runs(1)
        run_id = rows[0].id if rows else enter_run(experiment.settings, cpu, ledger, folder / "runs")
        training = start_training(experiment, cpu, run_folder(ledger.run(run_id)))
        for report in training.steps():
            ledger.record_step(run_id, report, is_saved=training.saves_after(report))
            if report.step == AT_STEP and fault is not None and fault.strike is not None:
                fault.strike(training, folder)
            if report.step == AT_STEP and stop:
                os._exit(0)
        training.load_best()
        losses = {report.step: report.loss for report in ledger.steps(run_id)}
    write_ending(folder, Ending(hash_of(training.step.model), losses))


def child(folder: Path, fault: Fault | None, stop: bool) -> None:
    """One process: what it raises becomes what the command line would say."""
    torch.set_num_threads(1)
    log = os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)  # else a test's capture has it
    os.chdir(folder)
    os.environ["FORERUN_CACHE"] = str(folder / "cache")
    warnings.showwarning = lambda message, *others, **more: print(f"Note: {message}", flush=True)
    warnings.simplefilter("once")
    try:
        if fault is not None and fault.before is not None:
            fault.before(folder)
        train(folder, fault, stop)
    except ForerunError as error:
        print(f"Error: {error}", flush=True)
        os._exit(2)
    os._exit(0)


def started(folder: Path, fault: Fault | None = None, *, stop: bool = False) -> int | None:
    """The exit code of one process."""
    process = multiprocessing.get_context("fork").Process(target=child, args=(folder, fault, stop))
    process.start()
    process.join(LONGEST_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None
    return process.exitcode


def prepared(folder: Path) -> Path:
    """An empty folder for a run."""
    for name in ("runs", "ledger", "cache"):
        (folder / name).mkdir(parents=True)
    return folder


def meet(fault: Fault, folder: Path, expected: Ending) -> tuple[str, str, str]:
    """What the run said, how the faulty process ended, and what is wrong; that is empty where nothing is."""
    code = started(prepared(folder), fault, stop=fault.damage is not None)
    if fault.damage is not None:
        fault.damage(folder)
    fault.mend(folder)
    ended = (folder / "ending.json").exists()
    if not ended:
        started(folder)
    log = folder.with_suffix(".log").read_text()
    lines = [line for line in log.splitlines() if line.startswith(("Note: ", "Error: "))]
    said = next((line for line in lines if fault.words in line), "")
    wrong = "a traceback" if "Traceback" in log else "" if said or not fault.words else f"not said: {lines[-1:]}"
    wrong = wrong or difference(ending_of(folder), expected, has_ledger=True)
    how = "went on" if ended else "damaged between" if fault.damage else f"ended with {code}"
    return said, how, f"{wrong} {log[-300:] if wrong else ''}".strip()


def newest(folder: Path) -> Path:
    """The newest checkpoint of the one run."""
    return checkpoints(next((folder / "runs").glob("*/checkpoints")))[-1]


def flip(name: str, folder: Path) -> None:
    """Turn one bit of a file of the newest checkpoint."""
    path = newest(folder) / name
    content = bytearray(path.read_bytes())
    content[random.Random(1).randrange(len(content))] ^= 4
    path.write_bytes(content)


def cut(name: str, folder: Path) -> None:
    """Leave half of a file of the newest checkpoint."""
    path = newest(folder) / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(name: str, folder: Path) -> None:
    """Take a file of the newest checkpoint away."""
    (newest(folder) / name).unlink()


def damage_all(folder: Path) -> None:
    """Cut every checkpoint."""
    for path in checkpoints(newest(folder).parent):
        (path / "model.safetensors").write_bytes(b"torn")


def leave_half(folder: Path) -> None:
    """What a kill inside a save leaves."""
    shutil.copytree(newest(folder), newest(folder).parent / f"{TEMPORARY}half")


def overwrite_ledger(folder: Path) -> None:
    """Text where the ledger's first page was, and no log beside it."""
    for path in (folder / "ledger").glob("ledger.sqlite-*"):
        path.unlink()
    path = folder / "ledger" / "ledger.sqlite"
    path.write_bytes(b"not a database any more " * 200 + path.read_bytes()[4800:])


def limit_files(training: Any, folder: Path) -> None:
    """From now on no file may have more than 4 KiB, as under a quota."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def fill_disk(training: Any, folder: Path) -> None:
    """Write until the small disk is full."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def empty_disk(folder: Path) -> None:
    """Make room."""
    (folder / "filler").unlink(missing_ok=True)


def forbid(part: str, folder: Path) -> None:
    """A folder that may be read only, and a process without rights."""
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            os.chmod(Path(root) / name, 0o777 if os.geteuid() == 0 else stat.S_IRWXU)
    folder.chmod(0o777)
    for path in [folder / part, *(folder / part).rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def forbid_now(part: str, training: Any, folder: Path) -> None:
    """The same while the run trains."""
    forbid(part, folder)


def permit(folder: Path) -> None:
    """Everything may be written again."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o777)


def no_numbers(training: Any, folder: Path) -> None:
    """Losses are NaN from now on."""
    loss = training.step.workload.loss
    training.step.workload.loss = lambda model, batch: LossSum(loss(model, batch).sum * float("nan"))


def lose_device(training: Any, folder: Path) -> None:
    """What CUDA raises when the GPU falls off the bus."""

    def loss(model: Any, batch: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure'")

    training.step.workload.loss = loss


def kill_workers(training: Any, folder: Path) -> None:
    """The kernel's out-of-memory killer takes the processes that make batches."""
    for process in psutil.Process().children():
        process.kill()


def turn_clock(hours: float, training: Any, folder: Path) -> None:
    """The machine's clock is set to another time."""
    now, moment = time.time, dt.datetime.now

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return moment(tz) + dt.timedelta(hours=hours)

    time.time = lambda: now() + hours * 3600
    store.dt = SimpleNamespace(datetime=Clock, UTC=dt.UTC)  # type: ignore[assignment]


def on_small_disk(fault: Fault, folder: Path, expected: Ending, pipe: Any) -> None:
    """`meet` on a disk of 24 MiB that only this process and its children see."""
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.geteuid(), os.getegid()
    if libc.unshare(NEW_MOUNTS | (NEW_USERS if user else 0)):
        pipe.send(("", "not here", "skipped: the kernel allows no mount namespace"))
        os._exit(0)
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    folder.mkdir()
    libc.mount(b"none", b"/", None, MS_PRIVATE | MS_REC, None)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={TMPFS_BYTES}".encode()):
        pipe.send(("", "not here", f"skipped: {os.strerror(ctypes.get_errno())}"))
        os._exit(0)
    pipe.send(meet(fault, folder, expected))
    os._exit(0)


def result_of(fault: Fault, folder: Path, expected: Ending) -> tuple[str, str, str]:
    """`meet`, on a small disk where the fault needs one."""
    if not fault.needs_tmpfs:
        return meet(fault, folder, expected)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=on_small_disk, args=(fault, folder, expected, theirs))
    process.start()
    answer = ours.recv() if ours.poll(2 * LONGEST_SECONDS) else ("", "hung", "did not end")
    process.join(1)
    return answer


DAMAGED = [
    Fault(f"{name} {what}", f"{name} does not match", damage=partial(how, name))
    for name in ("model.safetensors", "optimizer.safetensors", MANIFEST)
    for what, how in (("cut", cut), ("one bit flipped", flip))
]
WORKERS = ("data.workers=2",)
FAULTS = [
    Fault("disk: full", "could not be written", strike=fill_disk, mend=empty_disk, needs_tmpfs=True),
    Fault("disk: a quota on files", "could not be written", strike=limit_files),
    Fault("disk: runs read-only", "Permission denied", strike=partial(forbid_now, "runs"), mend=permit),
    Fault("disk: ledger read-only", "cannot be", before=partial(forbid, "ledger"), mend=permit),
    Fault("disk: cache read-only", "Permission denied", before=partial(forbid, "cache"), mend=permit),
    *DAMAGED,
    Fault("manifest.json missing", MANIFEST, damage=partial(remove, MANIFEST)),
    Fault("rng.safetensors missing", "rng.safetensors", damage=partial(remove, "rng.safetensors")),
    Fault("every checkpoint torn", "is damaged", damage=damage_all),
    Fault("half a checkpoint left by a kill", "", damage=leave_half),
    Fault("ledger overwritten", "is kept as", damage=overwrite_ledger),
    Fault("clock a day back", "", strike=partial(turn_clock, -24)),
    Fault("clock a year ahead", "", strike=partial(turn_clock, 24 * 365)),
    Fault("loss is NaN for good", "5 steps in a row", strike=no_numbers),
    Fault("a GPU disappears", "The device failed", strike=lose_device),
    Fault("workers killed", "no batch is lost", strike=kill_workers, overrides=WORKERS),
]


def main() -> None:
    """Meet every fault, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="Part of a fault's name.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        Path(root).chmod(0o755)
        results = meet_all([fault for fault in FAULTS if options.only in fault.name], Path(root))
    wrong = [name for name, problem in results if problem and not problem.startswith("skipped")]
    skipped = sum(problem.startswith("skipped") for _, problem in results)
    print(json.dumps({"method": METHOD, "faults": len(results), "skipped": skipped, "wrong": wrong}))


def meet_all(faults: Sequence[Fault], root: Path) -> list[tuple[str, str]]:
    """Name and what is wrong of each fault; prints the table."""
    for name in ("first", "whole"):  # the first loads what children then find loaded
        started(prepared(root / name))
    expected, results = ending_of(root / "whole"), []
    if isinstance(expected, str):
        raise SystemExit(f"the run without faults did not end: {expected}")
    print("| fault | the process | what was said | wrong |\n|---|---|---|---|")
    for number, fault in enumerate(faults):
        said, how, wrong = result_of(fault, root / str(number), expected)
        print(f"| {fault.name} | {how} | {said.replace(str(root), '…')[:240]} | {wrong or '–'} |", flush=True)
        results.append((fault.name, wrong))
    return results


if __name__ == "__main__":
    main()
