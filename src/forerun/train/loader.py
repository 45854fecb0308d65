"""Batches of the coming steps, made beside the step that runs: worker processes of PyTorch's loader, kept for the run.

The order is a function of the step alone, so that workers change nothing but who collates: with any number of them a
run resumes exactly. On a GPU the number is measured (`auto`): enough that a batch is ready when the step before ends,
none where collating is too quick to matter. A CPU trains without workers unless told otherwise, since they would take
the processors that the step needs.
"""

import contextlib
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from torch.utils.data import DataLoader, Dataset

from forerun.errors import UserNote
from forerun.settings.devices import ParallelSettings
from forerun.settings.schema import Settings
from forerun.step.workload import Batch
from forerun.train.data_source import TrainingData
from forerun.train.ranks import share

PROBED_STEPS = 4
"""Steps whose batches are made in this process to see how long that takes; the first is not counted."""
NEGLIGIBLE_SHARE = 0.01
"""Fraction of a step below which collation is not worth a process."""
SPARE = 1.5
"""Workers per measured need, since batches differ in length."""
MOST_WORKERS = 16
PREFETCHED = 4
"""Micro-batches that each worker prepares ahead."""

MOST_DEATHS = 3
"""Times that workers are lost before a run does without them."""
DEAD_WORKER = "DataLoader worker (pid"
"""Beginning of what PyTorch (2.13) raises: torch/csrc/DataLoader.cpp and torch/utils/data/dataloader.py."""

Order = Sequence[Sequence[Sequence[int]]]
"""Optimizer steps of an epoch, each its micro-batches, each the indices of its samples."""


class LoaderWarning(UserNote):
    """Processes that make batches died; the run goes on."""


class _Collated(Dataset[Batch]):
    """Micro-batches by the indices of their samples."""

    def __init__(self, data: TrainingData):
        self.data = data

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        return self.data.collate(indices)


class Loader:
    """Gives a rank its micro-batches of each step, in order."""

    def __init__(self, data: TrainingData, settings: Settings, device_type: str):
        self.data, self.device_type = data, device_type
        self.workers: int | None = None if settings.data.workers == "auto" else settings.data.workers
        """Null while it is still measured."""
        if self.workers is None and device_type == "cpu":
            self.workers = 0
        self._ahead: Iterator[Batch] | None = None
        self._seen: list[tuple[float, float]] = []
        self._deaths = 0

    def take(
        self, own: Sequence[Sequence[int]], coming: Callable[[], Iterator[Sequence[Sequence[int]]]]
    ) -> list[Batch]:
        """The micro-batches `own` of this step; `coming` yields those of this and all later steps, when asked.

        Workers that died are started again at this step, which changes nothing but time; after `MOST_DEATHS` times this
        process makes the batches.
        """
        while self.workers:
            if self._ahead is None:
                self._ahead = self._start(self.workers, coming())
            try:
                return [next(self._ahead) for _ in own]
            except (RuntimeError, ConnectionError, EOFError) as error:
                if not _tells_of_death(error):
                    raise
                message = str(error).partition("\n")[0] or type(error).__name__
            self._ahead = None
            self._restart_or_give_up(message)
        return [self.data.collate(indices) for indices in own]

    def _restart_or_give_up(self, message: str) -> None:
        self._deaths += 1
        is_last = self._deaths == MOST_DEATHS
        then = "This process makes the batches from now on" if is_last else "Workers are started again at this step"
        warnings.warn(
            f"A process that makes batches died: {message.rstrip('.')}. {then}; no batch is lost or changed. If memory "
            f"ran out (`dmesg`), set data.workers to a smaller number than {self.workers}.",
            LoaderWarning,
            stacklevel=3,
        )
        self.workers = 0 if is_last else self.workers

    def step_done(self, data_seconds: float, step_seconds: float) -> None:
        """Measure until the number of workers is known; `step_seconds` includes the data's."""
        if self.workers is not None:
            return
        self._seen.append((data_seconds, step_seconds - data_seconds))
        if len(self._seen) == PROBED_STEPS:
            self.workers = workers_needed(*(median(values) for values in zip(*self._seen[1:], strict=True)))

    def close(self) -> None:
        """End the workers."""
        self._ahead = None

    def _start(self, workers: int, steps: Iterator[Sequence[Sequence[int]]]) -> Iterator[Batch]:
        loader: DataLoader[Batch] = DataLoader(
            _Collated(self.data),
            sampler=_MicroBatches(steps),
            batch_size=None,
            num_workers=workers,
            pin_memory=self.device_type == "cuda",
            prefetch_factor=PREFETCHED,
            persistent_workers=True,
            worker_init_fn=_as_worker,
            # torch/utils/data/dataloader.py (2.13), _BaseDataLoaderIter: draws a base seed, from the run's generator if
            # none is passed, so that the number of workers would change what training draws
            generator=torch.Generator(),
        )
        with _signals_of_children():
            return iter(loader)


def _tells_of_death(error: Exception) -> bool:
    """Whether a worker is gone; what its own code raised is told as `Caught … in DataLoader worker process`."""
    is_cut_off = isinstance(error, ConnectionError | EOFError) and not str(error).startswith("Caught ")
    return is_cut_off or str(error).startswith(DEAD_WORKER)


@contextlib.contextmanager
def _signals_of_children() -> Iterator[None]:
    """Put back who hears of children that end.

    torch/utils/data/_utils/signal_handling.py (2.13) raises from there, wherever training is: half an optimizer's
    update may be done. Without it a dead worker is noticed where its batch is waited for, 5 s later.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD)
    yield
    if is_main:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


class _MicroBatches:
    """Sampler of a loader: yields the indices of one micro-batch after the other, made on demand."""

    def __init__(self, steps: Iterator[Sequence[Sequence[int]]]):
        self.steps = steps

    def __iter__(self) -> Iterator[Sequence[int]]:
        return (indices for step in self.steps for indices in step)


def _as_worker(number: int) -> None:
    """Leave Ctrl-C to the process that trains, and end on SIGTERM.

    A fork inherits the handlers of `interrupt.py`, which only note the request: a worker would never end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def workers_needed(data_seconds: float, compute_seconds: float, processors: int | None = None) -> int:
    """Worker processes that keep up with steps of `compute_seconds` whose batches take `data_seconds` to make."""
    if data_seconds <= NEGLIGIBLE_SHARE * compute_seconds:
        return 0
    free = max(1, (processors or len(os.sched_getaffinity(0))) - 1)
    return min(math.ceil(SPARE * data_seconds / max(compute_seconds, 1e-9)), free, MOST_WORKERS)


def coming_steps(
    positions: Iterator[tuple[int, int, int]], order: Callable[[int], Order], parallel: ParallelSettings | None = None
) -> Iterator[list[Sequence[int]]]:
    """This rank's micro-batches of each step still to come.

    `positions` are (step, epoch, index in the epoch); ranks may share rows, as `parallel` says (`ranks.share`).
    """
    epoch_now, steps = -1, ()
    for _, epoch, index in positions:
        if epoch != epoch_now:
            epoch_now, steps = epoch, order(epoch)
        yield share(steps[index], parallel)[0]
