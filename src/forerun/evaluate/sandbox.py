"""Run programs that a model wrote, each in processes that the kernel shuts in, with tests that run in another process.

A program passes when its tests run to their end without an exception. Tests and program share no memory: the program's
process answers calls with plain values and is told no expected ones, so there is no verdict in it to forge (`jail/`).

| wall | what it does | needed |
|---|---|---|
| namespaces | own processes, users, network, IPC; a read-only root with nothing in it but the library | one of |
| Landlock | reads the standard library and nothing else, no TCP, no signals to outside | the two |
| filter of system calls | a list of about 70; no new process, socket, writing, mount, tracing | yes |
| limits | CPU, address space, descriptors, wall clock; nobody's rights where started as root | always |

Where the kernel offers less, `NotSupported` says what is missing, and `allow_unsafe` runs with what there is.

**Not protected from:** faults of the kernel itself; time and processor load that programs of other cells can see; with
Landlock alone, names and sizes of files outside. For code of an enemy use a virtual machine around it.
"""

import array
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, Self, cast, get_args

from forerun.errors import NotSupported
from forerun.evaluate.jail.warden import GRACE_SECONDS, REQUEST, VERDICT_BYTES
from forerun.units import MIB

START = "import sys; sys.path.append({root!r}); from forerun.evaluate.jail import warden; sys.path.pop(); warden.main()"
START_SECONDS = 60.0
"""Longest that the sandbox takes to start, on a machine that does much else."""

Status = Literal["passed", "failed", "refused", "timeout", "memory", "died"]
Wall = Literal["namespaces", "landlock", "filter"]


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """Resources that one program may use."""

    wall_seconds: float = 30.0
    """Ends what sleeps. Ten times the processor's, so that a busy machine decides nothing: of 974 references of MBPP
    one, of 3 to 5 s, met a limit of 6 s where six to nine processes shared two processors."""
    cpu_seconds: int = 3
    """Processor time of one program, which ends what computes."""
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
        """Whether its tests ran to their end."""
        return self.status == "passed"


@dataclass(frozen=True, kw_only=True)
class ProgramTest:
    """A program, and the tests that judge it."""

    program: str
    tests: str = ""
    """Without tests `passed` is the program's own word that it reached its end."""
    prelude: str = ""
    """Text of the task that tests use: imports, helpers. Never of the program."""
    names: Sequence[str] = ()
    """Globals of the program that tests use."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Those of them that are modules, by name; tests use their own copy where the program imported it too."""


@dataclass(frozen=True)
class Isolation:
    """Walls that stand around programs; each wall that does not with the reason."""

    missing: Mapping[Wall, str]
    landlock_abi: int

    @property
    def is_enough(self) -> bool:
        """Whether an enemy's program cannot reach files, processes or networks of this machine."""
        return "filter" not in self.missing and not {"namespaces", "landlock"} <= self.missing.keys()

    def __str__(self) -> str:
        walls = [wall for wall in get_args(Wall) if wall not in self.missing]
        without = [f"no {wall} ({reason})" for wall, reason in self.missing.items()]
        return ", ".join([*walls, "limits", *without])


class Sandbox:
    """A sandbox that is started once and runs many programs.

    Raises:
        NotSupported: the kernel offers too little isolation and `allow_unsafe` is false.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        *,
        allow_unsafe: bool = False,
        without: Sequence[Wall | Literal["belt", "nobody"]] = (),
    ) -> None:
        """`without` leaves walls out, as kernels do that lack them.

        Two are no walls: the audit hook (`belt`), and the user nobody that root's programs become (`nobody`).
        """
        if os.name != "posix":
            raise NotSupported("The sandbox needs the processes of Linux or macOS; found Windows. Use WSL.")
        self.limits = limits or SandboxLimits()
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="sandbox-")
        os.chmod(self._folder.name, 0o755)
        self._control, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", START.format(root=root), str(theirs.fileno()),
                 json.dumps({"without": list(without)})],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={},
                cwd=self._folder.name,
                start_new_session=True, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.isolation = self._account()
            if not self.isolation.is_enough and not allow_unsafe:
                raise _not_enough(self.isolation)
            undo.pop_all()

    def _account(self) -> Isolation:
        self._control.settimeout(START_SECONDS)
        content = b""
        with contextlib.suppress(TimeoutError):
            while not content.endswith(b"\n"):
                chunk = self._control.recv(VERDICT_BYTES)
                if not chunk:
                    break
                content += chunk
        self._control.settimeout(None)
        if not content.endswith(b"\n"):
            raise NotSupported(
                f"The sandbox is a Python process ({sys.executable}) that shuts itself in; it ended before it did "
                f"(exit code {self._process.poll()}). Use a Python that this user may run and read."
            )
        account = json.loads(content)
        missing = {wall: str(account[wall]) for wall in get_args(Wall) if account[wall]}
        return Isolation(cast("Mapping[Wall, str]", missing), int(account["landlock_abi"]))

    @property
    def process_id(self) -> int:
        """Process that all of the sandbox's processes descend from."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox with all that runs in it."""
        self._control.close()
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def run_all(self, tests: Sequence[ProgramTest], workers: int | None = None) -> list[SandboxResult]:
        """The outcome of each program; as many at a time as the machine has processors unless `workers` says."""
        with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
            return list(pool.map(self.run, tests))

    def run(self, test: ProgramTest) -> SandboxResult:
        """The outcome of one program. May be called from several threads."""
        limits, (ours, theirs) = self.limits, socket.socketpair()
        tests = {"tests": test.tests, "prelude": test.prelude, "names": list(test.names), "modules": dict(test.modules)}
        with ours, theirs, _file(test.program.encode("utf-8", "surrogatepass")) as program, \
             _file(json.dumps(tests).encode()) as grading:  # fmt: skip
            descriptors = array.array("i", [program.fileno(), grading.fileno(), theirs.fileno()])
            request = REQUEST.pack(limits.wall_seconds, limits.cpu_seconds, limits.memory_bytes, limits.open_files)
            with self._lock:
                self._control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            theirs.close()
            ours.settimeout(limits.wall_seconds + 2 * GRACE_SECONDS + START_SECONDS)
            verdict = ours.recv(VERDICT_BYTES).decode(errors="replace")
        status, _, message = verdict.partition("\n")
        if status not in get_args(Status):
            return SandboxResult("died", "the sandbox gave no verdict")
        return SandboxResult(cast("Status", status), message)


def _file(content: bytes) -> "tempfile._TemporaryFileWrapper[bytes]":
    file = tempfile.TemporaryFile()  # noqa: SIM115 - its caller closes it
    file.write(content)
    file.flush()
    return cast("tempfile._TemporaryFileWrapper[bytes]", file)


def _not_enough(isolation: Isolation) -> NotSupported:
    return NotSupported(
        f"Programs that a model wrote run where the kernel shuts them in: by a filter of system calls, and by "
        f"namespaces or Landlock. Found {isolation}. Use a Linux of 5.13 or later with Landlock, or one that allows "
        f"user namespaces; or add --unsafe to run them with the limits and walls that there are, with your rights."
    )


@cache
def isolation_here() -> Isolation:
    """Walls that this machine offers this user; the answer is kept."""
    with Sandbox(allow_unsafe=True) as sandbox:
        return sandbox.isolation


def require_isolation(*, allow_unsafe: bool) -> None:
    """Refuse now what would be refused when the first program is run.

    Raises:
        NotSupported: the kernel offers too little isolation and `allow_unsafe` is false.
    """
    if not allow_unsafe and not isolation_here().is_enough:
        raise _not_enough(isolation_here())
