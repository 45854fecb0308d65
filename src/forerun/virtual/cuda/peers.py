"""What other ranks send to this one in whole numbers, such as the shapes that a pipeline stage tells the next.

Collectives of the program move nothing, but a stage that is not the first must know what its predecessor sends. So a
rank that is asked for is run beside this one, in a process of its own, when something is received from it: each rank
leaves the integers that it sends, in order, in files of a common folder, and reads those of others there. Floating
numbers are not exchanged. Not covered: ranks that wait for floating numbers of others, and `recv` from any source.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from forerun.errors import NotSupported
from forerun.virtual.cuda.file_layer import is_there
from forerun.virtual.cuda.launchers import Program

FOLDER_VARIABLE = "FORERUN_PEERS"
"""Environment variable of a peer: the common folder."""
MOST_ELEMENTS = 2**16
"""Integers of one message; larger ones are data, not shapes."""
POLL_SECONDS, MOST_SECONDS = 0.05, 600.0
TAIL_CHARACTERS = 2000
_OPEN, _REPLACE, _LIST = io.open, os.replace, os.listdir  # as they are before the program's are redirected


class Peers:
    """The ranks beside this one. `start` runs one of them and returns its process; None in a rank that was started."""

    def __init__(self, folder: Path, rank: int, start: Callable[[int], subprocess.Popen[bytes]] | None):
        self.folder, self.rank, self._start = folder, rank, start
        self._counts: Counter[tuple[int, int]] = Counter()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def send(self, target: int, value: torch.Tensor | None) -> None:
        """Leave the values of a tensor of integers for rank `target`; None where they are not known."""
        path = self._path(self.rank, target)
        content = None if value is None else value.flatten().tolist()
        with _OPEN(f"{path}.part", "w", encoding="utf-8") as file:
            json.dump(content, file)
        _REPLACE(f"{path}.part", path)

    def receive(self, source: int) -> list[Any] | None:
        """The next values that rank `source` sends here; None where it does not know them either.

        Raises:
            NotSupported: that rank ended, or takes too long, before it sent them.
        """
        path, begin = self._path(source, self.rank), time.monotonic()
        if not is_there(path):
            self._let_run(True)
            self._want(source)
        while not is_there(path):
            self._serve()
            process = self._processes.get(source)
            has_ended = process is not None and process.poll() is not None and not is_there(path)
            if has_ended or time.monotonic() - begin > MOST_SECONDS:
                raise NotSupported(
                    f"exec: rank {self.rank} receives whole numbers from rank {source}, which was run beside it and "
                    "did not send them. A pipeline stage need not ask where PipelineStage is given input_args and "
                    f"output_args. Its last words: {self._last_words(source)}"
                )
            time.sleep(POLL_SECONDS)
        self._let_run(False)
        with _OPEN(path, encoding="utf-8") as file:
            return json.load(file)

    def result(self, rank: int) -> Path:
        """The file in which a rank that was started leaves its result."""
        return self.folder / f"result-{rank}.json"

    def finish(self, ranks: Sequence[int]) -> Sequence[int]:
        """Run `ranks` to their end, each in a process of its own; returns them.

        Raises:
            NotSupported: one of them ended without a result.
        """
        for rank in ranks:
            self._want(rank)
        self._let_run(True)
        while waiting := [rank for rank in ranks if not is_there(str(self.result(rank)))]:
            self._serve()
            for rank in waiting:
                if self._processes[rank].poll() is not None and not is_there(str(self.result(rank))):
                    raise NotSupported(
                        f"exec: rank {rank} is another kind of rank and could not be run beside rank {self.rank}; see "
                        f"it alone: --rank {rank}. Its last words: {self._last_words(rank)}"
                    )
            time.sleep(POLL_SECONDS)
        return ranks

    def close(self) -> None:
        """End the ranks that were started."""
        for process in self._processes.values():
            process.kill()  # a stopped one would not hear a milder signal
        for process in self._processes.values():
            process.wait()

    def _let_run(self, is_awaited: bool) -> None:
        """The ranks that were started work only while this one waits: the processors are for it otherwise."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT if is_awaited else signal.SIGSTOP)

    def _path(self, source: int, target: int) -> str:
        number = self._counts[source, target]
        self._counts[source, target] += 1
        return str(self.folder / f"{source}-{target}-{number}.json")

    def _want(self, rank: int) -> None:
        with _OPEN(self.folder / f"want-{rank}", "a"):
            pass

    def _serve(self) -> None:
        """Start the ranks that somebody waits for; only the rank that the user asked for does so."""
        if self._start is None:
            return
        for name in _LIST(self.folder):
            rank = int(name.removeprefix("want-")) if name.startswith("want-") else self.rank
            if rank != self.rank and rank not in self._processes:
                self._processes[rank] = self._start(rank)

    def _last_words(self, rank: int) -> str:
        path = self.folder / f"rank-{rank}.txt"
        if not is_there(str(path)):
            return "none"
        with _OPEN(path, encoding="utf-8", errors="replace") as file:
            return file.read()[-TAIL_CHARACTERS:].strip()


def leave_result(rank: int, content: str) -> None:
    """Leave the result of `rank` for the rank that started it; nothing where the user did."""
    if FOLDER_VARIABLE in os.environ:
        path = Path(os.environ[FOLDER_VARIABLE]) / f"result-{rank}.json"
        part = path.with_suffix(".part")
        part.write_text(content, encoding="utf-8")
        part.replace(path)


def starter(command: Sequence[str], folder: Path) -> Callable[[int], subprocess.Popen[bytes]]:
    """Starts ranks of a program: `command` without `--rank`, as it is now in the environment and the folder of now."""
    here, environment = os.getcwd(), os.environ | {FOLDER_VARIABLE: str(folder)}

    def start(rank: int) -> subprocess.Popen[bytes]:
        with _OPEN(folder / f"rank-{rank}.txt", "wb") as words:
            return subprocess.Popen(
                [sys.executable, "-m", "forerun", "exec", "--rank", str(rank), *command],
                cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words,
            )  # fmt: skip

    return start


@contextlib.contextmanager
def peers_of(program: Program, command: Sequence[str], options: Sequence[str], rank: int) -> Iterator[Peers | None]:
    """The ranks beside `rank` of a program that is started by `command`; None where it is the only one.

    `options` are those of `forerun exec` that every rank is run with.
    """
    if program.world_size == 1:
        yield None
        return
    if FOLDER_VARIABLE in os.environ:
        yield Peers(Path(os.environ[FOLDER_VARIABLE]), rank, None)
        return
    ranks = ["--nproc-per-node", str(program.ranks_per_node), "--nnodes", str(program.nodes)]
    ranks += [] if program.network is None else ["--network", program.network]
    with tempfile.TemporaryDirectory(prefix="forerun-peers-") as folder:
        peers = Peers(Path(folder), rank, starter([*options, *ranks, "--json", "--", *command], Path(folder)))
        try:
            yield peers
        finally:
            peers.close()


def exchange(peers: Peers | None, func: Any, args: Any, values: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    """Follow a `send` or `recv_` of c10d: leave the integers that are sent, or return those that are received.

    `values` gives what is known of a tensor. The answer is a list of pairs: a tensor and its received values.

    Raises:
        NotSupported: integers are received, and no other rank is run.
    """
    name = func._schema.name
    if name not in ("c10d::send", "c10d::recv_"):
        return []
    tensors, group, rank = args[0], dist.ProcessGroup.unbox(args[1]), args[2]
    other, received = dist.get_global_rank(group, rank), []
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() > MOST_ELEMENTS:
            continue
        if name == "c10d::send":
            if peers is not None:
                peers.send(other, values(tensor))
            continue
        if peers is None:
            raise NotSupported(
                f"Whole numbers are received from rank {other}, which is not run here. Start the program by "
                "forerun exec, which runs it beside this rank; or give PipelineStage its input_args and output_args."
            )
        numbers = peers.receive(other)
        if numbers is not None:
            received.append((tensor, torch.tensor(numbers, dtype=tensor.dtype, device="cpu").reshape(tensor.shape)))
    return received
