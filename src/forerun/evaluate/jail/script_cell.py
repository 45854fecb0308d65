"""Run a command shut in: for training scripts that somebody pasted, which need libraries and threads, and no more.

    python -m forerun.evaluate.jail.script_cell FOLDER COMMAND…

Namespaces of processes, users, mounts and networks of its own (it sees no other process and reaches no network), and
Landlock: it reads Python, its libraries and this package, and writes to FOLDER alone. Both must stand, or the command
is not begun: exit code `NO_WALLS`, with the reason on stderr. Everything ends with this process.

Not walled: processor time of others (`LIMITS` bounds each process), and system calls, which `cell.py` filters.
"""

import os
import resource
import sys
from pathlib import Path
from typing import NoReturn

from forerun.evaluate.jail import kernel, walls

NO_WALLS = 77
EXECUTE = 1 << 0  # linux/landlock.h
READ = kernel.READ_FILE | kernel.READ_DIR | EXECUTE
EVERYTHING = (1 << 16) - 1
WRITE_FILE = 1 << 1
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/sys/devices/system/cpu")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
OF_PROC = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/sys/kernel")
"""What of /proc can be read where the kernel lets nobody mount one of the own namespace."""
LIMITS = {
    "RLIMIT_CPU": 900, "RLIMIT_AS": 16 * 2**30, "RLIMIT_FSIZE": 2**30, "RLIMIT_NOFILE": 1024, "RLIMIT_NPROC": 512,
    "RLIMIT_CORE": 0,
}  # fmt: skip
"""CPU seconds, bytes of address space and of a file of each process; processes and threads of all."""


def main() -> NoReturn:
    """Shut a child in, run the command in it, and end as it ends."""
    folder, command = sys.argv[1], sys.argv[2:]
    walls.end_with_parent()
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    try:
        walls.unshare_as_root_inside(flags)
    except OSError as error:
        _refuse("namespaces", error)
    child = os.fork()
    if child == 0:
        walls.end_with_parent()
        try:
            _shut_in(folder)
        except OSError as error:
            _refuse("Landlock", error)
        os.execv(command[0], command)
    status = os.waitpid(child, 0)[1]
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _shut_in(folder: str) -> None:
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    try:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
        process_files: tuple[str, ...] = ("/proc",)
    except OSError:  # a container hides parts of its /proc, and so no new one may be mounted
        process_files = OF_PROC
    package = Path(__file__).parents[2]
    own = [sys.prefix, sys.base_prefix, str(package), *_library_paths()]
    rights = {path: READ for path in (*SYSTEM, *process_files, *own) if os.path.exists(path)}
    rights.setdefault(str(package.parent), kernel.READ_DIR)  # Python lists it before it imports the package
    rights |= {path: kernel.READ_FILE | WRITE_FILE for path in DEVICES if os.path.exists(path)}
    rights = {path: right if os.path.isdir(path) else right & ~kernel.READ_DIR for path, right in rights.items()}
    os.chdir(folder)
    kernel.restrict_files(rights | {folder: EVERYTHING})
    kernel.drop_capabilities()
    for name, value in LIMITS.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def _library_paths() -> list[str]:
    """Where installed packages are; of other folders on the path nothing is shown."""
    return [path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages"))]


def _refuse(wall: str, error: OSError) -> NoReturn:
    print(f"{wall}: {error.strerror or error}", file=sys.stderr, flush=True)
    os._exit(NO_WALLS)


if __name__ == "__main__":
    main()
