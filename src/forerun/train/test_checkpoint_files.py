"""A checkpoint's folder is whole or not there, also while it is being taken away."""

import pytest

from forerun.errors import CheckpointDamaged
from forerun.train import checkpoint_files
from forerun.train.checkpoint_files import (
    TEMPORARY,
    checkpoints,
    digest_of,
    manifest_of,
    prune_checkpoints,
    put_in_place,
    seal,
)


def checkpoint(folder, step, content=b"weights"):
    temporary = folder / f"{TEMPORARY}{step}"
    temporary.mkdir()
    (temporary / "model").write_bytes(content)
    seal(temporary, {"format": checkpoint_files.FORMAT, "step": step}, {"model": digest_of(temporary / "model")})
    target = folder / f"step-{step:08d}"
    put_in_place(temporary, target)
    return target


def test_a_kill_while_one_is_pruned_leaves_no_half_of_it(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        newest = checkpoint(tmp_path, step)

    def killed(path):
        next(path.rglob("model")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune_checkpoints(tmp_path, 2, newest)
    assert [manifest_of(path)["step"] for path in checkpoints(tmp_path)] == [2, 3]
    prune_checkpoints(tmp_path, 2, newest)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-00000002", "step-00000003"]


def test_one_is_written_again_over_a_damaged_one(tmp_path):
    path = checkpoint(tmp_path, 5, b"old")
    (path / "model").write_bytes(b"torn")
    with pytest.raises(CheckpointDamaged, match="model does not match"):
        manifest_of(path)
    assert manifest_of(checkpoint(tmp_path, 5))["step"] == 5
    assert len(list(tmp_path.iterdir())) == 1
