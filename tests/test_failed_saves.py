"""Checkpoints that cannot be written: the one before stays, the run goes on, and the last one is an error."""

import pytest
import torch

from forerun.errors import CheckpointNotWritten
from forerun.train import checkpoint
from kill_driver import run, tiny_training, training_of


def test_a_full_disk_keeps_the_checkpoint_before_and_the_run_goes_on(tmp_path, monkeypatch):
    """The write of step 6 fails as a full disk fails; step 9 is written again, and nothing half-made is left."""
    training = tiny_training(
        tmp_path, checkpoints={"every_steps": 3, "keep_last": 10}, schedule={"epochs": 4, "max_steps": 9}
    )
    real, failures = checkpoint.save_file, []

    def full(tensors, path):
        if training.reports[-1].step == 6:
            failures.append(path)
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.warns(UserWarning, match=r"step 6 could not be written.*No space left.*step-00000003.*goes on"):
        run(training)
    assert failures
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003", "step-00000009"]
    assert training.saver.written_checkpoints == 2


def test_a_last_checkpoint_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    training = tiny_training(tmp_path, schedule={"max_steps": 4})

    def denied(tensors, path):
        if training.reports[-1].step == 4:
            raise PermissionError(13, "Permission denied")
        real(tensors, path)

    real = checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", denied)
    with pytest.raises(CheckpointNotWritten, match=r"step 4.*step-00000003"):
        run(training)


def test_a_copy_for_the_background_does_not_change_with_the_weights(tmp_path):
    training = training_of(tmp_path, "background")
    contents = checkpoint.contents_of(training.step, {"step": 1}, copied=True)
    before = {name: tensor.clone() for name, tensor in contents.tensors[checkpoint.MODEL].items()}
    with torch.no_grad():
        for parameter in training.step.model.parameters():
            parameter.add_(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in contents.tensors[checkpoint.MODEL].items())


def test_a_background_write_that_fails_is_told_at_the_next_save(tmp_path, monkeypatch):
    real = checkpoint.save_file

    def full(tensors, path):
        if len(list(tmp_path.glob("step-*"))) == 1:
            raise OSError(28, "No space left on device")
        real(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", full)
    training = training_of(tmp_path, "background")
    with (
        pytest.warns(UserWarning, match=r"step \d+ could not be written.*No space left"),
        pytest.raises(CheckpointNotWritten, match="step 28"),
    ):
        run(training)
    assert training.saver.written_checkpoints == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
