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


@pytest.mark.parametrize(("kind", "early"), [("EarlyStopping", True), ("History", False)])
def test_a_callback_that_can_end_training_is_named(kind, early):
    callbacks = [type(kind, (), {})()]
    lightning = type("Fit", (), {"__module__": "lightning.pytorch.loops.fit_loop"})()
    lightning.trainer = SimpleNamespace(estimated_stepping_batches=40, max_epochs=2, callbacks=callbacks)
    trainer = type("Trainer", (), {"__module__": "transformers.trainer"})()
    trainer.state = SimpleNamespace(max_steps=40, num_train_epochs=2)
    trainer.args = SimpleNamespace(eval_strategy="no", eval_steps=None, logging_steps=5, save_strategy="no", save_steps=5,
                                   eval_batch_size=8, world_size=1)  # fmt: skip
    trainer.eval_dataset, trainer.callback_handler = None, SimpleNamespace(callbacks=callbacks)
    keras = FIT | {"callbacks": SimpleNamespace(callbacks=callbacks)}
    for variables in ({"self": lightning}, {"self": trainer}, keras):
        length = length_of_trainer(variables, "fit")
        assert length is not None
        assert length.source.endswith("at most: EarlyStopping can end it") == early
