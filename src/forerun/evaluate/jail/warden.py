"""The sandbox's own process: shut in once, then a fresh pair of processes for each program and its tests.

    forerun ─┬─ entry ── warden ─┬─ keeper ─┬─ grader   runs the tests, knows the verdict
             │  (stays outside)  │          └─ first ── cell   runs the program, in a namespace of processes of its own
             └─ socket ──────────┘

`python -I -S -B -c … DESCRIPTOR` with a socket: first this side says which walls stand, as one JSON line; then each
request brings limits (`REQUEST`) and three descriptors: a file with the program, one with its tests (JSON), and where
the verdict goes. The program's process is forked before anybody here has read a test. A verdict is sent once the
program's processes are gone: the kernel kills all of a namespace with its process 1, and waits for them.
"""

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import NamedTuple, NoReturn

from forerun.evaluate.jail import cell, grader, values, walls

REQUEST = struct.Struct("!4d")
"""Wall-clock seconds, CPU seconds, bytes of address space, open files."""
STATUS = struct.Struct("i")
"""How a program's process ended, as waitpid(2) says it."""
VERDICT_BYTES = 4096
FAULT = 70
"""Exit code where the sandbox's own part of a process failed (EX_SOFTWARE of sysexits.h)."""
GRACE_SECONDS = 1.0
"""Seconds that a program's process has to end after it closed its pipe."""
PRELOADED = (
    "abc", "array", "bisect", "bz2", "calendar", "cmath", "collections", "collections.abc", "contextlib", "copy",
    "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "inspect",
    "io", "itertools", "json", "lzma", "math", "numbers", "operator", "random", "re", "secrets", "statistics", "string",
    "textwrap", "threading", "time", "types", "typing", "unicodedata", "zlib", "_strptime",
)  # fmt: skip
"""Modules that programs import, among them those that need libraries from outside the standard library's folder."""


class Standing(NamedTuple):
    """Which walls stand around a program."""

    namespaces: bool
    filter: bool
    belt: bool
    """The audit hook of `cell.py`."""
    keeps_user: bool
    """Whether programs stay the user that started them, who may read more than nobody."""


def main() -> NoReturn:
    """Shut this process in as far as the kernel does it, say how far, and run programs until the socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    wish = json.loads(sys.argv[2])
    for name in PRELOADED:
        importlib.import_module(name)
    for group in ("allowed", "absent", "killed", "used"):
        walls.kernel.call_numbers(group)  # read while its file can be
    walls.end_with_parent()
    why_no_namespaces = "not asked for" if "namespaces" in wish["without"] else walls.enter_namespaces()
    warden = os.fork()
    if warden:
        control.close()
        os.waitpid(warden, 0)
        os._exit(0)
    walls.end_with_parent()
    abi, why_no_landlock = (0, "not asked for") if "landlock" in wish["without"] else walls.shut_files()
    why_no_filter = "not asked for" if "filter" in wish["without"] else walls.calls_are_filtered()
    account = {
        "namespaces": why_no_namespaces, "landlock": why_no_landlock, "landlock_abi": abi, "filter": why_no_filter,
    }  # fmt: skip
    gc.freeze()  # no collection in a child looks at what was here before, and so copies its pages
    control.sendall(json.dumps(account).encode() + b"\n")
    try:
        left_out = wish["without"]
        standing = Standing(not why_no_namespaces, not why_no_filter, "belt" not in left_out, "nobody" in left_out)
        _serve(control, standing)
    finally:
        os._exit(0)


def _serve(control: socket.socket, standing: Standing) -> None:
    """Fork a keeper for each request; reap those that ended."""
    keepers: set[int] = set()
    while True:
        if select.select([control], [], [], 0.5 if keepers else None)[0]:
            request, descriptors = _receive(control)
            if len(request) < REQUEST.size or len(descriptors) != 3:
                return
            keeper = os.fork()
            if keeper == 0:
                control.close()
                _keep(REQUEST.unpack(request), (descriptors[0], descriptors[1], descriptors[2]), standing)
            keepers.add(keeper)
            for descriptor in descriptors:
                os.close(descriptor)
        keepers -= {pid for pid in keepers if os.waitpid(pid, os.WNOHANG)[0]}


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    request, ancillary, _, _ = control.recvmsg(REQUEST.size, socket.CMSG_SPACE(3 * descriptors.itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return request, list(descriptors)


def _keep(request: tuple[float, ...], descriptors: tuple[int, int, int], standing: Standing) -> NoReturn:
    """Start both sides, wait for the verdict or the deadline, kill both, and only then send the verdict."""
    program, tests, answer = descriptors
    walls.end_with_parent()
    deadline, limits = time.monotonic() + request[0], (request[1], request[2], request[3])
    to_cell, to_grader, verdict = os.pipe(), os.pipe(), os.pipe()
    grading = os.fork()
    if grading == 0:
        _be_grader(tests, verdict[1], (to_grader[0], to_cell[1]), limits, standing)
    os.close(tests)
    status = os.pipe()
    if standing.namespaces:
        walls.kernel.unshare(walls.kernel.CLONE_NEWPID)
    running = os.fork()
    if running == 0:
        _keep_open(program, to_cell[0], to_grader[1], status[1])
        _be_first(program, (to_cell[0], to_grader[1]), status[1], limits, standing)
    for descriptor in (*to_cell, *to_grader, verdict[1], status[1]):
        os.close(descriptor)
    content = _read(verdict[0], deadline)
    is_late = not content and time.monotonic() >= deadline
    is_cell_closed = content.startswith(b"gone\n")
    ended = _read(status[0], time.monotonic() + GRACE_SECONDS, STATUS.size) if is_cell_closed and not is_late else b""
    _end(running, 0)
    grader_status = _end(grading, GRACE_SECONDS if not content and not is_late else 0)
    if is_late:
        content = b"timeout\nstopped at the wall clock"
    elif is_cell_closed:
        content = _ending(STATUS.unpack(ended)[0] if ended else None)
    elif not content:
        content = _ending(grader_status)
    os.write(answer, content)
    os._exit(0)


def _read(descriptor: int, deadline: float, most: int = VERDICT_BYTES) -> bytes:
    content = b""
    while len(content) < most:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or not select.select([descriptor], [], [], seconds_left)[0]:
            break
        chunk = os.read(descriptor, most - len(content))
        if not chunk:
            break
        content += chunk
    return content


def _end(pid: int, grace_seconds: float) -> int | None:
    """Exit status of a child that ends within its grace; None where it had to be killed. It is reaped either way."""
    until = time.monotonic() + grace_seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() >= until:
            break
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _ending(status: int | None) -> bytes:
    """The verdict on a process that ended before its end was due."""
    if status is None:
        return b"timeout\nstopped at the wall clock"
    if os.WIFEXITED(status):
        return f"died\nexit code {os.WEXITSTATUS(status)} before the end of the program".encode()
    number = os.WTERMSIG(status)
    if number == signal.SIGSYS:
        return b"refused\na system call that programs may not make"
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return b"timeout\nstopped at the CPU limit"
    return f"died\n{signal.strsignal(number) or f'signal {number}'}".encode()


def _be_first(
    program: int, pipes: tuple[int, int], status: int, limits: tuple[float, float, float], standing: Standing
) -> NoReturn:
    """Process 1 of a namespace: its child runs the program, since the kernel ignores most signals to process 1."""
    walls.end_with_parent()
    running = os.fork()
    if running == 0:
        os.close(status)
        _be_cell(program, pipes, limits, standing)
    for descriptor in pipes:
        os.close(descriptor)
    os.write(status, STATUS.pack(os.waitpid(running, 0)[1]))
    os._exit(0)


def _be_cell(program: int, pipes: tuple[int, int], limits: tuple[float, float, float], standing: Standing) -> NoReturn:
    exit_code, parent = FAULT, os.getppid()
    try:
        content = _content(program)
        _keep_open(*pipes)
        walls.shut_in(limits, parent, is_filtered=standing.filter, keeps_user=standing.keeps_user)
        cell.run_cell(content.decode("utf-8", "surrogatepass"), values.MessagePipe(*pipes), is_watched=standing.belt)
        exit_code = 0
    finally:
        os._exit(exit_code)


def _be_grader(
    tests: int, verdict: int, pipes: tuple[int, int], limits: tuple[float, float, float], standing: Standing
) -> NoReturn:
    exit_code, parent = FAULT, os.getppid()
    try:
        job = json.loads(_content(tests))
        _keep_open(verdict, *pipes)
        walls.shut_in(limits, parent, is_filtered=standing.filter, keeps_user=standing.keeps_user)
        outcome = grader.grade(
            job["tests"], values.MessagePipe(*pipes), prelude=job["prelude"], names=job["names"], modules=job["modules"]
        )
        grader.report(outcome, verdict)
        exit_code = 0
    finally:
        os._exit(exit_code)


def _content(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def _keep_open(*descriptors: int) -> None:
    """Close every descriptor but the three standard ones, which lead nowhere, and these."""
    last = 2
    for descriptor in sorted(descriptors):
        os.closerange(last + 1, descriptor)
        last = descriptor
    os.closerange(last + 1, 4096)
