"""A process that has imported PyTorch and transformers, and forks itself for every question of the pages.

    python -m forerun.cli.ui_fork_server SOCKET     prints "ready" once it listens on the Unix socket

Imports take longer than most answers, and the first operators of a process take a while, so a tiny model's forward pass
is run once for all. Whoever connects sends one question as a line of JSON (`ui_worker.py`) and gets lines of progress,
then the answer as a line that begins with `ANSWER`, or `ENDED` and a code. Each question has a child of its own, which
inherits the modules and nothing of any other question; who closes the connection ends the child. At most one thread
runs here, and no backward pass: PyTorch refuses one in a child of a process that has made one. Ends with its standard
input.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from forerun.cli.ui_worker import answer_or_error
from forerun.data.plan import BatchShape
from forerun.forecasting.made_with import package_digest, traced_with
from forerun.hardware.catalogue import device as find_device
from forerun.settings.load import settings_from
from forerun.web.warm_workers import ANSWER, ENDED

MODULES = (
    "forerun.virtual.repeated_blocks", "forerun.virtual.trace_step", "forerun.step.heads", "forerun.ledger.store",
    "forerun.plan.compare", "forerun.plan.what_if", "peft",
    "transformers.models.llama.modeling_llama", "transformers.models.bert.modeling_bert",
)  # fmt: skip
"""What nearly every question imports, at 0.5 GB of memory that the children share."""

TINY: dict[str, Any] = {
    "name": "warm-up", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "precision": "bf16-mixed",
    "adapter": {"kind": "lora", "rank": 8, "alpha": 16}, "data": {"examples": 8},
    "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "sequence_length": 16},
}  # fmt: skip

LOOK_MILLISECONDS = 500
"""Between looks whether a child has ended without an answer."""


def main() -> None:
    """Import, listen and fork until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the pages, and with them standard input
    for name in MODULES:
        importlib.import_module(name)
    for digest in (traced_with, package_digest):
        digest()  # of the code that is imported, whatever lies on disk later
    _warm_up()
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy every page
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("ready", flush=True)
    _Forks(listener).serve()


def _warm_up() -> None:
    """Score one batch: PyTorch and transformers make their tables at the first operators."""
    scoring: Any = importlib.import_module("forerun.virtual.trace_evaluation").trace_scoring
    workload: Any = importlib.import_module("forerun.step.heads").CausalLM()
    scoring(settings_from(TINY), workload, find_device("t4"), BatchShape(2, 16))


class _Forks:
    """Children by the connection that waits for them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, tuple[socket.socket, int]] = {}
        self._events = select.poll()

    def serve(self) -> None:
        """Fork for each connection, and end children whose connection was closed."""
        self._events.register(sys.stdin.fileno(), select.POLLIN)
        self._events.register(self._listener.fileno(), select.POLLIN)
        while True:
            for place, _ in self._events.poll(LOOK_MILLISECONDS):
                if place == sys.stdin.fileno():
                    return self._end_all()
                if place == self._listener.fileno():
                    self._fork()
                elif place in self._children:
                    self._end(place)
            for place in list(self._children):
                self._look_after(place)

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        child = os.fork()
        if child == 0:
            self._listener.close()
            for other, _ in self._children.values():
                other.close()
            _answer(connection)
        self._children[connection.fileno()] = connection, child
        self._events.register(connection.fileno(), 0)  # 0: only that the other end, or the child, has hung up

    def _look_after(self, place: int) -> None:
        """Say with which code a child has ended by itself."""
        connection, child = self._children[place]
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            self._forget(place)
            with contextlib.suppress(OSError):  # it has hung up after its answer
                connection.sendall(f"\n{ENDED}{os.waitstatus_to_exitcode(status)}\n".encode())
            connection.close()

    def _end(self, place: int) -> None:
        """End a child that nobody waits for; of one that has answered, only what is left."""
        connection, child = self._children[place]
        self._forget(place)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so it is still that child's number
        os.waitpid(child, 0)
        connection.close()

    def _end_all(self) -> None:
        for place in list(self._children):
            self._end(place)

    def _forget(self, place: int) -> None:
        self._events.unregister(place)
        del self._children[place]


def _answer(connection: socket.socket) -> NoReturn:
    """Answer in a child, which ends here."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(connection.fileno(), 2)  # progress
        line = connection.makefile("r", encoding="utf-8").readline()
        document = answer_or_error(json.loads(line))
        connection.sendall(f"\n{ANSWER}{json.dumps(document)}\n".encode())
        connection.shutdown(socket.SHUT_RDWR)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(code)


if __name__ == "__main__":
    main()
