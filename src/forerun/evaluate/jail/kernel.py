"""Linux calls that Python 3.11 does not offer: namespaces, mounts, Landlock, capabilities, system-call filters.

Thin wrappers by ctypes; each raises OSError with the call's name. Numbers of calls: `system_calls.toml`. Constants: the
headers named beside them (Linux 6.1 to 6.12). Only the sandbox's own processes use this, before any other's code runs.
"""

import ctypes
import os
import platform
import struct
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000  # linux/sched.h
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 1 << 28, 1 << 29, 1 << 30
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18  # linux/mount.h
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38  # linux/prctl.h
SECCOMP_MODE_FILTER = 2
READ_FILE, READ_DIR = 1 << 2, 1 << 3  # linux/landlock.h
FS_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Landlock's file-system rights by ABI; later ones have as many as 5."""

_libc = ctypes.CDLL(None, use_errno=True)


@cache
def call_numbers(group: str) -> Mapping[str, int]:
    """Numbers of the calls of a group on this machine, those it does not have left out; empty on an unknown machine."""
    column = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
    table = tomllib.loads(Path(__file__).with_name("system_calls.toml").read_text(encoding="utf-8"))[group]
    return {} if column is None else {name: row[column] for name, row in table.items() if row[column] >= 0}


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _call(name: str, *arguments: object) -> int:
    number = call_numbers("used").get(name)
    if number is None:
        raise OSError(0, f"{name}: unknown on {platform.machine()}")
    plain = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *plain), name)


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    strings = [text.encode() for text in (source, target, kind, options)]
    _call("mount", *strings[:3], flags, strings[3] or None)


def protect_mounts(path: str) -> None:
    """Make the mount at `path` and all below it read-only, without devices and without set-user-ID programs."""
    attributes = struct.pack("QQQQ", 1 | 2 | 4, 0, 0, 0)  # MOUNT_ATTR_RDONLY | NOSUID | NODEV, Linux 5.12
    _call("mount_setattr", -100, path.encode(), 0x8000, attributes, len(attributes))  # AT_FDCWD, AT_RECURSIVE


def change_root(path: str) -> None:
    """Make `path` the root; what was there is no longer reachable."""
    os.chdir(path)
    _call("pivot_root", b".", b".")  # the old root lies over the new one: pivot_root(2), "pivot_root(".", ".")"
    _call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def set_no_new_privileges() -> None:
    """No call gains rights any more, in this process and its children."""
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def die_with_parent(signal_number: int) -> None:
    """Send this signal to this process when its parent ends."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def drop_capabilities() -> None:
    """Give up all capabilities of this process."""
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))  # _LINUX_CAPABILITY_VERSION_3, linux/capability.h


def install_filter(program: bytes) -> None:
    """Put every later system call of this process through a BPF program (8 bytes an instruction)."""
    content = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(content))  # struct sock_fprog
    _checked(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def landlock_abi() -> int:
    """Version of Landlock that the kernel offers.

    Raises:
        OSError: it offers none.
    """
    return _call("landlock_create_ruleset", None, 0, 1)


def restrict_files(readable: Mapping[str, int]) -> int:
    """Allow no file-system access but the rights listed by path, no TCP, no signals to outside; returns the ABI.

    Raises:
        OSError: the kernel has no Landlock, or it is off.
    """
    abi = landlock_abi()
    rights = (1 << FS_RIGHTS[min(abi, max(FS_RIGHTS))]) - 1
    fields = (rights, 3, 3)[: 3 if abi >= 6 else 2 if abi >= 4 else 1]  # handled_access_fs, _net; scoped
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = _call("landlock_create_ruleset", attributes, len(attributes), 0)
    for path, allowed in readable.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            _call("landlock_add_rule", ruleset, 1, struct.pack("=Qi", allowed & rights, descriptor), 0)
        finally:
            os.close(descriptor)
    set_no_new_privileges()
    _call("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)
    return abi
