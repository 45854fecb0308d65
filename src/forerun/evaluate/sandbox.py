"""Run programs that a model wrote, each in a process of its own that cannot take the machine with it.

A program passes when it runs to its end without an exception; tests are part of it. It gets a wall-clock limit (the
whole session is killed), CPU, memory, file-size, descriptor and process limits of the kernel, an empty environment, an
empty folder, Python without site-packages (`-I -S -B`), an audit hook that refuses writing, deleting, reading
outside the standard library, starting processes and the network, and where the kernel allows it a network namespace
without interfaces. Its output goes nowhere, and success counts only with a token that is made for each run.

**Not protected from:** code written to break out of CPython, which is no security boundary: the hook and the token
live in the process that runs the program, so code that reads the interpreter's own frames and memory can forge a
pass or lift the hook, and then has the rights of the user (nobody's, where started as root). The kernel's limits and
the wall clock still hold then, but for the limit on processes, which does not bind root. Named pipes can be made, file
names and sizes can be seen. For code of an enemy use a container or a virtual machine around it.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from forerun.errors import NotSupported
from forerun.units import MIB

CHILD = Path(__file__).with_name("sandbox_child.py")
REPORT_BYTES = 4096
"""Most bytes of a report; a longer one is not valid JSON once cut."""
GRACE_SECONDS = 1.0
"""Seconds that a process has to end after it closed its report."""

Status = Literal["passed", "failed", "refused", "timeout", "memory", "died"]


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """Resources that one program may use."""

    wall_seconds: float = 6.0
    cpu_seconds: int = 3
    memory_bytes: int = 512 * MIB
    """Most address space in bytes (RLIMIT_AS)."""
    open_files: int = 32


@dataclass(frozen=True)
class SandboxResult:
    """How one program ended."""

    status: Status
    """`refused`: it tried what the sandbox forbids; `died`: its process ended before the program did."""
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it ran to its end."""
        return self.status == "passed"


def run_programs(
    programs: Sequence[str], limits: SandboxLimits | None = None, workers: int | None = None
) -> list[SandboxResult]:
    """The outcome of each program; as many at a time as the machine has processors unless `workers` says."""
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run_program(program, limits), programs))


def run_program(program: str, limits: SandboxLimits | None = None) -> SandboxResult:
    """The outcome of one program.

    Raises:
        NotSupported: this system has no process limits (Windows).
    """
    if os.name != "posix":
        raise NotSupported(
            "The sandbox needs the process limits of Linux or macOS; found Windows. Use WSL or a container."
        )
    limits, token = limits or SandboxLimits(), secrets.token_hex(16)
    reading, channel = os.pipe()
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder, os.fdopen(reading, "rb", buffering=0) as report:
        job = {"program": program, "token": token, "channel": channel, "limits": asdict(limits)}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={}, cwd=folder, start_new_session=True, pass_fds=(channel,),
        )  # fmt: skip
        os.close(channel)
        deadline = time.monotonic() + limits.wall_seconds
        try:
            _hand_over(process, json.dumps(job).encode())
            report_bytes = _report(report.fileno(), deadline)
            late = time.monotonic() >= deadline
            status = None if late else _ending(process.pid)
        finally:
            _kill_session(process)
    return _outcome(report_bytes, token, status)


def _hand_over(process: subprocess.Popen[bytes], job: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
        pipe.write(job)


def _report(descriptor: int, deadline: float) -> bytes:
    """Bytes that the process reports until it closes its end, sends too many, or the deadline passes."""
    content = b""
    while len(content) <= REPORT_BYTES:
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or not select.select([descriptor], [], [], seconds_left)[0]:
            break
        chunk = os.read(descriptor, REPORT_BYTES + 1)
        if not chunk:
            break
        content += chunk
    return content


def _ending(pid: int) -> os.waitid_result | None:
    """Exit status of the process, which stays a zombie (WNOWAIT): its id is not used again before it is killed."""
    until = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < until:
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is not None:
            return status
        time.sleep(0.002)
    return None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _outcome(report_bytes: bytes, token: str, status: os.waitid_result | None) -> SandboxResult:
    try:
        report = json.loads(report_bytes)
        if isinstance(report, dict) and report.get("token") == token:
            return SandboxResult(report["status"], report["said"])
    except (json.JSONDecodeError, UnicodeDecodeError):
        pass
    if status is None:
        return SandboxResult("timeout", "stopped at the wall clock")
    if status.si_code == os.CLD_EXITED:
        return SandboxResult("died", f"exit code {status.si_status} before the end of the program")
    if status.si_status in (signal.SIGXCPU, signal.SIGKILL):
        return SandboxResult("timeout", "stopped at the CPU limit")
    return SandboxResult("died", signal.strsignal(status.si_status) or f"signal {status.si_status}")
