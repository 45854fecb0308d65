"""Who makes the batches: how many workers, and which micro-batches they are asked for."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import _utils, dataloader

from forerun.train.loader import MOST_DEATHS, MOST_WORKERS, Loader, LoaderWarning, coming_steps, workers_needed


@pytest.mark.parametrize(
    ("data", "compute", "processors", "workers"),
    [
        (0.001, 1.0, 8, 0),
        (0.1, 1.0, 8, 1),
        (1.0, 1.0, 8, 2),
        (2.0, 1.0, 8, 3),
        (9.0, 1.0, 8, 7),
        (9.0, 1.0, 1, 1),
        (900.0, 1.0, 64, MOST_WORKERS),
        (1.0, 0.0, 4, 3),
    ],
)
def test_enough_workers_that_a_batch_is_ready_in_time(data, compute, processors, workers):
    assert workers_needed(data, compute, processors) == workers


def test_steps_still_to_come_in_order():
    orders = {0: [[[0, 1], [2]], [[3]]], 1: [[[3], [1]], [[0, 2]]]}
    epochs = []

    def order(epoch):
        epochs.append(epoch)
        return orders[epoch]

    positions = iter([(1, 0, 1), (2, 1, 0), (3, 1, 1)])
    assert list(coming_steps(positions, order)) == [[[3]], [[3], [1]], [[0, 2]]]
    assert epochs == [0, 1]


class Squares:
    """Batches of squares; a worker that is asked for one of `deadly` is killed, as often as the file has letters."""

    def __init__(self, deadly=(), lives=None):
        self.deadly, self.lives = set(deadly), lives

    def collate(self, indices):
        is_worker = torch.utils.data.get_worker_info() is not None
        if is_worker and self.deadly & set(indices) and (left := self.lives.read_text()):
            self.lives.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return {"squares": torch.tensor([n * n for n in indices])}


def take_all(loader, steps):
    """What a loader gives for steps of micro-batches, in order."""
    batches = []
    for number, step in enumerate(steps):
        batches += [batch["squares"].tolist() for batch in loader.take(step, lambda at=number: iter(steps[at:]))]
    loader.close()
    return batches


# the iterator that is given up may hear of a worker's death only in its own destructor, which can raise to nobody
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function _MultiProcessingDataLoaderIter.__del__")
@pytest.mark.parametrize("deaths", [1, MOST_DEATHS])
def test_workers_that_die_are_started_again_and_no_batch_is_lost(tmp_path, monkeypatch, deaths):
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))
    steps = [[[0, 1], [2]], [[3, 4], [5]], [[6], [7, 8]], [[9], [10]]]
    lives = tmp_path / "lives"
    lives.write_text("x" * deaths)
    settings = SimpleNamespace(data=SimpleNamespace(workers=2))
    before = signal.getsignal(signal.SIGCHLD)
    loader = Loader(Squares({5}, lives), settings, "cpu")
    with pytest.warns(LoaderWarning, match="no batch is lost") as notes:
        batches = take_all(loader, steps)
    assert batches == take_all(Loader(Squares(), SimpleNamespace(data=SimpleNamespace(workers=0)), "cpu"), steps)
    assert len(notes) == deaths
    assert loader.workers == (0 if deaths == MOST_DEATHS else 2)
    assert signal.getsignal(signal.SIGCHLD) == before
