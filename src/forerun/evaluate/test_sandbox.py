"""The survival list: what a program may try, and that this process, its files and the machine's patience survive it.

Programs that mean to get out: `tests/test_escapes.py`.
"""

import os
import time

import pytest

from forerun.errors import NotSupported
from forerun.evaluate.sandbox import ProgramTest, Sandbox, SandboxLimits, isolation_here
from forerun.units import MIB

pytestmark = pytest.mark.skipif(not isolation_here().is_enough, reason=f"no isolation here: {isolation_here()}")
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
    "clean exit before the tests": ("import os\nos._exit(0)", {"died"}),
    "sys.exit before the tests": ("import sys\nsys.exit(0)\nassert False", {"failed"}),
    "close every descriptor": ("import os\nos.closerange(0, 256)\nassert False", {"died", "failed"}),
    "forged report": ("import os\nfor d in range(3, 32):\n try: os.write(d, b'{\"status\": \"passed\", \"said\": \"\"}')\n"
                      " except OSError: pass\nassert False", {"died", "failed"}),
    "endless report": ("import os\nfor d in range(3, 32):\n try:\n  while True: os.write(d, b'x' * 65536)\n"
                       " except OSError: pass", {"died", "failed", "timeout"}),
    "another audit hook": ("import sys\nsys.addaudithook(lambda *a: None)", {"refused"}),
    "crash": ("import faulthandler\nfaulthandler._sigsegv()", {"died"}),
    "abort": ("import os\nos.abort()", {"died"}),
    "input": ("input()", {"failed"}),
    "syntax": ("def f(:", {"failed"}),
    "null byte": ("x = 1\0", {"failed"}),
    "lone surrogate": ("x = '\ud800'", {"failed", "passed"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(QUICK) as opened:
        yield opened


@pytest.mark.parametrize("name", SURVIVED)
def test_survives(name, sandbox):
    program, expected = SURVIVED[name]
    start = time.monotonic()
    outcome = sandbox.run(ProgramTest(program=program))
    assert outcome.status in expected, outcome
    assert time.monotonic() - start < QUICK.wall_seconds + 3


def test_nothing_that_is_deleted_is_gone(tmp_path, sandbox):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("here")
    for call in (f"import shutil\nshutil.rmtree({str(victim)!r})", f"import os\nos.remove({str(victim / 'file')!r})",
                 f"import os\nos.rename({str(victim)!r}, {str(tmp_path / 'gone')!r})",
                 f"import pathlib\npathlib.Path({str(victim / 'file')!r}).write_text('x')",
                 f"import os\nos.truncate({str(victim / 'file')!r}, 0)"):  # fmt: skip
        assert sandbox.run(ProgramTest(program=call)).status == "refused", call
    assert (victim / "file").read_text() == "here"


def judged(sandbox, program, tests, **more):
    return sandbox.run(ProgramTest(program=program, tests=tests, **{"names": ["add"], **more}))


def test_right_and_wrong_programs(sandbox):
    tests = "\nassert add(1, 2) == 3\n"
    usual = "from collections import Counter, defaultdict, namedtuple\nimport re, math, heapq, itertools, functools, string\n" \
            "from typing import List, NamedTuple\nimport hashlib, random, datetime, decimal, fractions, bisect, copy, enum\n"  # fmt: skip
    programs = [usual + "def add(a, b): return a + b", "def add(a, b): return a - b", "add = None"]
    outcomes = sandbox.run_all([ProgramTest(program=program, tests=tests, names=["add"]) for program in programs])
    assert [outcome.status for outcome in outcomes] == ["passed", "failed", "failed"], outcomes
    assert "AssertionError" in outcomes[1].message
    assert judged(sandbox, "import os\nos._exit(0)", tests).status == "died"
    assert judged(sandbox, "def add(a, b): open('left', 'w')", tests).status == "refused"


def test_what_tests_see_of_a_program(sandbox):
    """Arguments that are changed, objects, generators, functions handed over, exceptions, helpers of the task."""
    program = (
        "import math\nclass Node:\n    def __init__(self, x): self.x, self.left = x, None\n"
        "def add(xs, y): xs.append(y)\ndef depth(n): return 0 if n is None else 1 + depth(n.left)\n"
        "def count(n): yield from range(n)\ndef apply(f, x): return f(x, 2)\ndef fail(kind): raise kind('told')\n"
        "def helper(): return 'of the program'\ndef sum(xs): return 99\n"
    )
    tests = (
        "xs = [1]\nadd(xs, 2)\nassert xs == [1, 2]\n"
        "root = Node(1)\nroot.left = Node(2)\nassert depth(root) == 2 and root.left.x == 2\n"
        "assert list(count(3)) == [0, 1, 2]\nassert apply(lambda a, b: a * b, 4) == 8\n"
        "try: fail(KeyError)\nexcept KeyError as error: assert 'told' in str(error)\nelse: assert False\n"
        "assert math.pi > 3 and helper() == 'of the task' and sum([1, 2]) == 3\n"
    )
    outcome = judged(
        sandbox, program, tests, prelude="def helper(): return 'of the task'",
        names=["Node", "add", "depth", "count", "apply", "fail", "math"], modules={"math": "math"},
    )  # fmt: skip
    assert outcome.passed, outcome


def test_the_environment_is_empty(sandbox):
    assert sandbox.run(ProgramTest(program="import os, sys\nassert not os.environ.get('HOME') and not os.listdir('.')\n"
                       "assert not any('site-packages' in p for p in sys.path)")).passed  # fmt: skip


def test_without_walls_nothing_is_run_unless_it_is_allowed():
    walls = ("namespaces", "landlock", "filter")
    with pytest.raises(NotSupported, match="no filter .not asked for.*--unsafe"):
        Sandbox(QUICK, without=walls)
    with Sandbox(QUICK, without=walls, allow_unsafe=True) as sandbox:
        assert not sandbox.isolation.is_enough
        assert judged(sandbox, "def add(a, b): return a + b", "assert add(1, 2) == 3").passed
        assert sandbox.run(ProgramTest(program="import os\nos.fork()")).status == "refused"


@pytest.mark.parametrize("missing", ["namespaces", "landlock"])
def test_one_of_two_walls_is_enough(missing):
    with Sandbox(QUICK, without=[missing], allow_unsafe=True) as sandbox:
        others = {"namespaces", "landlock"} - {missing}
        assert sandbox.isolation.is_enough == (not others & isolation_here().missing.keys())
        assert judged(sandbox, "import heapq\ndef add(a, b): return a + b", "assert add(1, 2) == 3").passed


def test_nothing_of_a_sandbox_is_left():
    with Sandbox(SandboxLimits(wall_seconds=0.3)) as sandbox:
        assert sandbox.run(ProgramTest(program="import time\ntime.sleep(60)")).status == "timeout"
        entry = sandbox.process_id
    assert not os.path.exists(f"/proc/{entry}")
