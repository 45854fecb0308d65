"""Data loaders of a program: their batches are made in its own process, timed, and their sampling is noted."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset, dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from forerun.hardware.processor_time import thread_waiting_seconds
from forerun.virtual.cuda.host_work import timed_apart
from forerun.virtual.cuda.lines import program_line
from forerun.virtual.cuda.names import pin
from forerun.virtual.put_back import replaced, replaced_everywhere

ALONE = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None,
         "pin_memory": False, "timeout": 0}  # fmt: skip
"""Fake tensors cannot be sent to another process."""
NAMES = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory", "drop_last",
         "timeout", "worker_init_fn", "multiprocessing_context")  # fmt: skip
"""Positional arguments of `DataLoader` after the dataset (torch/utils/data/dataloader.py, 2.13)."""
_WATCHED = "_forerun_watched"


@dataclass(eq=False)
class WatchedLoader:
    """One data loader of the program."""

    line: str
    """File and line that made it."""
    worker_count: int
    """Processes that it would have made its batches in."""
    sees_all_rows: bool
    """Every rank that makes such a loader is given the same rows."""
    pins: bool = False
    """It would have copied its batches to pinned memory."""
    fetches: list[float] = field(default_factory=list)
    """Seconds to make each batch here, but those of tensors without values, whose time says nothing."""
    rows: int = 0
    """Of its last batch."""
    batches: int | None = None
    """In one pass over it; None where it does not know."""
    is_of_steps: bool = False
    """Training steps had batches of it."""

    @property
    def batch_seconds(self) -> float:
        """Seconds between batches, once its workers are busy: the quickest here, as other work may slow the others."""
        return min(self.fetches) / max(1, self.worker_count) if self.fetches else 0.0


@dataclass
class LoaderWatch:
    """What the program's data loaders have done."""

    loaders: list[WatchedLoader] = field(default_factory=list)
    fetched: list[WatchedLoader] = field(default_factory=list)
    """The loader of each batch made since it was emptied."""
    ends: Callable[[WatchedLoader], bool] = lambda loader: False
    """Whether a pass over a loader is ended before its next batch."""

    def note(self, loader: Any, workers: int, *, pins: bool) -> None:
        """Note a new loader."""
        is_plain = type(loader.sampler) in (RandomSampler, SequentialSampler)
        batches_are_plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
        sees_all = is_plain and batches_are_plain and not _is_part_of_a_rank(loader.dataset)
        watched = WatchedLoader(program_line(), workers, sees_all, pins)
        object.__setattr__(loader, _WATCHED, watched)
        self.loaders.append(watched)

    def take(self, count: int, *, are_of_step: bool = False) -> list[WatchedLoader]:
        """The loader of each of the first `count` batches since this was asked last."""
        batches, self.fetched = self.fetched[:count], self.fetched[count:]
        for each in batches:
            each.is_of_steps |= are_of_step
        return batches


def _is_part_of_a_rank(dataset: Any) -> bool:
    """Whether a program split its rows over ranks itself: as many as each rank may have."""
    if not isinstance(dataset, Subset) or not distributed.is_initialized():
        return False
    return len(dataset) * distributed.get_world_size() <= len(dataset.dataset)  # type: ignore[arg-type]


class _WithoutWorkers(dataloader._MultiProcessingDataLoaderIter):
    """What a library gets that makes an iterator for workers itself (fastai): one without them."""

    def __new__(cls, loader: Any) -> Any:
        before = {name: vars(loader)[name] for name in ALONE if name in vars(loader)}
        vars(loader).update({name: ALONE[name] for name in before})
        try:
            return dataloader._SingleProcessDataLoaderIter(loader)
        finally:
            vars(loader).update(before)


@contextlib.contextmanager
def making_batches_here(watch: LoaderWatch) -> Iterator[None]:
    """Make the batches of all data loaders in the program's own process, and time them."""
    originals = DataLoader.__init__, _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    init_loader, init_iterator, next_batch = originals

    def make(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = dict(zip(NAMES, args, strict=False)) | kwargs
        init_loader(loader, dataset, **(kwargs | {name: value for name, value in ALONE.items() if name in kwargs}))
        watch.note(loader, int(kwargs.get("num_workers") or 0), pins=bool(kwargs.get("pin_memory")))

    def begin(iterator: Any, loader: Any) -> None:
        init_iterator(iterator, loader)
        watched = getattr(loader, _WATCHED, None)
        setattr(iterator, _WATCHED, watched)
        if watched is not None:
            with contextlib.suppress(TypeError):
                watched.batches = len(loader)

    def fetch(iterator: Any) -> Any:
        watched = getattr(iterator, _WATCHED, None)
        # a training loader is evaluated, or averages of normalisation are made anew, without gradients
        is_step = watched is not None and watched.is_of_steps and torch.is_grad_enabled()
        if watched is not None and not is_step and watch.ends(watched):
            raise StopIteration
        start, waited = time.perf_counter(), thread_waiting_seconds()
        with timed_apart():
            batch = next_batch(iterator)
        if watched is not None:
            leaves = tree_leaves(batch)
            if watched.pins:
                tree_map_only(torch.Tensor, pin, batch)
            if not any(isinstance(each, FakeTensor) for each in leaves):  # slow to index here, quick on the card's host
                waited = thread_waiting_seconds() - waited  # for other processes, which its machine need not have
                watched.fetches.append(max(0.0, time.perf_counter() - start - waited))
            watched.rows = next((each.shape[0] for each in leaves if getattr(each, "shape", ())), 0)
            watch.fetched.append(watched)
        return batch

    with (
        replaced_everywhere([(dataloader, "_MultiProcessingDataLoaderIter", _WithoutWorkers)]),
        replaced(DataLoader, "__init__", make),
        replaced(_BaseDataLoaderIter, "__init__", begin),
        replaced(_BaseDataLoaderIter, "__next__", fetch),
    ):
        yield
