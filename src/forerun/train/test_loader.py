"""Who makes the batches: how many workers, and which micro-batches they are asked for."""

import pytest

from forerun.train.loader import MOST_WORKERS, coming_steps, workers_needed


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
