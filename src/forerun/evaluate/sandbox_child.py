"""The program of the sandbox's process: limits, an audit hook, then the untrusted program. Started by `sandbox.py`.

A file of its own, run by path with nothing but the standard library; it is never imported. The order matters: what
needs rights (user, namespaces, limits) is done first, then the hook is set, which cannot be taken off again.
"""

import json
import os
import resource
import sys

NOBODY = 65534
NEW_USER_AND_NETWORK = 1 << 28 | 1 << 30
"""CLONE_NEWUSER | CLONE_NEWNET of linux/sched.h."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")
REFUSED = (
    "os.", "shutil.", "subprocess.", "socket.", "ctypes.", "signal.", "pty.", "fcntl.", "mmap.", "resource.", "syslog.",
    "webbrowser.", "urllib.", "http.", "ftplib.", "smtplib.", "sqlite3.", "tempfile.", "gc.", "winreg.", "code.__new__",
    "sys.addaudithook", "sys.settrace", "sys.setprofile", "cpython.remote_debugger_script",
)  # fmt: skip
"""Beginnings of audit events that are refused (docs.python.org/3.11/library/audit_events.html)."""
REFUSED_IMPORTS = frozenset({"ctypes", "_ctypes", "resource", "_posixsubprocess", "_socket", "_multiprocessing",
                             "fcntl", "mmap", "termios", "pty", "_testcapi", "_xxsubinterpreters"})  # fmt: skip


def nobody_can_read(folder):
    """Whether the standard library there can be read without rights: every folder on the way is open to all."""
    while folder != "/":
        if not os.stat(folder).st_mode & 0o001:
            return False
        folder = os.path.dirname(folder)
    return True


def give_up_rights(limits):
    """Nobody's rights, a network without interfaces, the kernel's limits: as far as the system allows."""
    if os.geteuid() == 0 and nobody_can_read(os.path.dirname(os.path.realpath(os.__file__))):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).unshare(NEW_USER_AND_NETWORK)
        for name in [name for name in sys.modules if "ctypes" in name]:
            del sys.modules[name]
    for name, value in (
        ("RLIMIT_CPU", limits["cpu_seconds"]), ("RLIMIT_AS", limits["memory_bytes"]), ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", limits["open_files"]), ("RLIMIT_NPROC", 0), ("RLIMIT_CORE", 0),
    ):  # fmt: skip
        resource.setrlimit(getattr(resource, name), (value, value))


def watch(refusals):
    """Refuse what a function under test has no business with, and write down what was tried."""
    readable = tuple({os.path.dirname(os.__file__) + "/", sys.base_prefix + "/lib"})
    begins, forbidden, seek, write_flags = str.startswith, REFUSED_IMPORTS, str.__contains__, WRITES

    def refuse(event):
        refusals.append(event)
        raise PermissionError(f"the sandbox refuses {event}")

    def hook(event, arguments):
        if event == "open":
            path, _, flags = arguments
            if type(flags) is int and flags & write_flags:
                refuse("open for writing")
            is_plain = type(path) is int or (type(path) is str and not seek(path, ".."))
            if not is_plain or (type(path) is str and begins(path, "/") and not begins(path, readable)):
                refuse("open outside the standard library")
        elif event == "import" and arguments[0] in forbidden:
            refuse("import of a refused module")
        elif begins(event, REFUSED) and event not in HARMLESS:
            refuse(event)

    sys.addaudithook(hook)


def main():
    """Read the job from standard input, run it, and say on the result's descriptor how it went."""
    job = json.loads(sys.stdin.buffer.read())
    channel, token = job["channel"], job["token"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    give_up_rights(job["limits"])
    leave, say, dumps = os._exit, os.write, json.dumps
    refusals = []
    code = job["program"]
    del sys.modules["resource"], sys.modules["json"], job
    finished = False
    try:
        compiled = compile(code, "<program>", "exec")
        watch(refusals)
        exec(compiled, {"__name__": "program"})  # noqa: S102 - the purpose of this file
        finished = True
    finally:
        kind, error, _ = sys.exc_info()
        status = "passed" if finished else "memory" if kind is MemoryError else "failed"
        message = "" if kind is None else f"{kind.__name__}: {error}"[:300]
        if refusals:
            status, message = "refused", refusals[0]
        say(channel, dumps({"token": token, "status": status, "said": message}).encode())
        leave(0)


main()
