"""Does a run that is killed anywhere lose anything? SIGKILL at random moments, over every workload, and two ranks.

    python -m benchmarks.kills --kills 100 --seed 1        # 15 minutes on two cores

Each task is a tiny run: the shipped recipes, each kind of own data in JSON lines, the other formats of rows and of
files that own data may have, and two gloo ranks (DDP, and FSDP whose ranks each
write their part). A run that nobody killed gives the time, the weights and the losses. Then the same run is killed at a
moment drawn evenly from that time (reading and tokenising, training, saving and evaluation are all in it), started
again, killed again, up to `KILLS_A_RUN` times, and run to its end. It must end with the same weights to the bit, and
the ledger must have every step with the loss that it had. Processes are forked from one that has loaded PyTorch, so
that the moments fall into the run and not into the import.

Not covered: power failures (what a kernel has not written yet), and kills of the machine that holds a team's database.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forerun.hardware.catalogue import device
from forerun.ledger.store import open_ledger
from forerun.runs.registry import open_experiment
from forerun.runs.run import enter_run, run_folder, start_training
from forerun.settings.load import settings_from
from forerun.train.checkpoint_files import TEMPORARY, checkpoints, manifest_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from own_formats import FORMATS, write_format  # noqa: E402
from own_sets import SETS, write_set  # noqa: E402
from train_driver import training as training_of_ranks  # noqa: E402

METHOD = 1
KILLS_A_RUN = 3
LONGEST_SECONDS = 240.0
EVERY = ["checkpoints.every_steps=2", "checkpoints.keep_last=2", "schedule.warmup_steps=2"]
RECIPES = {
    "arithmetic": [
        "recipe.max_digits=2", "recipe.starts=[1,2]", "recipe.per_cell=64", "recipe.test_per_cell=6",
        "recipe.scored_rows=40", "batch.micro_batch_size=32", "schedule.max_steps=10",
    ],
    "code-detector": ["schedule.max_steps=8", "data.examples=256", "batch.micro_batch_size=16"],
    "code-lora": [
        "recipe.documents=64", "recipe.rows=260", "recipe.questions=6", "evaluation.examples=4",
        "evaluation.new_tokens=8", "batch.micro_batch_size=8", "model.config.hidden_size=32",
        "model.config.num_hidden_layers=1", "model.config.intermediate_size=64", "schedule.max_steps=8",
        "recipe.unsafe=true",
    ],
    "okadfa": [
        "recipe.corpus=induction", "batch.sequence_length=16", "model.config.width=32", "model.config.layers=2",
        "model.config.heads=2", "model.config.feed_forward=48", "batch.micro_batch_size=8", "data.examples=64",
        "schedule.max_steps=12", "evaluation.examples=8", "evaluation.every_epochs=0.5", "recipe.redraw_every=2",
    ],
    "text-classifier": ["schedule.max_steps=10", "data.examples=256"],
}  # fmt: skip
RANKS = {"ddp": False, "fsdp": True}
"""Kind of parallel training → whether ranks write their own parts."""
STEPS_OF_RANKS = 24
Train = Callable[[Path, int], None]
"""Trains a rank's part of the run in a folder, to its end."""


@dataclass(frozen=True)
class Ending:
    """What a run ended with."""

    weights: str
    """SHA-256 of all weights."""
    losses: dict[int, float]
    """Step → loss, as the ledger has them."""


@dataclass
class TaskKills:
    """What became of one task's runs."""

    name: str
    kills: int = 0
    began_anew: int = 0
    """Kills before the first checkpoint."""
    torn: int = 0
    """Kills that left half a checkpoint."""
    runs: int = 0
    """Runs that were killed and went to their end."""
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """Of a run that nobody killed."""


def hash_of(model: torch.nn.Module) -> str:
    """SHA-256 of all weights and buffers, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def recipe_settings(name: str, folder: Path) -> Any:
    """Small settings of a recipe."""
    from forerun.runs.registry import load_recipe

    recipe: Any = load_recipe(name)
    return settings_from(recipe.SETTINGS.model_dump(), [*RECIPES[name], *EVERY])


def own_settings(kind: str, folder: Path) -> Any:
    """Small settings on a kind of own data, which is written where it is not there yet."""
    return write_set(folder / "data", kind, rows=120, checkpoints={"every_steps": 2, "keep_last": 2})


def format_settings(name: str, folder: Path) -> Any:
    """Small settings on own data in a format, which are written where they are not there yet."""
    return write_format(folder / "data", name, rows=120, checkpoints={"every_steps": 2, "keep_last": 2})


def train_one(settings_of: Callable[[Path], Any], folder: Path, rank: int) -> None:
    """Begin or go on with the run in `folder`; its ending is written into `ending.json`."""
    settings = settings_of(folder)
    with open_ledger(f"sqlite:///{folder / 'ledger.sqlite'}") as ledger:
        experiment = open_experiment(settings)
        cpu = device("a100-40gb").model_copy(update={"kind": "cpu"})
        rows = ledger.runs(1)
        run_id = rows[0].id if rows else enter_run(experiment.settings, cpu, ledger, folder / "runs")
        training = start_training(experiment, cpu, run_folder(ledger.run(run_id)))
        for report in training.steps():
            ledger.record_step(run_id, report, is_saved=training.saves_after(report))
        training.load_best()
        losses = {report.step: report.loss for report in ledger.steps(run_id)}
    write_ending(folder, Ending(hash_of(training.step.model), losses))


def train_ranks(kind: str, folder: Path, rank: int) -> None:
    """One rank's part of the run in `folder`."""
    from forerun.step.parallel import whole

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    (folder / "checkpoints").mkdir(exist_ok=True)
    training = training_of_ranks(folder / "checkpoints", kind, 2, STEPS_OF_RANKS, sharded=RANKS[kind])
    losses = {report.step: report.loss for report in training.steps()}
    digest = hashlib.sha256()
    for _, parameter in sorted(training.step.model.named_parameters()):
        digest.update(whole(parameter.detach()).contiguous().numpy().tobytes())
    if rank == 0:
        write_ending(folder, Ending(digest.hexdigest(), losses))
    torch.distributed.barrier()


def write_ending(folder: Path, ending: Ending) -> None:
    """Write an ending, at once."""
    (folder / "ending.new").write_text(json.dumps([ending.weights, ending.losses]))
    (folder / "ending.new").rename(folder / "ending.json")


def _child(train: Train, folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    os.environ["FORERUN_CACHE"] = str(folder / "cache")  # so that filling it is killed too
    train(folder, rank)
    os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


class Started:
    """The processes of one run."""

    def __init__(self, train: Train, folder: Path, world: int):
        if world > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        context = multiprocessing.get_context("fork")
        self.processes = [context.Process(target=_child, args=(train, folder, rank)) for rank in range(world)]
        for process in self.processes:
            process.start()
        for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
            os.environ.pop(name, None)

    def wait(self, seconds: float) -> bool:
        """Whether all ended within so many seconds."""
        until = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        return all(process.exitcode is not None for process in self.processes)

    def kill(self) -> bool:
        """Kill all at once; whether one was still there."""
        alive = [process for process in self.processes if process.exitcode is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL)
        self.wait(LONGEST_SECONDS)
        return bool(alive)


def ending_of(folder: Path) -> Ending | str:
    """The ending of the run in `folder`, or the last line that it wrote."""
    if not (folder / "ending.json").exists():
        log = folder / "log.txt"
        lines = [line for line in log.read_text().splitlines() if line.strip()] if log.exists() else []
        return lines[-1] if lines else "nothing was written"
    weights, losses = json.loads((folder / "ending.json").read_text())
    return Ending(weights, {int(step): loss for step, loss in losses.items()})


def difference(ending: Ending | str, expected: Ending, *, has_ledger: bool) -> str:
    """What is wrong with an ending; empty where nothing is."""
    if isinstance(ending, str):
        return f"did not end: {ending}"
    if ending.weights != expected.weights:
        return "other weights"
    lost = sorted(set(expected.losses) - set(ending.losses)) if has_ledger else []
    if lost:
        return f"the ledger lacks {len(lost)} of {len(expected.losses)} steps: {lost[:12]}"
    others = [step for step, loss in ending.losses.items() if loss != expected.losses[step]]
    return f"another loss in step {others[0]}" if others else ""


def saved(folder: Path) -> tuple[int, int]:
    """Complete and half-written checkpoints below `folder`."""
    places = [path for path in folder.rglob("checkpoints") if path.is_dir()]
    whole = [path for place in places for path in checkpoints(place)]
    for path in whole:
        manifest_of(path)  # raises where what a kill left in its place is damaged
    return len(whole), sum(len(list(place.glob(f"{TEMPORARY}*"))) for place in places)


def kill_task(name: str, train: Train, world: int, kills: int, chance: random.Random) -> TaskKills:
    """Kill runs of one task so many times."""
    task, has_ledger = TaskKills(name), world == 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        whole, first = Path(root) / "whole", Path(root) / "first"
        whole.mkdir()
        first.mkdir()
        if world == 1:  # once in this process, so that its children find every module loaded
            with contextlib.chdir(first):
                train(first, 0)
        else:
            import torch.distributed.fsdp  # noqa: F401

            list(training_of_ranks(first, "none", 1, 2).steps())
        start = time.monotonic()
        if not (run := Started(train, whole, world)).wait(LONGEST_SECONDS):
            run.kill()
        task.seconds, expected = time.monotonic() - start, ending_of(whole)
        if isinstance(expected, str):
            task.faults.append(f"the run that nobody killed did not end: {expected}")
            return task
        while task.kills < kills and len(task.faults) < 3:
            folder = Path(root) / f"run-{task.runs}"
            folder.mkdir()
            task.runs += 1
            _kill_run(task, partial(Started, train, folder, world), folder, kills, chance)
            fault = difference(ending_of(folder), expected, has_ledger=has_ledger)
            task.faults += [fault] if fault else []
    return task


def _kill_run(task: TaskKills, start: Callable[[], Started], folder: Path, kills: int, chance: random.Random) -> None:
    for _ in range(min(KILLS_A_RUN, kills - task.kills)):
        run = start()
        if run.wait(chance.uniform(0, task.seconds)) or not run.kill():
            return
        whole, half = saved(folder)
        task.kills += 1
        task.began_anew += whole == 0
        task.torn += half > 0
    if not (run := start()).wait(LONGEST_SECONDS):
        run.kill()


def tasks() -> list[tuple[str, Train, int]]:
    """Name, what each process does, and how many processes."""
    return [
        *((f"ranks: {kind}", partial(train_ranks, kind), 2) for kind in RANKS),
        *((f"recipe: {name}", partial(train_one, partial(recipe_settings, name)), 1) for name in RECIPES),
        *((f"own data: {kind}", partial(train_one, partial(own_settings, kind)), 1) for kind in SETS),
        *((f"own format: {name}", partial(train_one, partial(format_settings, name)), 1) for name in FORMATS),
    ]


def shares(kills: int, number: int) -> list[int]:
    """So many kills dealt out evenly, the first tasks one more."""
    return [kills // number + (place < kills % number) for place in range(number)]


def main() -> None:
    """Kill, resume, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="Part of a task's name.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    import transformers.models.auto.modeling_auto  # noqa: F401  # loaded once, before processes are forked

    chosen = [task for task in tasks() if options.only in task[0]]
    rows = []
    print("| task | seconds unkilled | kills | before a checkpoint | half a checkpoint left | runs | faults |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for (name, train, world), kills in zip(chosen, shares(options.kills, len(chosen)), strict=True):
        row = kill_task(name, train, world, kills, random.Random(f"{options.seed} {name}"))
        rows.append(row)
        print(_line(row), flush=True)
    print(summary(rows, options.seed))


def _line(row: TaskKills) -> str:
    cells = (
        row.name,
        f"{row.seconds:.1f}",
        row.kills,
        row.began_anew,
        row.torn,
        row.runs,
        "; ".join(row.faults) or "–",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def summary(rows: Sequence[TaskKills], seed: int) -> str:
    """One JSON line."""
    sums = {name: sum(getattr(row, name) for row in rows) for name in ("kills", "began_anew", "torn", "runs")}
    return json.dumps({"method": METHOD, "seed": seed, **sums, "faults": sum(len(row.faults) for row in rows)})


if __name__ == "__main__":
    main()
