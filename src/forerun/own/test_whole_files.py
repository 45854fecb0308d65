"""A kill between writing and moving leaves what was there."""

from pathlib import Path

import numpy as np
import pytest

from forerun.own.token_scores import UNTRAINED, Untrained
from forerun.own.whole_files import write_whole


def kill(*_: object) -> None:
    """What stops a process in the middle."""
    raise KeyboardInterrupt


def test_a_file_is_there_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "scores.json"
    write_whole(path, "first")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            write_whole(path, "second")
    assert path.read_text() == "first"
    write_whole(path, "third")
    assert path.read_text() == "third"


def test_scores_before_training_survive_a_kill_while_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Scores:
        nats = np.array([3.0, 1.0])

        def metrics(self) -> dict[str, float]:
            return {"loss": 2.0}

    monkeypatch.setattr("forerun.own.token_scores.score_tokens", lambda step, data: Scores())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            Untrained(None).score(None, tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / UNTRAINED).exists()
    resumed = Untrained(None)  # type: ignore[arg-type]
    resumed.score(None, tmp_path)  # type: ignore[arg-type]
    again = Untrained(None)  # type: ignore[arg-type]
    again.score(None, tmp_path)  # type: ignore[arg-type]
    assert resumed.scores == again.scores == {"loss": 2.0}
    assert resumed.nats.tolist() == again.nats.tolist() == [3.0, 1.0]  # type: ignore[union-attr]
