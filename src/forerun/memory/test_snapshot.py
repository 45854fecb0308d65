"""Histories in PyTorch's format, made by hand: no GPU is here to record one."""

import pickle

import pytest

from forerun.errors import BadData
from forerun.memory.snapshot import read_snapshot, replay_snapshot
from forerun.units import MIB


def entry(action, address, size, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream, "frames": [], "time_us": 0}


HISTORY = [
    entry("free_completed", 7, 512),  # from before the history began
    entry("segment_alloc", 0, 20 * MIB),
    entry("alloc", 0, 4 * MIB),
    entry("alloc", 4 * MIB, 6 * MIB),
    entry("free_requested", 0, 4 * MIB),
    entry("free_completed", 0, 4 * MIB),
    entry("alloc", 0, 3 * MIB),
    entry("segment_alloc", 100 * MIB, 32 * MIB),
    entry("alloc", 100 * MIB, 31 * MIB),
    entry("free_completed", 100 * MIB, 31 * MIB),
    entry("segment_free", 100 * MIB, 32 * MIB),
]


def write_snapshot(path, content):
    path.write_bytes(pickle.dumps(content))
    return path


def test_a_history_gives_the_segments_that_pytorch_took(tmp_path):
    snapshot = read_snapshot(write_snapshot(tmp_path / "s.pickle", {"segments": [], "device_traces": [HISTORY]}))
    replay = replay_snapshot(snapshot)
    assert (replay.requests, replay.unknown_frees) == (4, 1)
    assert replay.allocated_bytes == (6 + 4 + 32) * MIB  # 3 and 31 MiB get 4 and 32: too little is left to split off
    assert replay.simulated_reserved_bytes == replay.recorded_reserved_bytes == 52 * MIB


class Evil:
    def __reduce__(self):
        return (print, ("loaded",))


@pytest.mark.parametrize(
    ("content", "message"),
    [({"device_traces": [Evil()]}, "plain data"), ({"segments": []}, "no device_traces"), ([1], "no device_traces")],
)
def test_anything_else_is_refused_and_not_run(tmp_path, capsys, content, message):
    with pytest.raises(BadData, match=message):
        read_snapshot(write_snapshot(tmp_path / "s.pickle", content))
    assert capsys.readouterr().out == ""


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(b"not a pickle")
    with pytest.raises(BadData, match="not a memory snapshot"):
        read_snapshot(path)


def test_a_device_without_history_is_an_error():
    with pytest.raises(BadData, match="device 1"):
        replay_snapshot({"device_traces": [HISTORY]}, device=1)
