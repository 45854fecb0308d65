"""A program's run as Chrome trace events, which Perfetto and chrome://tracing open: `forerun exec --trace FILE`.

Rows: the host that issues, a row of the device for each phase and one for collectives, the steps, and counters of
memory. Times are microseconds from the start of the program. Memory changes when the host asks for it, so the counters
follow the host's clock.
Source: "Trace Event Format", Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from forerun.clock.timeline import OperatorSpan
from forerun.forecasting.program_account import ProgramAccount
from forerun.trace import Call, Phase
from forerun.units import MICRO

HOST, DEVICE = 0, 1
"""Process numbers of the two groups of rows."""
STEP_ROW, HOST_ROW = 0, 1
DEVICE_ROWS = {Phase.FORWARD: 1, Phase.BACKWARD: 2, Phase.OPTIMIZER: 3, Phase.PREPARE: 5}
COMMUNICATION_ROW = 4
Event = dict[str, Any]


def chrome_trace(account: ProgramAccount) -> dict[str, Any]:
    """The document; `traceEvents` holds metadata first, then steps, operators and counters."""
    events = [*_names(account), *_steps(account), *_operators(account), *_memory(account)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"command": account.command, "gpu": account.device.name, "made by": "forerun, from no GPU"},
    }


def write_chrome_trace(path: Path, account: ProgramAccount) -> None:
    """Write the document as JSON."""
    path.write_text(json.dumps(chrome_trace(account), separators=(",", ":"), allow_nan=False), encoding="utf-8")


def _event(phase: str, name: str, process: int, row: int, begin: float = 0.0, **more: Any) -> Event:
    """One event; `begin` in seconds."""
    return {"ph": phase, "name": name, "pid": process, "tid": row, "ts": _microseconds(begin), **more}


def _complete(name: str, process: int, row: int, begin: float, end: float, **more: Any) -> Event:
    """Something that takes time."""
    return _event("X", name, process, row, begin, dur=_microseconds(max(0.0, end - begin)), **more)


def _microseconds(seconds: float) -> float:
    return round(seconds / MICRO, 4)


def _names(account: ProgramAccount) -> Iterator[Event]:
    """Names and order of the rows."""
    for process, name in ((HOST, "host"), (DEVICE, f"{account.device.name} (virtual)")):
        yield _event("M", "process_name", process, 0, args={"name": name})
        yield _event("M", "process_sort_index", process, 0, args={"sort_index": process})
    rows = {(HOST, STEP_ROW): "steps, as the host issues them", (HOST, HOST_ROW): "operators"}
    rows |= {(DEVICE, STEP_ROW): "steps", (DEVICE, COMMUNICATION_ROW): "communication"}
    rows |= {(DEVICE, row): phase.value for phase, row in DEVICE_ROWS.items()}
    used = {(HOST, STEP_ROW), (HOST, HOST_ROW), (DEVICE, STEP_ROW)} | {_row(account, span) for span in account.spans}
    for (process, row), name in rows.items():
        if (process, row) in used:
            yield _event("M", "thread_name", process, row, args={"name": name})
            yield _event("M", "thread_sort_index", process, row, args={"sort_index": row})


def _row(account: ProgramAccount, span: OperatorSpan) -> tuple[int, int]:
    phase = account.trace.ops[span.op].phase
    return DEVICE, COMMUNICATION_ROW if span.is_collective else DEVICE_ROWS[phase]


def _steps(account: ProgramAccount) -> Iterator[Event]:
    for number, (step, spans) in enumerate(account.steps_with_spans, start=1):
        if not spans:
            continue
        name = f"step {number}" + (" (warm)" if step.is_warm else " (warm-up)")
        yield _complete(name, HOST, STEP_ROW, spans[0].issue_begin, spans[-1].issue_end)
        yield _complete(name, DEVICE, STEP_ROW, spans[0].begin, max(span.end for span in spans))


def _operators(account: ProgramAccount) -> Iterator[Event]:
    trace = account.trace
    for span in account.spans:
        op = trace.ops[span.op]
        call = trace.calls[op.call]
        name = call.name.removeprefix("aten.").removesuffix(".default")
        arguments = _arguments(call, op.module, trace.lines.get(span.op, ""), op.recomputed)
        yield _complete(name, HOST, HOST_ROW, span.issue_begin, span.issue_end, cat="host", args=arguments)
        if span.end > span.begin:
            yield _complete(name, *_row(account, span), span.begin, span.end, cat="kernel", args=arguments)


def _arguments(call: Call, module: str, line: str, is_recomputed: bool) -> dict[str, Any]:
    """What a click on an operator shows; nothing that is empty."""
    shapes = [f"{spec.dtype}{list(spec.shape)}" for spec in call.inputs]
    every = {
        "line": line, "module": module, "inputs": shapes, "flops": call.flops, "bytes read": call.bytes_read,
        "bytes written": call.bytes_written, "recomputed": is_recomputed, "waits for the device": call.syncs,
        "as often": call.times if call.times > 1 else 0,
    }  # fmt: skip
    return {name: value for name, value in every.items() if value}


def _memory(account: ProgramAccount) -> Iterator[Event]:
    """The most at each moment at which memory changed."""
    times = account.host_seconds
    changes = ((times[event], allocated, reserved) for event, allocated, reserved in account.history.curve)
    for _, group in groupby(changes, key=lambda change: _microseconds(change[0])):
        moments = list(group)
        for name, column in (("memory allocated", 1), ("memory reserved", 2)):
            most = max(moment[column] for moment in moments)
            yield _event("C", name, HOST, 0, moments[0][0], args={"bytes": most})
