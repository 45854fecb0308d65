"""Scripts that several ranks run, in processes that fork from one that has imported PyTorch and transformers.

What torchrun starts imports both for each rank, five seconds of a core; a test of two ranks trains for two.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
import warnings
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "transformers", "forerun.train.loop", "forerun.step.build", "forerun.own.scoring"]
)


def run_ranks(script: Path, world: int, *arguments: str, timeout: float = 240) -> str:
    """What `world` ranks of `script` print; the environment is torchrun's where there are several.

    Raises:
        AssertionError: one of them fails, or they take longer than `timeout` seconds; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.close()
        texts = [Path(folder, f"{rank}.out") for rank in range(world)]
        ranks = [
            FORKS.Process(target=_begin, args=(str(script), list(arguments), rank, world, port, str(text)))
            for rank, text in enumerate(texts)
        ]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + timeout
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < end:
            if any(rank.exitcode for rank in ranks):
                break
            ranks[0].join(0.02)
        codes = [rank.exitcode for rank in ranks]
        failures = [n for n, code in enumerate(codes) if code]
        is_late = any(rank.is_alive() for rank in ranks) and not failures
        for rank in ranks:
            rank.kill()
            rank.join()
        told = Path(f"{texts[failures[0] if failures else 0]}.err").read_text()[-3000:]
        assert not failures, f"exit codes by rank: {codes}\n{told}"
        assert not is_late, f"longer than {timeout} s: {told}"
        return "".join(text.read_text() for text in texts)


def _begin(script: str, arguments: list[str], rank: int, world: int, port: int, out: str) -> None:
    """One rank."""
    for number, path in ((1, out), (2, f"{out}.err")):
        with open(path, "w", encoding="utf-8") as file:
            os.dup2(file.fileno(), number)
    if world > 1:
        os.environ |= {
            "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": f"{world}", "LOCAL_WORLD_SIZE": f"{world}",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
        }  # fmt: skip
    faulthandler.enable()  # what a signal ends says where
    warnings.simplefilter("ignore")
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    sys.stdout.flush()
