"""Trace events of a small program: the format, and that their sums are the forecast's."""

import json

import pytest

from forerun.clock.priors import PriorCosts
from forerun.clock.timeline import replay_clock
from forerun.forecasting.program_account import ProgramAccount, StepEvents
from forerun.hardware.catalogue import device
from forerun.memory.overhead import workspace_bytes
from forerun.memory.replay import replay_memory
from forerun.report.chrome_trace import chrome_trace, write_chrome_trace
from forerun.trace import ALLOCATE, FREE, OP, Call, Op, Phase, Storage, TensorSpec, Trace
from forerun.units import MIB, MICRO

SQUARE = TensorSpec((1024, 1024), (1024, 1), "float16", 2 * MIB)
PRODUCT = Call("aten.mm.default", (SQUARE, SQUARE), (), (SQUARE, SQUARE), (SQUARE,), 2 * 1024**3, 4 * MIB, 2 * MIB)
VIEW = Call("aten.t.default", (SQUARE,), (), (SQUARE,), (SQUARE,), 0, 0, 0, is_view=True)
REDUCTION = Call("c10d.allreduce_.default", (SQUARE,), (), (SQUARE,), (SQUARE,), 0, 2 * MIB, 2 * MIB)


def an_account():
    """Two steps alike: a product, a view, its backward product and a reduction, and an update."""
    trace = Trace(calls=[PRODUCT, VIEW, REDUCTION], world_size=2)
    steps = []
    for _ in range(2):
        begin, first = len(trace.events), len(trace.storages)
        work = [(0, Phase.FORWARD), (1, Phase.FORWARD), (0, Phase.BACKWARD), (2, Phase.BACKWARD), (0, Phase.OPTIMIZER)]
        for call, phase in work:
            if call == 0:
                trace.events.append((ALLOCATE, len(trace.storages)))
                trace.storages.append(Storage(2 * MIB, phase))
            trace.lines[len(trace.ops)] = "train.py:7"
            trace.events.append((OP, len(trace.ops)))
            trace.ops.append(Op(call, phase, 0 if phase is not Phase.OPTIMIZER else -1, "Net.head"))
        trace.events += [(FREE, index) for index in range(first, len(trace.storages))]
        steps.append(StepEvents(begin, len(trace.events), is_warm=bool(steps)))
    return ProgramAccount(trace, device("a100-40gb"), "python train.py", tuple(steps))


def test_every_event_has_what_the_format_asks_for(tmp_path):
    path = tmp_path / "t.json"
    write_chrome_trace(path, an_account())
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] in ("M", "X", "C")
        assert event["ts"] >= 0
        assert (event["ph"] == "X") == ("dur" in event)
        assert event.get("dur", 0) >= 0
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert rows.keys() == {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert {"forward", "backward", "optimizer", "communication", "steps"} <= set(rows.values())
    assert "prepare" not in rows.values()


def test_nothing_on_a_row_overlaps():
    rows = {}
    for event in chrome_trace(an_account())["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for times in rows.values():
        times.sort()
        assert all(one[1] <= other[0] + 1e-3 for one, other in zip(times, times[1:], strict=False))


def test_kernels_of_a_warm_step_are_the_forecast_device_time():
    account = an_account()
    events = chrome_trace(account)["traceEvents"]
    step = next(e for e in events if e["name"] == "step 2 (warm)" and e["pid"] == 1)
    kernels = [e for e in events if e.get("cat") == "kernel" and e["ts"] >= step["ts"] - 1e-3]
    by_row = {row: sum(e["dur"] for e in kernels if e["tid"] == row) * MICRO for row in (1, 2, 3)}
    warm = account.steps[-1]
    trace = account.trace
    part = Trace(calls=trace.calls, ops=trace.ops, storages=trace.storages, events=trace.events[warm.begin : warm.end])
    phases = replay_clock(part, PriorCosts(account.device, world_size=2)).phases
    assert by_row[1] == pytest.approx(phases.forward_seconds, rel=1e-4)
    assert by_row[2] == pytest.approx(phases.backward_seconds, rel=1e-4)
    assert by_row[3] == pytest.approx(phases.optimizer_seconds, rel=1e-4)
    assert max(e["ts"] + e["dur"] for e in kernels) == pytest.approx(step["ts"] + step["dur"], abs=1e-3)


def test_counters_reach_the_peaks_of_the_replay():
    account = an_account()
    samples = [e for e in chrome_trace(account)["traceEvents"] if e["ph"] == "C"]
    replay = replay_memory(account.trace, workspace_bytes=workspace_bytes(account.device), passes=1)
    most = {name: max(e["args"]["bytes"] for e in samples if e["name"] == name) for name in
            ("memory allocated", "memory reserved")}  # fmt: skip
    assert most == {"memory allocated": replay.peak_allocated_bytes, "memory reserved": replay.peak_reserved_bytes}


def test_operators_say_where_they_come_from():
    kernel = next(e for e in chrome_trace(an_account())["traceEvents"] if e.get("cat") == "kernel")
    assert kernel["name"] == "mm"
    assert kernel["args"]["line"] == "train.py:7"
    assert kernel["args"]["module"] == "Net.head"
    assert kernel["args"]["inputs"] == ["float16[1024, 1024]"] * 2
    assert "recomputed" not in kernel["args"]
