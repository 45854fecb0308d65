"""Run a command in a view of the file system of its own: whatever anything in it writes is thrown away at its end.

Linux does it (a mount namespace, overlayfs), so that programs that a training program starts and libraries that write
below Python (SQLite, Arrow, tokenizers) are covered, and what one of them writes the others read. The process forks
before PyTorch is loaded; the side outside writes the files that the user asked for, removes the overlay and ends as
the inside did. Where the kernel refuses (some containers), the command runs as it is, and Python's functions on files
are redirected (`virtual/cuda/files.py`).
Not covered: files directly in folders in which others are mounted, such as `/`; /dev, /proc, /run and /sys.
"""

import contextlib
import errno
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from pathlib import Path

from forerun.errors import FilesNotWritten

UNTOUCHED = ("/dev", "/proc", "/run", "/sys")
PSEUDO = frozenset(["binfmt_misc", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "proc", "ramfs", "sysfs"])
"""Kinds of file systems that hold no files of users."""
MOST_PLACES = 400
"""Overlays of one view; a machine with more mounts is not covered."""
NAMESPACE = "/proc/self/ns/mnt"
VARIABLE = "FORERUN_FILE_VIEW"
"""Environment of processes that the inside starts: the namespace whose files are thrown away."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP)

_outside: list[connection.Connection] = []
"""Inside: the way to the process outside."""


def is_inside() -> bool:
    """Whether what this process writes is thrown away by the kernel."""
    return sys.platform == "linux" and os.environ.get(VARIABLE) == os.readlink(NAMESPACE)


def run_inside(run: Callable[[], None]) -> None:
    """Run `run` in a view of its own where that can be had, and end as it ended; else run it here."""
    if sys.platform != "linux" or is_inside() or threading.active_count() > 1:
        return run()
    folder = tempfile.mkdtemp(prefix="forerun-")
    try:
        here, there = connection.Pipe()
        child = os.fork()
        if child == 0:
            here.close()
            _come_in(folder, there)
            return run()
        there.close()
        is_ready = here.recv_bytes() == b""
        status = _wait(child, here)
    finally:
        if _outside == []:
            _remove(folder)
    if is_ready:
        _end_as(status)
    return run()


def hand_out(path: Path) -> None:
    """Have the process outside write a file that is there inside; nothing to do where there is one side alone.

    Raises:
        FilesNotWritten: it cannot be written there.
    """
    for way in _outside:
        way.send_bytes(os.fsencode(path))
        way.send_bytes(path.read_bytes())
        reason = way.recv_bytes().decode()
        if reason:
            raise FilesNotWritten(f"{path} cannot be written: {reason}.")


def _come_in(folder: str, way: connection.Connection) -> None:
    """Enter the view, and tell the outside; where that fails this process ends."""
    from forerun.evaluate.jail import kernel

    try:
        kernel.die_with_parent(signal.SIGKILL)
        _enter(folder)
    except OSError as error:
        way.send_bytes(str(error).encode() or b"refused")
        os._exit(0)
    os.environ[VARIABLE] = os.readlink(NAMESPACE)
    _outside.append(way)
    way.send_bytes(b"")


def _enter(folder: str) -> None:
    """Cover every place of the file system by an overlay that writes to `folder`.

    Raises:
        OSError: the kernel refuses, or the view could not be written to where the place itself can.
    """
    from forerun.evaluate.jail import kernel

    working = os.getcwd()
    usual = {working, tempfile.gettempdir(), os.path.expanduser("~")}
    folders = {each: os.stat(each).st_dev for each in usual if os.access(each, os.W_OK)}
    options = _leave_namespaces(working)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    places = covering_places(list(mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))))
    if len(places) > MOST_PLACES:
        raise OSError(errno.ENOSPC, f"{len(places)} places to cover")
    _cover_all(places, folder, options)
    os.chdir(working)
    for each, before in folders.items():
        if os.stat(each).st_dev == before:
            raise OSError(errno.EXDEV, f"{each} is not covered")
        tempfile.TemporaryFile(dir=each).close()


def _leave_namespaces(working: str) -> str:
    """Enter a namespace of mounts, with one of users where that needs it; the options of overlays in it."""
    from forerun.evaluate.jail import kernel

    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
        return ""
    except PermissionError:
        if not _belongs_to(working, (user, group)):  # an overlay cannot copy files of users without a number in there
            raise
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    return ",userxattr"  # Documentation/filesystems/overlayfs.rst (6.1): its notes in a user's own namespace


def _belongs_to(folder: str, owner: tuple[int, int]) -> bool:
    """Whether a folder and all that is in it belongs to a user and group, given by their numbers."""
    with os.scandir(folder) as entries:
        every = [os.stat(folder), *(entry.stat(follow_symlinks=False) for entry in entries)]
    return all((each.st_uid, each.st_gid) == owner for each in every)


def _cover_all(places: Sequence[str], folder: str, options: str) -> None:
    from forerun.evaluate.jail import kernel

    layers = f"/proc/self/fd/{os.open(folder, os.O_PATH)}"  # the path itself will lead into the view
    is_any = False
    for number, place in enumerate(places):
        try:
            _cover(place, f"{layers}/{number}", options)
            is_any = True
        except OSError:
            if not _can_be_written(place):
                continue
            if is_any:
                raise
            # what is an overlay itself, as in containers, cannot take what is written: memory does
            kernel.mount("none", folder, "tmpfs", 0)
            layers = f"/proc/self/fd/{os.open(folder, os.O_PATH)}"
            _cover(place, f"{layers}/{number}", options)


def _can_be_written(place: str) -> bool:
    """Whether somebody here could write to a place that cannot be covered; a boot partition is no place of programs."""
    if place.startswith("/boot"):
        return False
    with contextlib.suppress(OSError):
        return any(os.access(each, os.W_OK) for each in (place, *(entry.path for entry in os.scandir(place))))
    return False


def _cover(place: str, layer: str, options: str) -> None:
    from forerun.evaluate.jail import kernel

    for part in ("upper", "work"):
        os.makedirs(f"{layer}/{part}", exist_ok=True)
    shutil.copystat(place, f"{layer}/upper")  # the mode of the whole is that of the upper folder: /tmp's sticky bit
    names = f"lowerdir={_escaped(place)},upperdir={_escaped(layer)}/upper,workdir={_escaped(layer)}/work"
    kernel.mount("overlay", place, "overlay", 0, names + options)


def _escaped(path: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\,:" else letter for letter in path)


def mount_points(text: str) -> Iterator[tuple[str, str]]:
    """Path and kind of each mount of a `mountinfo` (proc(5)), whose blanks are octal numbers."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        path = before.split(" ")[4].encode("utf-8").decode("unicode_escape").encode("latin-1").decode("utf-8")
        yield path, after.split(" ")[0]


def covering_places(mounts: Sequence[tuple[str, str]]) -> list[str]:
    """Folders that together hold every file of users, none of them with a mount below it: overlays do not see those."""
    kinds = dict(mounts)

    def within(folder: str) -> Iterator[str]:
        kind, below = kinds.get(folder), [path for path in kinds if path.startswith(folder.rstrip("/") + "/")]
        if folder in UNTOUCHED or kind in PSEUDO:
            return
        if kind == "autofs":  # to list it would mount what is not there yet
            inside = [each for each in below if not any(each.startswith(f"{path}/") for path in below)]
            yield from (place for each in sorted(inside) for place in within(each))
        elif not os.path.isdir(folder) or os.path.islink(folder):
            return
        elif not below:
            yield folder
        else:
            with contextlib.suppress(PermissionError):
                for name in sorted(os.listdir(folder)):
                    yield from within(os.path.join(folder, name))

    return list(within("/"))


def _wait(child: int, way: connection.Connection) -> int:
    """Write what is handed out until the inside ends; its status, as of waitpid(2)."""
    before = {number: signal.signal(number, lambda signum, _: os.kill(child, signum)) for number in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells both of us
    ended = os.pidfd_open(child)
    try:
        is_over = False
        while not is_over:
            is_over = ended in connection.wait([way, ended])
            with contextlib.suppress(EOFError):
                while way.poll():
                    _write_out(way)
        return os.waitpid(child, 0)[1]
    finally:
        os.close(ended)
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_out(way: connection.Connection) -> None:
    path, content = Path(os.fsdecode(way.recv_bytes())), way.recv_bytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        way.send_bytes(b"")
    except OSError as error:
        way.send_bytes((error.strerror or str(error)).encode())


def _end_as(status: int) -> None:
    """End this process as another one ended: with its exit code, or by its signal."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL has no handler to take back
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.waitstatus_to_exitcode(status))


def _remove(folder: str) -> None:
    """Remove what was written; overlayfs leaves folders that nobody may read (`work/work`)."""
    for unreadable in Path(folder).glob("*/work/*"):
        with contextlib.suppress(OSError):
            unreadable.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
