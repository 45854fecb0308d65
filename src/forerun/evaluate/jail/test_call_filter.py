"""The filter's program is run here by a small interpreter of its five instructions."""

import errno
import os
import platform
import struct

import pytest

from forerun.evaluate.jail.call_filter import ALLOW, ARCHITECTURES, KILL, REFUSE, X32, filter_program
from forerun.evaluate.jail.kernel import call_numbers

pytestmark = pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="calls of this machine are not listed")
OWN = 4321
REFUSED = REFUSE | errno.EPERM


def answer(number, *arguments, architecture=None):
    """The action for a call, as the kernel would compute it."""
    data = struct.pack(
        "<iIQ6Q", number, architecture or ARCHITECTURES[platform.machine()], 0, *arguments, *[0] * (6 - len(arguments))
    )
    code, place, value = filter_program(OWN), 0, 0
    while True:
        kind, if_true, if_false, constant = struct.unpack_from("HBBI", code, 8 * place)
        if kind == 0x06:
            return constant
        if kind == 0x20:
            value = struct.unpack_from("<I", data, constant)[0]
        else:
            is_true = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[kind]
            place += if_true if is_true else if_false
        place += 1


def used(name):
    return call_numbers("used")[name]


def test_calls_of_the_lists():
    assert {answer(number) for number in call_numbers("allowed").values()} == {ALLOW}
    assert {answer(number) for number in call_numbers("killed").values()} - {KILL} <= {REFUSED}
    assert {answer(number) for number in call_numbers("absent").values()} == {REFUSE | errno.ENOSYS}
    assert answer(450) == REFUSED  # a number of the future
    assert answer(0, architecture=0x40000003) == KILL
    assert answer(X32 + 1) == KILL


def test_calls_with_arguments():
    assert answer(used("openat"), 0, 0, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY) == ALLOW
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE):
        assert answer(used("openat"), 0, 0, flags) == REFUSED
    assert answer(used("kill"), OWN, 9) == ALLOW
    assert answer(used("tgkill"), OWN + 1, OWN, 9) == REFUSED
    assert answer(used("kill"), 0, 9) == REFUSED
    assert answer(used("prlimit64"), 0, 7, 0) == ALLOW
    assert answer(used("prlimit64"), 0, 7, 1 << 32) == REFUSED
    assert answer(used("fcntl"), 3, 1) == ALLOW
    assert answer(used("fcntl"), 3, 8) == REFUSED
    assert answer(used("clone"), 0x11) == REFUSE | errno.EAGAIN
    assert answer(used("mount")) in (KILL, REFUSED)
