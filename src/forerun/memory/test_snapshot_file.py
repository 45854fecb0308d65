"""Snapshots that we write, read by our reader and by PyTorch's own tools."""

import pickletools

from torch.cuda import _memory_viz as viz

from forerun.memory.history import play_history
from forerun.memory.snapshot import read_snapshot, replay_snapshot
from forerun.memory.snapshot_file import PICKLE_PROTOCOL, snapshot_of, write_snapshot
from forerun.trace import ALLOCATE, FREE, OP, Call, Category, Op, Phase, Storage, Trace
from forerun.units import MIB

KNOWN_OPCODES = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET",
    "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE", "BINPUT",
    "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "SETITEM",
}  # fmt: skip
"""Those that the page can read: `unpickle` in torch/utils/viz/MemoryViz.js (PyTorch 2.13)."""


def a_step():
    """A parameter of 3 MiB, a product of 700 bytes that is freed, and one request that the card refuses."""
    calls = [Call("aten.empty.default", (), (), (), (), 0, 0, 0), Call("aten.mm.default", (), (), (), (), 10, 0, 0)]
    return Trace(
        calls=calls,
        ops=[Op(0, Phase.FORWARD, 0, ""), Op(1, Phase.FORWARD, 0, "Net.head")],
        storages=[Storage(3 * MIB, Phase.FORWARD, Category.PARAMETER, name="Net.head.weight"),
                  Storage(700, Phase.FORWARD, freed_in=Phase.FORWARD)],
        events=[(ALLOCATE, 0), (OP, 0), (ALLOCATE, 1), (OP, 1), (FREE, 1)],
        lines={0: "train.py:4", 1: "train.py:9"},
        failures=[(5, 50 * MIB)],
    )  # fmt: skip


def snapshot():
    trace = a_step()
    history = play_history(trace, workspace_bytes=[8 * MIB], capacity_bytes=64 * MIB)
    return snapshot_of(history, trace, [0.0, 0.0, 1e-5, 1e-5, 2e-5])


def test_our_reader_and_pytorch_read_it(tmp_path):
    path = tmp_path / "s.pickle"
    write_snapshot(path, snapshot())
    content = read_snapshot(path)
    replay = replay_snapshot(content)
    assert (replay.requests, replay.unknown_frees) == (3, 0)
    assert replay.simulated_reserved_bytes == replay.recorded_reserved_bytes == 22 * MIB
    assert "total_reserved: 22.0MiB" in viz.segsum(content)
    assert "raise OutOfMemoryError # 50.0MiB requested, 42.0MiB free" in viz.trace(content)
    assert viz.segment_plot(content).count("snapshot.pickle") == viz.trace_plot(content).count("snapshot.pickle") == 1
    lines = viz.memory(content, format_flamegraph=lambda text: text)
    name = "kind:0:parameter;module:0:Net.head.weight;train.py:4:aten.empty.default"
    assert f"stream_0;active_allocated;{name} {3 * MIB}" in lines


def test_the_page_knows_every_opcode_and_keeps_every_number(tmp_path):
    path = tmp_path / "s.pickle"
    write_snapshot(path, snapshot())
    opcodes = list(pickletools.genops(path.read_bytes()))
    assert {opcode.name for opcode, _, _ in opcodes} <= KNOWN_OPCODES
    assert opcodes[0][1] == PICKLE_PROTOCOL <= 4
    assert max(value for _, value, _ in opcodes if isinstance(value, int)) < 2**53  # JavaScript's exact integers


def test_entries_say_when_where_and_what_for():
    entries = snapshot()["device_traces"][0]
    by_action = {(entry["action"], entry["size"]): entry for entry in entries}
    product = by_action["alloc", 700]
    assert [frame["name"] for frame in product["frames"]] == ["aten.mm.default", "Net.head", "forward", "temporary"]
    assert (product["frames"][0]["filename"], product["frames"][0]["line"]) == ("train.py", 9)
    assert (product["time_us"], product["category"]) == (10, "temporary")
    assert by_action["free_requested", 700]["frames"] == product["frames"]
    assert by_action["alloc", 8 * MIB]["category"] == "unknown"  # without one of that name the page fails
    failure = by_action["oom", 50 * MIB]
    assert "addr" not in failure
    assert failure["device_free"] == 42 * MIB
    assert {"action", "addr", "size", "stream", "time_us", "frames"} <= product.keys()


def test_segments_have_the_fields_of_pytorch():
    segments = snapshot()["segments"]
    assert sum(segment["total_size"] for segment in segments) == 22 * MIB
    assert [segment["segment_type"] for segment in segments] == ["large", "small"]
    for segment in segments:
        used = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
        assert segment["allocated_size"] == sum(block["size"] for block in used)
        assert segment["requested_size"] == sum(block["requested_size"] for block in used)
        assert segment["device"] == 0
