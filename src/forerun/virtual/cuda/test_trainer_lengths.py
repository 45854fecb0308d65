"""Trainers whose libraries are not here, by the variables that they have."""

from types import SimpleNamespace

import numpy as np
import pytest

from forerun.virtual.cuda.trainer_lengths import length_of_trainer

KERAS = type("Model", (), {"__module__": "keras.src.models.model"})
FIT = {"self": KERAS(), "epochs": 20, "epoch_iterator": SimpleNamespace(num_batches=50), "batch_size": 128,
       "validation_batch_size": None, "validation_steps": None, "validation_freq": 1, "validation_data": None}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({}, 0),
        ({"validation_data": (1, 2), "val_x": np.zeros((9000, 28, 28))}, 20 * 71),
        ({"validation_data": (1, 2), "val_x": np.zeros((9000, 28)), "validation_batch_size": 1000}, 20 * 9),
        ({"validation_data": (1, 2), "val_x": {"image": [np.zeros((256, 3))]}, "validation_freq": 4}, 5 * 2),
        ({"validation_data": range(13), "val_x": range(13)}, 20 * 13),
        ({"validation_data": (1, 2), "val_x": np.zeros((9000, 2)), "validation_steps": 3}, 20 * 3),
        ({"validation_data": iter(()), "val_x": iter(())}, 0),
    ],
)
def test_fit_of_keras_has_its_validation(changes, batches):
    length = length_of_trainer(FIT | changes, "fit")
    assert length is not None
    assert (length.steps, length.steps_per_epoch, length.evaluation_batches) == (1000, 50, batches)
    assert length_of_trainer(FIT | changes, "evaluate") is None
