"""The list of system calls that a program in the sandbox may make, as a BPF program for seccomp.

Allowed calls are listed; what is in no list fails with EPERM. Files are opened for reading only, signals go to the own
process only, limits are read and not set. What no function under test asks for by accident ends the process (SIGSYS).

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; include/uapi/linux/{seccomp,audit,bpf_common}.h.
"""

import errno
import os
import platform
import struct

from forerun.evaluate.jail.kernel import call_numbers

KILL, ALLOW, REFUSE = 0x80000000, 0x7FFF0000, 0x00050000
"""SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO, to which the error's number is added."""
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF_LD|W|ABS, and BPF_JMP with JEQ, JGE and JSET against a constant, BPF_RET."""
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
X32 = 1 << 30
"""Begin of the numbers of x86's x32 calls, which would pass by the list."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
FCNTL = (0, 1, 2, 3, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: none that sends signals or seals files."""


def _instruction(code: int, constant: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, constant)


def _answer(action: int) -> bytes:
    return _instruction(RETURN, action)


def _when(number: int, *body: bytes) -> bytes:
    """`body`, which ends by answering, for the call of that number; the number is loaded before and after."""
    return _instruction(EQUAL, number, 0, len(body)) + b"".join(body)


def _argument(index: int, *, high: bool = False) -> bytes:
    """Load half of a 64-bit argument (little-endian)."""
    return _instruction(LOAD, ARGUMENTS + 8 * index + (4 if high else 0))


def filter_program(own_process: int) -> bytes:
    """The BPF program for the process of that id, as it sees itself.

    Raises:
        OSError: calls of this kind of machine are not listed.
    """
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not listed")
    parts = [
        _instruction(LOAD, ARCHITECTURE), _instruction(EQUAL, architecture, 1, 0), _answer(KILL),
        _instruction(LOAD, NUMBER), _instruction(AT_LEAST, X32, 0, 1), _answer(KILL),
    ]  # fmt: skip
    for name, number in call_numbers("used").items():
        parts += _limited(name, number, own_process)
    for group, action in (("allowed", ALLOW), ("absent", REFUSE | errno.ENOSYS), ("killed", KILL)):
        parts += [_when(number, _answer(action)) for number in call_numbers(group).values()]
    return b"".join([*parts, _answer(REFUSE | errno.EPERM)])


def _limited(name: str, number: int, own_process: int) -> list[bytes]:
    """Instructions for a call that is allowed with certain arguments."""
    refuse, allow = _answer(REFUSE | errno.EPERM), _answer(ALLOW)
    if name in ("open", "openat"):
        flags = _argument(1 if name == "open" else 2)
        return [_when(number, flags, _instruction(ANY_BIT, WRITES, 0, 1), refuse, allow)]
    if name in ("kill", "tgkill"):
        own = _instruction(EQUAL, own_process, 1, 0)
        return [_when(number, _argument(0), own, refuse, allow)]
    if name == "prlimit64":  # reading only: new_limit is a null pointer
        empty = _instruction(EQUAL, 0, 1, 0)
        return [_when(number, _argument(2), empty, refuse, _argument(2, high=True), empty, refuse, allow)]
    if name == "fcntl":
        tests = [_instruction(EQUAL, command, len(FCNTL) - place, 0) for place, command in enumerate(FCNTL)]
        return [_when(number, _argument(1), *tests, refuse, allow)]
    if name == "ioctl":
        return [_when(number, _answer(REFUSE | errno.ENOTTY))]
    if name in ("clone", "fork"):
        return [_when(number, _answer(REFUSE | errno.EAGAIN))]
    return []
