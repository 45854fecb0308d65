"""The survival list: what a program may try, and that this process, its files and the machine's patience survive it."""

import os
import time

import pytest

from forerun.evaluate.sandbox import SandboxLimits, run_program, run_programs
from forerun.units import MIB

QUICK = SandboxLimits(wall_seconds=4.0, cpu_seconds=1, memory_bytes=256 * MIB)

SURVIVED = {
    "endless loop": ("while True: pass", {"timeout"}),
    "sleeps for ever": ("import time\ntime.sleep(3600)", {"timeout"}),
    "loop that swallows everything": ("while True:\n try:\n  1/0\n except BaseException: pass", {"timeout"}),
    "memory bomb": ("x = []\nwhile True: x.append(bytearray(10**7))", {"memory"}),
    "one huge list": ("x = [0] * 10**11", {"memory"}),
    "huge number": ("x = 9**9**9**9", {"timeout", "memory"}),
    "deep recursion": ("def f(): return f()\nf()", {"failed"}),
    "broken C stack": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", {"died", "failed", "memory", "timeout"}),
    "huge output": ("for _ in range(2000): print('x' * 10**6)", {"passed", "timeout"}),
    "fork bomb": ("import os\nwhile True: os.fork()", {"refused"}),
    "fork bomb that goes on": ("import os\nwhile True:\n try: os.fork()\n except OSError: pass", {"timeout", "refused"}),
    "thread bomb": ("import threading, time\nfor _ in range(10**4): threading.Thread(target=time.sleep, args=(99,)).start()",
                    {"failed", "memory", "timeout"}),
    "shell": ("import os\nos.system('true')", {"refused"}),
    "subprocess": ("import subprocess\nsubprocess.run(['true'])", {"refused"}),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", {"refused"}),
    "kill the parent": ("import os\nos.kill(os.getppid(), 9)", {"refused"}),
    "kill everybody": ("import os\nos.kill(-1, 9)", {"refused"}),
    "socket": ("import socket\nsocket.create_connection(('127.0.0.1', 9))", {"refused"}),
    "download": ("import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9')", {"refused"}),
    "write": ("open('left.txt', 'w').write('x')", {"refused"}),
    "low-level write": ("import os\nos.open('left.txt', os.O_CREAT | os.O_WRONLY)", {"refused"}),
    "write that hides": ("try: open('left.txt', 'w')\nexcept OSError: pass", {"refused"}),
    "read a secret": ("open('/etc/passwd').read()", {"refused"}),
    "read by way of the library": ("import os\nopen(os.path.dirname(os.__file__) + '/../../../../etc/passwd')", {"refused"}),
    "native code": ("import ctypes\nctypes.CDLL(None).getpid()", {"refused"}),
    "raise the limits": ("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))", {"refused"}),
    "clean exit before the tests": ("import os\nos._exit(0)\nassert False", {"died"}),
    "sys.exit before the tests": ("import sys\nsys.exit(0)\nassert False", {"failed"}),
    "close every descriptor": ("import os\nos.closerange(0, 256)\nassert False", {"died", "failed"}),
    "forged report": ("import os\nfor d in range(3, 32):\n try: os.write(d, b'{\"status\": \"passed\", \"said\": \"\"}')\n"
                      " except OSError: pass\nassert False", {"died"}),
    "endless report": ("import os\nfor d in range(3, 32):\n try:\n  while True: os.write(d, b'x' * 65536)\n"
                       " except OSError: pass", {"died", "timeout"}),
    "another audit hook": ("import sys\nsys.addaudithook(lambda *a: None)", {"refused"}),
    "crash": ("import faulthandler\nfaulthandler._sigsegv()", {"died"}),
    "abort": ("import os\nos.abort()", {"died"}),
    "input": ("input()", {"failed"}),
    "syntax": ("def f(:", {"failed"}),
    "null byte": ("x = 1\0", {"failed"}),
    "lone surrogate": ("x = '\ud800'", {"failed", "passed"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SURVIVED)
def test_survives(name):
    program, expected = SURVIVED[name]
    start = time.monotonic()
    outcome = run_program(program, QUICK)
    assert outcome.status in expected, outcome
    assert time.monotonic() - start < QUICK.wall_seconds + 3


def test_nothing_that_is_deleted_is_gone(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("here")
    for call in (f"import shutil\nshutil.rmtree({str(victim)!r})", f"import os\nos.remove({str(victim / 'file')!r})",
                 f"import os\nos.rename({str(victim)!r}, {str(tmp_path / 'gone')!r})",
                 f"import pathlib\npathlib.Path({str(victim / 'file')!r}).write_text('x')",
                 f"import os\nos.truncate({str(victim / 'file')!r}, 0)"):  # fmt: skip
        assert run_program(call, QUICK).status == "refused", call
    assert (victim / "file").read_text() == "here"


def test_no_process_is_left():
    program = "import os, time\ntry:\n os.setsid()\nexcept OSError: pass\nimport time\ntime.sleep(60)"
    before = {p for p in os.listdir("/proc") if p.isdigit()} if os.path.isdir("/proc") else set()
    run_program(program, SandboxLimits(wall_seconds=0.5))
    left = [
        p for p in os.listdir("/proc") if p.isdigit() and p not in before
        and "sandbox_child" in _command(p)
    ] if before else []  # fmt: skip
    assert left == []


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_right_and_wrong_programs():
    tests = "\nassert add(1, 2) == 3\n"
    usual = "from collections import Counter, defaultdict, namedtuple\nimport re, math, heapq, itertools, functools, string\n" \
            "from typing import List, NamedTuple\nimport hashlib, random, datetime, decimal, fractions, bisect, copy, enum\n"  # fmt: skip
    outcomes = run_programs([
        usual + "def add(a, b): return a + b" + tests, "def add(a, b): return a - b" + tests, "add = None" + tests,
    ])  # fmt: skip
    assert [outcome.status for outcome in outcomes] == ["passed", "failed", "failed"], outcomes
    assert "AssertionError" in outcomes[1].message


def test_the_environment_is_empty():
    assert run_program("import os, sys\nassert not os.environ.get('HOME') and not os.listdir('.')\n"
                       "assert not any('site-packages' in p for p in sys.path)").passed  # fmt: skip
