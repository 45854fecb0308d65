"""Shut a process and its children in: namespaces with a root of their own, Landlock; and the last door of each child.

Order: `enter_namespaces` in a fresh process, then `shut_files`, then for each program `shut_in`. What the kernel
refuses is reported in words, not raised: the side outside decides what is enough (`sandbox.py`).
"""

import contextlib
import os
import resource
import signal
import stat
import sys
import sysconfig

from forerun.evaluate.jail import call_filter, kernel

NOBODY = 65534
ROOT_AT = "/tmp"  # noqa: S108 - a mount point of the own namespace; nothing is written to what is below it
EMPTY = "/program"
"""Working folder of programs."""
NOT_THE_LIBRARY = ("site-packages", "dist-packages", "__pycache__")


def library_folders() -> list[str]:
    """Folders of the standard library, and of its compiled part where that lies elsewhere."""
    library = os.path.dirname(os.path.realpath(os.__file__))
    compiled = os.path.realpath(sysconfig.get_config_var("DESTSHARED") or library)
    return [library] if compiled.startswith(library) or not os.path.isdir(compiled) else [library, compiled]


def enter_namespaces() -> str:
    """New namespaces of every kind but time, and a read-only root with nothing but the standard library in it.

    The next child is process 1 of the new process namespace. Returns why not where that failed; empty where it worked.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has none"
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= kernel.CLONE_NEWCGROUP
    try:
        unshare_as_root_inside(flags)
        _build_root()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def unshare_as_root_inside(flags: int) -> None:
    """Enter the namespaces as their root: nobody is mapped too where the parent may map it."""
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
        return
    target, (reading, writing) = os.getpid(), os.pipe()
    mapper = os.fork()
    if mapper == 0:  # stays outside, where mapping more than one's own id is allowed
        os.close(writing)
        is_told, ids = bool(os.read(reading, 1)), f"0 0 1\n{NOBODY} {NOBODY} 1"
        with contextlib.suppress(OSError):
            if is_told:
                _write(f"/proc/{target}/gid_map", ids)
                _write(f"/proc/{target}/uid_map", ids)
        os._exit(0)
    os.close(reading)
    try:
        kernel.unshare(flags | kernel.CLONE_NEWUSER)
        os.write(writing, b"x")
    finally:
        os.close(writing)
        os.waitpid(mapper, 0)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _write(path: str, content: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, content.encode())
    finally:
        os.close(descriptor)


def _build_root() -> None:
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    # opened before the new root lies over ROOT_AT, which may hold the library itself
    sources = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in library_folders()}
    kernel.mount("none", ROOT_AT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=256k,mode=755")
    os.mkdir(ROOT_AT + EMPTY)
    for path, descriptor in sources.items():
        os.makedirs(ROOT_AT + path, exist_ok=True)
        kernel.mount(f"/proc/self/fd/{descriptor}", ROOT_AT + path, "", kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)
        for name in NOT_THE_LIBRARY[:2]:
            if os.path.isdir(f"{ROOT_AT}{path}/{name}"):
                kernel.mount("none", f"{ROOT_AT}{path}/{name}", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k")
    kernel.protect_mounts(ROOT_AT)
    kernel.change_root(ROOT_AT)
    os.chdir(EMPTY)


def shut_files() -> tuple[int, str]:
    """Let this process and its children read the standard library and nothing else: Landlock's version, and why not."""
    if sys.platform != "linux":
        return 0, f"{sys.platform} has none"
    readable = {os.getcwd(): kernel.READ_DIR}
    for folder in library_folders():
        readable[folder] = kernel.READ_DIR
        for entry in os.scandir(folder):
            if entry.name not in NOT_THE_LIBRARY:
                is_folder = entry.is_dir()
                readable[entry.path] = kernel.READ_FILE | (kernel.READ_DIR if is_folder else 0)
    try:
        return kernel.restrict_files(readable), ""
    except OSError as error:
        return 0, str(error.strerror or error)


def calls_are_filtered() -> str:
    """Why a child could not be given the filter of system calls; empty where it could."""
    if sys.platform != "linux":
        return f"{sys.platform} has none"
    child = os.fork()
    if child == 0:
        try:
            kernel.set_no_new_privileges()
            kernel.install_filter(call_filter.filter_program(os.getpid()))
            os.unlink("/")  # in no list
        except OSError as error:
            os._exit(0 if error.errno == 1 else error.errno or 255)
        os._exit(255)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        return ""
    return os.strerror(os.waitstatus_to_exitcode(status)) if os.WIFEXITED(status) else "the filter's test was killed"


def shut_in(limits: tuple[float, float, float], parent: int, *, is_filtered: bool, keeps_user: bool) -> None:
    """Close the last door of this process: limits (CPU seconds, memory bytes, open files), nobody's rights, the filter.

    It ends with its `parent`. `keeps_user` leaves the rights of a user root, as where nobody could read the library.
    """
    cpu_seconds, memory_bytes, open_files = (int(value) for value in limits)
    for name, value in (
        ("RLIMIT_CPU", cpu_seconds), ("RLIMIT_AS", memory_bytes), ("RLIMIT_FSIZE", 0), ("RLIMIT_NOFILE", open_files),
        ("RLIMIT_NPROC", 0), ("RLIMIT_CORE", 0), ("RLIMIT_MEMLOCK", 0), ("RLIMIT_MSGQUEUE", 0),
    ):  # fmt: skip
        if hasattr(resource, name):
            resource.setrlimit(getattr(resource, name), (value, value))
    if not keeps_user and os.geteuid() == 0 and all(_everybody_reads(folder) for folder in library_folders()):
        with contextlib.suppress(OSError):  # a namespace that maps one user has nobody else to become
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            kernel.drop_capabilities()
        kernel.set_no_new_privileges()
    end_with_parent()  # setresuid clears it
    if os.getppid() != parent:
        os._exit(1)
    if is_filtered:
        kernel.install_filter(call_filter.filter_program(os.getpid()))


def _everybody_reads(folder: str) -> bool:
    """Whether the folder can be read without rights: every one on the way is open to all."""
    while folder != "/":
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return False
        folder = os.path.dirname(folder)
    return True


def end_with_parent() -> None:
    """Be killed when the parent ends, where the system offers that."""
    if sys.platform == "linux":
        kernel.die_with_parent(signal.SIGKILL)
