"""Processes that a program starts for its ranks itself: `torch.multiprocessing.spawn`, `Process`, Ray Train.

The function that each of them would run is run here, for the rank that is traced. A process of its own would be
outside of the virtual GPU. What it returns says that the others ended well.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.multiprocessing  # noqa: F401 (loads the module that is asked for by name below)

from forerun.errors import InvalidSettings
from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.own_processes import running_as_ranks
from forerun.virtual.put_back import replaced, replaced_everywhere

RAY_TRAINERS = "ray.train.v2.api.data_parallel_trainer"


class SpawnedRanks:
    """What `spawn(join=False)` returns: processes that are over (torch/multiprocessing/spawn.py, 2.13)."""

    processes: tuple[()] = ()

    def pids(self) -> list[int]:
        """Process ids: there are none."""
        return []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Whether all processes ended."""
        return True


@contextlib.contextmanager
def running_spawned_ranks(ranks: int, local_rank: int, others: list[str]) -> Iterator[None]:
    """Run a spawned function as rank `local_rank` of the `ranks` of this machine.

    `others` gets the line of each process that the program starts for something else, which runs for itself.

    Raises (the program, where it spawns):
        InvalidSettings: more processes than the machine has cards.
    """

    def start_processes(
        fn: Callable[..., None], args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
    ) -> SpawnedRanks | None:
        if nprocs > ranks:
            raise InvalidSettings(
                f"exec: one GPU for each process that the program starts; it starts {nprocs}, and the machine has "
                f"{ranks}. Say forerun exec --nproc-per-node {nprocs}, or let the program start as many as "
                "torch.cuda.device_count()."
            )
        fn(min(local_rank, nprocs - 1), *args)
        return None if join else SpawnedRanks()

    # by its name in sys.modules: `torch.multiprocessing.spawn` is the function of that name
    home = sys.modules["torch.multiprocessing.spawn"]
    with (
        replaced_everywhere([(home, "start_processes", start_processes)]),
        running_as_ranks(ranks, local_rank, others),
        after_import(RAY_TRAINERS, _train_here),
    ):
        yield


def _train_here(module: Any) -> Callable[[], None]:
    """Let Ray Train run its function in this process: its local mode, which its users start under torchrun.

    That is what `num_workers=0` means (ray 2.60); Ray's own workers are processes of its cluster.
    """
    original = module.DataParallelTrainer.fit

    def fit(trainer: Any) -> Any:
        workers, ranks = trainer.scaling_config.num_workers, int(os.environ.get("WORLD_SIZE", "1"))
        if workers not in (0, ranks):
            raise InvalidSettings(
                f"exec: one GPU for each worker of Ray Train; num_workers is {workers}, and the job has {ranks}. Say "
                f"forerun exec --nproc-per-node {workers}."
            )
        trainer.running_in_local_mode = True
        return original(trainer)

    stack = contextlib.ExitStack()
    stack.enter_context(replaced(module.DataParallelTrainer, "fit", fit))
    return stack.close
