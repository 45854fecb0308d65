"""Trainers whose libraries are not here, by the variables that they have."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

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


@pytest.mark.parametrize(
    ("changes", "evaluations", "checkpoints"),
    [
        ({"eval_strategy": "epoch", "save_strategy": "epoch"}, 2, 2),
        ({"eval_strategy": "epoch", "eval_on_start": True}, 3, 0),
        ({"eval_strategy": "epoch", "eval_delay": 2}, 1, 0),
        ({"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 15}, 4, 3),
        ({"eval_strategy": "steps", "eval_steps": 0.3, "eval_delay": 20}, 3, 0),  # 24, 36 and the last
        ({"eval_strategy": "steps", "eval_steps": 15, "save_strategy": "best"}, 3, 3),
    ],
)
def test_a_trainer_evaluates_and_saves_behind_its_last_step_too(changes, evaluations, checkpoints):
    """DefaultFlowCallback of transformers 5.24."""
    trainer = type("Trainer", (), {"__module__": "transformers.trainer"})()
    trainer.state = SimpleNamespace(max_steps=40, num_train_epochs=2)
    usual = {"eval_strategy": "no", "eval_steps": None, "logging_steps": 5, "save_strategy": "no", "save_steps": 5}
    trainer.args = SimpleNamespace(**usual | changes, eval_batch_size=8, world_size=1)
    trainer.eval_dataset = [0] * 16
    length = length_of_trainer({"self": trainer}, "train")
    assert length is not None
    assert (length.evaluation_batches, length.checkpoints) == (2 * evaluations, checkpoints)


class Rows(IterableDataset):
    """Of which nobody says how many there are."""

    def __iter__(self):
        return iter([1, 2])


TRAINER = {
    "estimated_stepping_batches": 100, "max_epochs": 5, "num_training_batches": 40, "accumulate_grad_batches": 2,
    "num_val_batches": [8, 2], "check_val_every_n_epoch": 1, "val_check_batch": 40, "checkpoint_callbacks": [],
}  # fmt: skip


def saves(top=1, steps=0, epochs=1, last=None, at_end=None):
    return SimpleNamespace(
        save_top_k=top, save_last=last, _every_n_train_steps=steps, _every_n_epochs=epochs,
        _save_on_train_epoch_end=at_end,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "validations", "checkpoints"),
    [
        ({}, 5, 0), ({"check_val_every_n_epoch": 2}, 2, 0), ({"val_check_batch": 10}, 20, 0),
        ({"check_val_every_n_epoch": None, "val_check_batch": 100}, 2, 0), ({"max_epochs": -1}, 5, 0),
        ({"val_check_batch": float("inf")}, 5, 0), ({"checkpoint_callbacks": [saves()]}, 5, 5),
        ({"checkpoint_callbacks": [saves(steps=30, epochs=0), saves(epochs=2)]}, 5, 3 + 2),
        ({"checkpoint_callbacks": [saves(), saves(at_end=True)], "val_check_batch": 10}, 20, 20 + 5),
        ({"checkpoint_callbacks": [saves(top=0)]}, 5, 0), ({"checkpoint_callbacks": [saves(top=0, last=True)]}, 5, 5),
    ],
)  # fmt: skip
def test_lightning_says_how_often_it_validates_and_saves(changes, validations, checkpoints):
    """An epoch is 20 steps of two of 40 batches each."""
    loop = type("Fit", (), {"__module__": "lightning.pytorch.loops.fit_loop"})()
    loop.trainer = SimpleNamespace(**TRAINER | changes)
    length = length_of_trainer({"self": loop}, "advance")
    assert length is not None
    assert (length.steps, length.steps_per_epoch, length.evaluation_batches) == (100, 20, 10 * validations)
    assert length.checkpoints == checkpoints


@pytest.mark.parametrize(
    ("by_epoch", "interval", "validations", "saves_last", "checkpoints"),
    [(True, 1, 6, True, 6), (True, 4, 2, True, 2), (True, 4, 2, False, 1), (False, 50, 5, True, 5)],
)
def test_mmengine_says_how_often_it_validates_and_saves(by_epoch, interval, validations, saves_last, checkpoints):
    """Six epochs of 40 batches or 240 iterations, two of them a step; what is due comes at the end as well."""
    hook = type("CheckpointHook", (), {})()
    hook.by_epoch, hook.interval, hook.save_last = by_epoch, interval, saves_last
    loop = type("Loop", (), {"__module__": "mmengine.runner.loops"})()
    validation = SimpleNamespace(dataloader=range(7))
    wrapper = SimpleNamespace(_accumulative_counts=2)
    loop.runner = SimpleNamespace(optim_wrapper=wrapper, _val_loop=validation, hooks=[hook, SimpleNamespace()])
    loop.max_iters, loop.max_epochs, loop.val_begin, loop.val_interval = 240, 6 if by_epoch else 1, 1, interval
    if not by_epoch:
        loop.dataloader_iterator = iter(())
    length = length_of_trainer({"self": loop}, "run_epoch")
    assert length is not None
    assert (length.steps, length.steps_per_epoch) == (120, 20 if by_epoch else None)
    assert (length.evaluation_batches, length.checkpoints) == (7 * validations, checkpoints)
    validation.dataloader = DataLoader(Rows())
    endless = length_of_trainer({"self": loop}, "run_epoch")
    assert endless is not None
    assert (endless.steps, endless.evaluation_batches) == (120, 0)
