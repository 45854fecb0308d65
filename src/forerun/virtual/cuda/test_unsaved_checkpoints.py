"""Lightning's own checkpoints that were not written are none, any other path is as the program says."""

from types import SimpleNamespace

import pytest

from forerun.virtual.cuda.unsaved_checkpoints import _change


class Connector:
    def _parse_ckpt_path(self, state_fn, ckpt_path, model_provided):
        if ckpt_path == "here.ckpt":
            return ckpt_path
        raise ValueError(f"{state_fn}: no checkpoint {ckpt_path}")


def test_a_checkpoint_that_the_trainer_would_have_written_is_none():
    original = Connector._parse_ckpt_path
    undo = _change(SimpleNamespace(_CheckpointConnector=Connector))
    assert [Connector()._parse_ckpt_path("test", path, True) for path in ("best", None, "here.ckpt")] == [
        None, None, "here.ckpt",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="gone"):
        Connector()._parse_ckpt_path("test", "gone.ckpt", True)
    undo()
    assert Connector._parse_ckpt_path is original
