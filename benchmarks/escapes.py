"""Does a program get out of the sandbox? The list of `escape_cases.py`, against each set of walls that kernels offer.

    python -m benchmarks.escapes                 as this user, and as nobody where this user is root
    python -m benchmarks.escapes --without landlock

The audit hook is off, so that what is tried meets the kernel. A case escapes when its tests pass: they compare with a
secret that only a program outside can read, or with a word that the program says where its effect happened. After all
cases the outside is looked at: files, processes, connections, host name, clock. Prints one table and one JSON line.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import escape_cases

from forerun.evaluate.jail import kernel
from forerun.evaluate.sandbox import ProgramTest, Sandbox, SandboxLimits

METHOD = 1
LIMITS = SandboxLimits(wall_seconds=1.5, cpu_seconds=1, memory_bytes=256 * 1024**2)
WORKERS = 3
MARK = "left-by-escapes"
LEVELS: dict[str, tuple[str, ...]] = {
    "all walls": (),
    "without namespaces": ("namespaces",),
    "without Landlock": ("landlock",),
}
NOBODY = "65534"


@dataclass(frozen=True)
class Escape:
    """One case and how it ended."""

    kind: str
    name: str
    status: str
    message: str
    got_out: bool


@dataclass
class Outside:
    """What programs must not reach: a secret, a folder, a process, two sockets; and what they must not change."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    connections: int = 0

    def __post_init__(self) -> None:
        self.witness, self.secret = self.folder / "witness", self.folder / "secret"
        self.witness.mkdir()
        self.witness.chmod(0o777)
        self.secret.write_text(self.token)
        self.secret.chmod(0o600)
        self.victim = subprocess.Popen(["sleep", "600"])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + MARK + self.token)
        self.abstract.listen()
        self.clock = time.time() - time.monotonic()
        self.host = socket.gethostname()

    def fill(self, text: str) -> str:
        """The text with this machine's words for its capitals."""
        words = {
            "{SECRET}": str(self.secret), "{WITNESS}": str(self.witness), "{VICTIM}": str(self.victim.pid),
            "{GRADER}": str(os.getpid()), "{PORT}": str(self.listener.getsockname()[1]),
            "{ABSTRACT}": MARK + self.token, "{TOKEN!r}": repr(self.token), "'{TOKEN}'": repr(self.token),
            "{CALLS}": repr({n: c for g in ("killed", "used", "absent") for n, c in kernel.call_numbers(g).items()}),
        }  # fmt: skip
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    def damages(self) -> list[str]:
        """What is not as it was."""
        shared = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
        checks = {
            "the secret was changed": self.secret.read_text() != self.token or self.secret.stat().st_mode & 0o77,
            "files in the folder": os.listdir(self.witness),
            "files in shared memory": [name for name in shared if MARK in name],
            "a file in /tmp": os.path.exists(f"/tmp/{MARK}"),
            "a process outside was ended": self.victim.poll() is not None,
            "a connection": any(_has_connection(server) for server in (self.listener, self.abstract)),
            "the host name": socket.gethostname() != self.host,
            "the clock": abs(time.time() - time.monotonic() - self.clock) > 1.0,
        }
        return [name for name, is_damage in checks.items() if is_damage]

    def close(self) -> None:
        """End what was started."""
        self.victim.kill()
        self.victim.wait()
        self.listener.close()
        self.abstract.close()


def _has_connection(server: socket.socket) -> bool:
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        server.accept()[0].close()
        return True
    return False


@contextlib.contextmanager
def outside() -> Iterator[Outside]:
    """Something to reach."""
    os.environ["TOKEN_OF_ESCAPES"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        world = Outside(Path(folder))
        try:
            yield world
        finally:
            world.close()


def case_test(kind: str, program: str, world: Outside) -> ProgramTest:
    """A case with the tests that only an escape passes."""
    raw = escape_cases.RAW_CALLS if "libc" in program or "call(" in program or "ctypes" in program else ""
    text = world.fill(escape_cases.PRELUDE + raw + program)
    if kind != "forged":
        return ProgramTest(program=text, tests=f"assert str(target()).strip() == {world.token!r}", names=["target"])
    nonce = secrets.token_hex(16)
    tests = f"x = target()\nassert target() == {nonce!r} or x == {nonce!r} or {nonce!r} in x"
    return ProgramTest(program=text, tests=tests, names=["target"])


def run_cases(without: Sequence[str], world: Outside, kinds: Sequence[str] = tuple(escape_cases.CASES)) -> list[Escape]:
    """Cases against the walls that are left, and what they left outside."""
    cases = [(kind, name, program) for kind in kinds for name, program in escape_cases.CASES[kind].items()]
    with Sandbox(LIMITS, without=[*without, "belt"]) as sandbox:  # type: ignore[list-item]
        with ThreadPoolExecutor(WORKERS) as pool:
            results = list(pool.map(lambda case: sandbox.run(case_test(case[0], case[2], world)), cases))
        children = _left(sandbox.process_id)
    escapes = [
        Escape(kind, name, result.status, result.message, result.passed)
        for (kind, name, _), result in zip(cases, results, strict=True)
    ]
    left = [*world.damages(), *([f"processes left: {children}"] if children else [])]
    return escapes + [Escape("outside", damage, "", "", True) for damage in left]


def _descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if stat[0] != "Z":  # keepers that the warden reaps with its next request
                parents.setdefault(int(stat[1]), []).append(int(name))
    found, queue = [], [pid]
    while queue:
        queue += parents.get(queue[0], [])
        found.append(queue.pop(0))
    return found


def _left(pid: int) -> list[int]:
    """Processes of a sandbox beside its entry and its warden, after those that only sent their verdict have ended."""
    until = time.monotonic() + 1.0
    while (left := _descendants(pid)[2:]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def as_nobody(arguments: Sequence[str]) -> list[dict[str, object]]:
    """The same cases in a Python that nobody may read, as a user without rights; rows of its JSON line."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        library = Path(os.__file__).parent
        ignored = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3",
                                         "ensurepip", "tkinter", "config-*", "turtledemo", "pydoc_data")  # fmt: skip
        shutil.copytree(library, home / "lib" / library.name, ignore=ignored)
        executable = home / "bin" / "python3"
        executable.parent.mkdir()
        shutil.copy(os.path.realpath(sys.executable), executable)
        root = Path(__file__).parents[1]
        for name in ("src/forerun/evaluate", "benchmarks"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(
                root / name, home / name, ignore=shutil.ignore_patterns("[!ejs]*.json*", "scoreboard", "zoo*")
            )
        for name in ("__init__", "errors", "units"):
            shutil.copy(root / f"src/forerun/{name}.py", home / "src" / "forerun")
        libraries = [str(p) for p in Path(sysconfig.get_config_var("LIBDIR") or "/").glob("libpython3*.so*")]
        for path in libraries:
            shutil.copy(path, home / "lib")
        result = subprocess.run(
            ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", str(executable), "-S", "-m",
             "benchmarks.escapes", *arguments],
            env={"PYTHONPATH": f"{home / 'src'}:{home}", "LD_LIBRARY_PATH": str(home / "lib"), "PYTHONHOME": str(home)},
            capture_output=True, text=True, cwd=home,
        )  # fmt: skip
        if result.returncode not in (0, 4):
            raise RuntimeError(result.stderr[-2000:])
        return json.loads(result.stdout.splitlines()[-1])["escapes"]


def main() -> None:
    """Run all cases at every level, print the table and one JSON line; exit code 4 where one got out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=list(LEVELS), action="append", help="walls that stand (default: each set)")
    parser.add_argument("--nobody", action="store_true", help="also as a user without rights (needs root and setpriv)")
    options = parser.parse_args()
    levels = options.level or list(LEVELS)
    rows: list[dict[str, object]] = []
    user = "root" if os.geteuid() == 0 else "user"
    for level in levels:
        start = time.monotonic()
        with outside() as world:
            escapes = run_cases(LEVELS[level], world)
        rows += [{"user": user, "level": level, **asdict(escape)} for escape in escapes]
        print(f"{user}, {level}: {time.monotonic() - start:.1f} s")
    if options.nobody:
        rows += as_nobody([argument for level in levels for argument in ("--level", level)])
    table = Counter((row["user"], row["level"], row["kind"]) for row in rows)
    out = Counter((row["user"], row["level"], row["kind"]) for row in rows if row["got_out"])
    print(f"{'user':5} {'walls':20} {'kind':10} {'tried':>5} {'got out':>7}")
    for (who, level, kind), number in table.items():
        print(f"{who!s:5} {level!s:20} {kind!s:10} {number:5} {out[(who, level, kind)]:7}")
    for row in rows:
        if row["got_out"]:
            print(f"GOT OUT: {row['user']}, {row['level']}: {row['kind']}: {row['name']}")
    print(json.dumps({"method": METHOD, "tried": len(rows), "got_out": sum(out.values()), "escapes": rows}))
    sys.exit(4 if out else 0)


if __name__ == "__main__":
    main()
