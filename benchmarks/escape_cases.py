"""What an enemy's program tries in the sandbox: each case is a program whose `target()` shows that it got out.

`escapes.py` runs them. `target()` returns TOKEN's value where a case says that its effect happened; a case of `forged`
must pass without knowing it. `CALLS` are numbers of system calls by name. Words in capitals are filled in: SECRET (a file
that only this user reads), WITNESS (a folder that all may write), VICTIM and GRADER (process ids outside), PORT (a listening
socket), ABSTRACT (a listening abstract socket).
"""

PRELUDE = """
import os, sys, time
def worked(result):
    return {TOKEN!r} if result >= 0 else 'no'
"""
"""Before every program: the word that says "escaped"."""
RAW_CALLS = """
import ctypes
CALLS = {CALLS}
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(CALLS[name]), *plain)
"""
"""Before programs that call the kernel without Python."""


def _does(body: str) -> str:
    """A program that shows an escape where `body` runs to its end without an exception."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"def target():\n{lines}    return {{TOKEN!r}}\n"


def _calls(expression: str) -> str:
    """A program that shows an escape where a system call worked."""
    return f"def target():\n    return worked({expression})\n"


READING = {
    "secret of the user": "def target(): return open('{SECRET}').read()",
    "secret by os.open": "def target():\n    return os.read(os.open('{SECRET}', os.O_RDONLY), 99).decode()",
    "secret by openat of /": "def target():\n    d = os.open('/', os.O_RDONLY)\n"
    "    return os.read(os.open('{SECRET}'[1:], os.O_RDONLY, dir_fd=d), 99).decode()",
    "secret by ..": "def target():\n    return open('../' * 20 + '{SECRET}'[1:]).read()",
    "secret by way of the library": "def target():\n    return open(os.path.dirname(os.__file__) + '/..' * 20 + '{SECRET}').read()",
    "secret by openat2": "def target():\n    how = (ctypes.c_uint64 * 3)(0, 0, 0)\n"
    "    d = call('openat2', -100, b'{SECRET}', ctypes.byref(how), 24)\n    return os.read(d, 99).decode()",
    "secret by a C library": "def target():\n    libc.fopen.restype = ctypes.c_void_p\n    f = libc.fopen(b'{SECRET}', b'r')\n"
    "    b = ctypes.create_string_buffer(99)\n    libc.fgets(b, 99, ctypes.c_void_p(f))\n    return b.value.decode()",
    "environment of the grader's user": "def target():\n    return '{TOKEN}' if 'TOKEN_OF_ESCAPES' in open('/proc/{GRADER}/environ').read() else ''",
    "environment of all processes": "def target():\n    import glob\n    for p in glob.glob('/proc/*/environ'):\n        try:\n"
    "            if 'TOKEN_OF_ESCAPES' in open(p).read(): return {TOKEN!r}\n        except OSError: pass",
    "memory of the grader's user": _does("open('/proc/{GRADER}/mem', 'rb').read(1)"),
    "maps of the parent": _does("assert open(f'/proc/{os.getppid()}/maps').read()"),
    "own memory for writing": _does("open('/proc/self/mem', 'r+b').write(b'')"),
    "root of the parent": _does("assert 'etc' in os.listdir(f'/proc/{os.getppid()}/root')"),
    "root of process 1": _does("assert 'etc' in os.listdir('/proc/1/root')"),
    "users of the machine": _does("assert 'root:' in open('/etc/passwd').read()"),
    "home folders": _does("way = os.path.dirname(os.__file__)\n"
                          "assert [n for h in ('/root', '/home') for n in os.listdir(h) if not way.startswith(f'{h}/{n}')]"),
    "site-packages": _does("d = os.path.dirname(os.__file__) + '/site-packages'\n"
                           "n = [n for n in os.listdir(d) if n.endswith('.txt') or n.endswith('.py')]\nopen(d + '/' + n[0]).read()"),
    "a disk": _does("open('/dev/vda', 'rb').read(1)"),
    "kernel messages": _calls("call('syslog', 3, ctypes.create_string_buffer(64), 64)"),
    "handle of a file": _calls("call('name_to_handle_at', -100, b'/', ctypes.create_string_buffer(256), ctypes.byref(ctypes.c_int()), 0)"),
    "descriptors left open": "def target():\n    for d in range(3, 64):\n        try:\n            os.lseek(d, 0, 0)\n"
    "            if b'target() ==' in os.read(d, 9999): return {TOKEN!r}\n        except OSError: pass",
}  # fmt: skip
"""Files and memory of others."""

WRITING = {
    "file outside": _does("open('{WITNESS}/a', 'w').write('x')"),
    "file by os.open": _does("os.open('{WITNESS}/b', os.O_CREAT | os.O_RDWR)"),
    "file by creat": _calls("libc.creat(b'{WITNESS}/c', 0o666)"),
    "file in the working folder": _does("open('left', 'w').write('x')"),
    "file in the root": _does("open('/left', 'w').write('x')"),
    "file in /tmp": _does("open('/tmp/left-by-escapes', 'w').write('x')"),
    "file without a name": _does("os.open('{WITNESS}', os.O_TMPFILE | os.O_RDWR)"),
    "library poisoned": _does("open(os.path.dirname(os.__file__) + '/this.py', 'a')"),
    "shared memory": _does("open('/dev/shm/left-by-escapes', 'w').write('x')"),
    "shared memory by shm_open": _calls("libc.shm_open(b'/left-by-escapes', os.O_CREAT | os.O_RDWR, 0o666)"),
    "System V memory": _calls("call('shmget', 4242, 4096, 0o1666)"),
    "System V messages": _calls("call('msgget', 4242, 0o1666)"),
    "message queue": _calls("libc.mq_open(b'/left-by-escapes', os.O_CREAT | os.O_RDWR, 0o666, None)"),
    "memory file": _does("os.memfd_create('x')"),
    "device": _does("os.mknod('{WITNESS}/null', 0o20666, os.makedev(1, 3))"),
    "named pipe": _does("os.mkfifo('{WITNESS}/pipe')"),
    "symbolic link": _does("os.symlink('/etc', '{WITNESS}/link')"),
    "hard link": _does("os.link(os.__file__, '{WITNESS}/hard')"),
    "folder": _does("os.mkdir('{WITNESS}/folder')"),
    "rename": _does("os.rename('{WITNESS}', '{WITNESS}-2')"),
    "delete": _does("os.unlink('{SECRET}')"),
    "truncate": _does("os.truncate('{SECRET}', 0)"),
    "rights": _does("os.chmod('{SECRET}', 0o777)"),
    "extended attribute": _does("os.setxattr('{SECRET}', 'user.x', b'x')"),
    "times of a file": _does("os.utime('{SECRET}', (0, 0))"),
    "disk filled": _does("f = open('full', 'wb')\nfor _ in range(10**5): f.write(bytes(10**6))"),
}  # fmt: skip
"""Anything that stays."""

PROCESSES = {
    "kill the grader's user": _does("os.kill({GRADER}, 0)"),
    "kill a process outside": _does("os.kill({VICTIM}, 9)"),
    "kill everybody": _does("os.kill(-1, 9)"),
    "kill the own group": _does("os.killpg(0, 9)"),
    "kill by pidfd": _does("import signal\nsignal.pidfd_send_signal(os.pidfd_open({VICTIM}), 9)"),
    "kill the parent by pidfd": _calls("call('pidfd_open', os.getppid(), 0)"),
    "kill by tgkill": _calls("call('tgkill', {VICTIM}, {VICTIM}, 9)"),
    "queue a signal": _calls("libc.sigqueue({VICTIM}, 9, None)"),
    "signals by a descriptor's owner": _does("import fcntl\nfcntl.fcntl(0, fcntl.F_SETOWN, {VICTIM})"),
    "trace the parent": _calls("call('ptrace', 16, os.getppid(), 0, 0)"),
    "trace a process outside": _calls("call('ptrace', 16, {VICTIM}, 0, 0)"),
    "read another's memory": _calls("call('process_vm_readv', {VICTIM}, None, 0, None, 0, 0)"),
    "take another's descriptor": _calls("call('pidfd_getfd', call('pidfd_open', {VICTIM}, 0), 0, 0)"),
    "fork": _does("os.fork()"),
    "fork by clone": _calls("call('clone', 17, 0, 0, 0, 0)"),
    "fork by clone3": _calls("call('clone3', (ctypes.c_uint64 * 8)(), 64)"),
    "fork by vfork": _calls("libc.vfork()"),
    "double fork that outlives": _does("if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(99)\n    os._exit(0)"),
    "fork bomb": _does("n = 0\nfor _ in range(10**4):\n    try: n += os.fork() >= 0\n    except OSError: pass\nassert n > 0"),
    "thread": _does("import threading\nt = threading.Thread(target=time.sleep, args=(9,))\nt.start()"),
    "shell": _does("assert os.system('true') == 0"),
    "subprocess": _does("import subprocess\nsubprocess.run(['/bin/true'], check=True)"),
    "spawn": _does("assert os.posix_spawn('/bin/true', ['true'], {}) > 0"),
    "execve": _does("os.execv('/bin/sh', ['sh', '-c', 'touch {WITNESS}/exec'])"),
    "execve of a library": _does("os.execve(sys.executable, [sys.executable, '-c', ''], {})"),
    "execveat": _calls("call('execveat', -100, b'/bin/true', None, None, 0)"),
    "priority": _does("os.setpriority(os.PRIO_PROCESS, 0, -20)"),
    "affinity of another": _does("os.sched_setaffinity({VICTIM}, [0])"),
    "limits raised": _does("import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))"),
    "limits of another": _does("import resource\nresource.prlimit({VICTIM}, resource.RLIMIT_NOFILE, (1, 1))"),
}  # fmt: skip
"""Other processes, and ones that stay."""

KERNEL = {
    "network": _does("import socket\nsocket.create_connection(('127.0.0.1', {PORT}), 1)"),
    "network without Python": _calls("call('socket', 2, 1, 0)"),
    "abstract socket": _does("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{ABSTRACT}')"),
    "socket pair": _does("import socket\nsocket.socketpair()"),
    "raw packets": _calls("call('socket', 17, 3, 768)"),
    "netlink": _calls("call('socket', 16, 3, 0)"),
    "user namespace": _calls("call('unshare', 0x10000000)"),
    "mount namespace": _calls("call('unshare', 0x20000)"),
    "another's namespace": _calls("call('setns', 0, 0)"),
    "mount": _calls("call('mount', b'none', b'/', b'tmpfs', 0, None)"),
    "remount writable": _calls("call('mount', b'none', b'/', None, 32, None)"),
    "bind mount": _calls("call('mount', b'/', b'/program', None, 4096, None)"),
    "unmount": _calls("call('umount2', b'/', 2)"),
    "pivot_root": _calls("call('pivot_root', b'.', b'.')"),
    "open_tree": _calls("call('open_tree', -100, b'/', 1)"),
    "chroot": _does("os.chroot('/')\nos.chdir('..')"),
    "chroot breakout": _does("d = os.open('/', 0)\nos.chroot('/')\nos.fchdir(d)\nfor _ in range(99): os.chdir('..')\nos.chroot('.')\nassert os.listdir('/etc')"),
    "become root": _does("os.setuid(0)\nopen('/etc/shadow').read()"),
    "become another": _calls("call('setresuid', 1000, 1000, 1000)"),
    "capabilities": _calls("call('capset', (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6))"),
    "io_uring": _calls("call('io_uring_setup', 8, ctypes.create_string_buffer(120))"),
    "userfaultfd": _calls("call('userfaultfd', 1)"),
    "bpf": _calls("call('bpf', 0, ctypes.create_string_buffer(72), 72)"),
    "keyring": _calls("call('keyctl', 0, -3, 1)"),
    "key": _calls("call('add_key', b'user', b'x', b'x', 1, -4)"),
    "performance counters": _calls("call('perf_event_open', ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
    "kernel module": _calls("call('init_module', None, 0, b'')"),
    "reboot": _calls("call('reboot', 0xfee1dead, 672274793, 0, None)"),
    "host name": _calls("call('sethostname', b'escaped', 7)"),
    "clock": _calls("call('clock_settime', 0, (ctypes.c_long * 2)(1, 0))"),
    "local descriptor table": _calls("call('modify_ldt', 0, ctypes.create_string_buffer(64), 64)"),
    "personality": _calls("call('personality', 0x40000)"),
    "another filter": _calls("call('seccomp', 1, 0, (ctypes.c_uint64 * 2)())"),
    "dumpable": _calls("call('prctl', 4, 1, 0, 0, 0)"),
    "watch files": _calls("call('fanotify_init', 0, 0)"),
    "terminal's input": _does("import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b'x')"),
    "calls of 32 bits": "def target():\n    import mmap\n    code = b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3'\n"
    "    m = mmap.mmap(-1, 4096, prot=7)\n    m.write(code)\n    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
    "    return worked(f())\n",
    "calls of x32": _calls("libc.syscall(ctypes.c_long(0x40000000 + 39))"),
}  # fmt: skip
"""The kernel's own doors."""

BOMBS = {
    "processor": "def target():\n    while True: pass",
    "clock stopped": "def target():\n    time.sleep(99)",
    "alarm ignored": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
    "def target():\n    while True: pass",
    "memory": "def target():\n    x = []\n    while True: x.append(bytearray(10**7))",
    "memory by mmap": _does(
        "import mmap\nk = [mmap.mmap(-1, 1 << 26) for _ in range(64)]\nfor m in k: m.write(bytes(1 << 26))"
    ),
    "huge answer": "def target(): return 'x' * 10**8",
    "deep answer": "def target():\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "endless answer": "def target():\n    import itertools\n    return itertools.count()",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef target(): return target()",
    "descriptors": _does("k = [os.open('/', 0) for _ in range(999)]"),
    "output": "def target():\n    while True: print('x' * 10**6)",
}
"""Time and memory without end."""

FORGED = {
    "prints passed": "print('passed')\nimport sys\nsys.stdout.flush()",
    "exit code 0": "import os\nos._exit(0)",
    "sys.exit": "import sys\nsys.exit(0)",
    "exit in atexit": "import atexit, os\natexit.register(os._exit, 0)",
    "equal to everything": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n    __hash__ = None\n"
    "def target(): return E()",
    "equal in a list": "class E:\n    def __eq__(self, o): return True\ndef target(): return [E()][0]",
    "text that equals all": "class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef target(): return E('x')",
    "number that equals all": "class E(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef target(): return E(1)",
    "contains everything": "class E:\n    def __contains__(self, o): return True\n    def __eq__(self, o): return True\ndef target(): return E()",
    "json patched": "import json, json.encoder\njson.dumps = lambda *a, **k: '[\"passed\",\"\",[],[]]'\ndef target(): return 1",
    "os.write patched": "import os\nw = os.write\nos.write = lambda d, b: w(d, b'passed\\n')\ndef target(): return 1",
    "builtins patched": "import builtins\nbuiltins.compile = builtins.exec = lambda *a, **k: None\ndef target(): return 1",
    "assertion patched": "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\ndef target(): return 1",
    "settings of the belt": "import sys\nm = sys.modules['__main__']\nfor n in ('REFUSED', 'REFUSED_IMPORTS'): setattr(m, n, ())\ndef target(): return 1",
    "verdict on every descriptor": "import os\nfor d in range(3, 64):\n    try: os.write(d, b'passed\\n')\n    except OSError: pass\n"
    "def target(): return 1",
    "answers to every descriptor": "import os, json\nm = json.dumps(['value', True, [], []]).encode()\nm = len(m).to_bytes(4, 'big') + m\n"
    "for d in range(3, 64):\n    try:\n        for _ in range(9): os.write(d, m)\n    except OSError: pass\ndef target(): return 1",
    "loop of the cell taken over": "import os\ndef target():\n    m = b'[\"value\",[\"o\",[0,\"E\"]],[],[]]'\n"
    "    for d in range(3, 64):\n        try:\n            while True: os.write(d, len(m).to_bytes(4, 'big') + m)\n        except OSError: pass\n",
    "frames": "import sys\ndef target():\n    f = sys._getframe()\n    while f:\n        for v in [*f.f_locals.values(), *f.f_globals.values()]:\n"
    "            if isinstance(v, str) and 'target() ==' in v: return v.split(\"'\")[1]\n        f = f.f_back\n",
    "garbage collector": "import gc\ndef target():\n    for o in gc.get_objects():\n        for v in gc.get_referents(o):\n"
    "            if isinstance(v, str) and 'assert target' in v and 'def target' not in v: return v.split(\"'\")[1]\n",
    "own memory searched": "def target():\n    import re\n    for line in open('/proc/self/maps'):\n        a, b = [int(x, 16) for x in line.split()[0].split('-')]\n"
    "        t = ctypes.string_at(a, b - a) if 'rw' in line else b''\n        if b'assert target() ==' in t: return t.split(b'assert target() ==')[1][2:34].decode()\n",
    "pipes of the tests": "def target():\n    for p in range(1, 9999):\n        try:\n            for d in os.listdir(f'/proc/{p}/fd'): open(f'/proc/{p}/fd/{d}', 'wb').write(b'passed\\n')\n        except OSError: pass\n",
    "function of the tests": "import sys\ndef target():\n    sys.modules['forerun.evaluate.jail.grader'].grade = lambda *a, **k: ('passed', '')",
    "tests redefined": "def check(*a): pass\ndef target(): return 1\nassert_ = None",
    "thread that answers": "import _thread, os\ndef go():\n    while True:\n        for d in range(3, 9):\n            try: os.write(d, b'passed\\n')\n            except OSError: pass\n"
    "_thread.start_new_thread(go, ())\ndef target(): return 1",
    "signal that answers": "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.001)\n"
    "import time\ndef target():\n    time.sleep(0.1)\n",
    "builtin returned": "import builtins\ndef target(): return str",
    "exception that ends tests": "def target(): raise SystemExit(0)",
    "exception of its own": "class Passed(BaseException): pass\ndef target(): raise Passed('passed')",
    "import hook": "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit(0)\nsys.meta_path.insert(0, F())\ndef target(): return 1",
    "malformed answers": "import os\ndef target():\n    for d in range(3, 64):\n        try: os.write(d, b'\\xff\\xff\\xff\\xff' * 99)\n        except OSError: pass\n",
}  # fmt: skip
"""A pass that nobody earned."""

CASES = {
    "reading": READING, "writing": WRITING, "processes": PROCESSES, "kernel": KERNEL, "bombs": BOMBS, "forged": FORGED,
}  # fmt: skip
