"""Share of the model classes of libraries that train on the virtual GPU, among those that train on this CPU.

    python -m benchmarks.zoo --results /tmp/zoo_results transformers timm torchvision diffusers
    python -m benchmarks.zoo --results /tmp/zoo_results transformers --only bert

Each class is built at a small size with random weights and does one step of AdamW on the CPU. A class that does so is
counted, and must then do the same step under `forerun.virtual_cuda`, with at least as many gradients. Each runs in a
process of its own, one at a time, with a limit on time and memory; a result that is there already is not made again.
Prints a table, failures by reason, and one JSON line; exit 1 below the goal of 97 %. Method version 1.
"""

import argparse
import collections
import hashlib
import importlib
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.zoo_libraries.example import Example, Step, train_step

import forerun

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")
GOAL = 0.97
CARD = "a100-80gb"
CPU_SECONDS, VIRTUAL_SECONDS = 90, 120
MEMORY_BYTES = 12 * 2**30
VERSION = 1
DIED = "died"


def load(library: str) -> Any:
    """The module that lists the models of a library."""
    return importlib.import_module(f"benchmarks.zoo_libraries.{library}_models")


def reason_of(error: BaseException) -> str:
    """Type and first line of an error, numbers left out so that alike ones are counted together."""
    lines = str(error).strip().splitlines() or [""]
    text = re.sub(r"\b[0-9][0-9.,]*\b", "#", lines[0])[:140]
    return f"{type(error).__name__}: {text}"


def place_of(error: BaseException) -> str:
    """The innermost lines of an error, to find its cause."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno}" for f in reversed(frames[-8:]))


def on_cpu(candidates: Any) -> tuple[Example | None, Step | None, str]:
    """The first example that does a step on the CPU, that step, or why none does."""
    reason = ""
    for example in candidates:
        try:
            return example, train_step(example, "cpu"), ""
        except Exception as error:  # noqa: BLE001 (any failure of any library is a result here)
            reason = reason or reason_of(error)
    return None, None, reason or "no example"


def trained(candidates: Any, note: Callable[[dict[str, Any]], None]) -> None:
    """Both steps of one class; `note` is given what is known after each."""
    start = time.perf_counter()
    _limit(CPU_SECONDS)
    example, real, reason = on_cpu(candidates)
    seconds = time.perf_counter() - start
    if example is None or real is None:
        return note({"cpu": False, "reason": reason, "cpu_seconds": seconds})
    row = {"cpu": True, "virtual": False, "reason": DIED, "cpu_seconds": seconds, "note": example.note}
    note(row)
    _limit(VIRTUAL_SECONDS)
    start = time.perf_counter()
    try:
        with forerun.virtual_cuda(CARD) as gpu:
            step = train_step(example, "cuda")
        # on the CPU values decide which experts get tokens, here all do: more gradients are no failure
        same = (step.loss_shape, step.parameters) == (real.loss_shape, real.parameters)
        same = same and step.with_gradient >= real.with_gradient
        reason = "" if same else f"another step: {real} on the CPU, {step} here"
        row |= {"virtual": same, "reason": reason, "assumed": len(gpu.assumed)}
        row |= {"more_gradients": step.with_gradient - real.with_gradient}
    except Exception as error:  # noqa: BLE001
        row |= {"reason": reason_of(error), "place": place_of(error)}
    return note(row | {"virtual_seconds": time.perf_counter() - start})


def _limit(seconds: int) -> None:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"no step within {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)


def in_own_process(jobs: dict[Path, Callable[[Callable[[dict[str, Any]], None]], None]]) -> None:
    """Run jobs in a child, which writes what it knows to their files; one that dies leaves its last note."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _as_child(jobs)
            code = 0
        finally:
            os._exit(code)
    code = _wait(child, (CPU_SECONDS + VIRTUAL_SECONDS + 30) * len(jobs))
    for file in jobs:
        part = file.with_suffix(".part")
        if part.exists() or (code and not file.exists()):
            row = json.loads(part.read_text()) if part.exists() else {"cpu": False, "reason": DIED}
            row["reason"] = f"the process died with {code}" if row["reason"] == DIED else row["reason"]
            file.write_text(json.dumps(row))
            part.unlink(missing_ok=True)
            rest = {other: job for other, job in jobs.items() if not other.exists()}
            return in_own_process(rest) if rest else None
    return None


def _as_child(jobs: dict[Path, Callable[[Callable[[dict[str, Any]], None]], None]]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for file, job in jobs.items():
        part = file.with_suffix(".part")
        job(lambda row, part=part: part.write_text(json.dumps(row)))
        part.rename(file)


def _wait(child: int, seconds: float) -> int:
    """Exit code of a child, negative for a signal; it is ended after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def collect(library: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Results of every class of a library whose name is wanted; classes of one family share a process."""
    source = load(library)
    names = [name for name in source.names() if re.search(options.only, name)]
    files = {name: options.results / f"{library}.{re.sub('[/:]', '.', name)}.json" for name in names}
    for file in files.values():
        row = json.loads(file.read_text()) if file.exists() else {"cpu": False}
        if options.again or (options.failed and row["cpu"] and not row["virtual"]):
            file.unlink(missing_ok=True)
    families = [list(group) for _, group in itertools.groupby(names, source.family)]
    for group in sorted(families, key=lambda group: hashlib.md5(group[0].encode()).digest()):  # a part is a fair sample
        jobs = {
            files[name]: lambda note, name=name: trained(source.examples(name), note)
            for name in group
            if not files[name].exists()
        }
        if jobs:
            in_own_process(jobs)
        for file in jobs:
            row = json.loads(file.read_text())
            print(f"{file.stem} {_word(row)} {row['reason']}", file=sys.stderr, flush=True)
    return {name: json.loads(file.read_text()) for name, file in files.items()}


def _word(row: dict[str, Any]) -> str:
    return "-" if not row["cpu"] else "yes" if row["virtual"] else "NO"


def summary(library: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Share of a library, its failures by reason."""
    counted = {name: row for name, row in rows.items() if row["cpu"]}
    failed: dict[str, list[str]] = collections.defaultdict(list)
    for name, row in counted.items():
        if not row["virtual"]:
            failed[row["reason"]].append(name)
    return {
        "library": library, "classes": len(rows), "on_cpu": len(counted),
        "on_virtual_gpu": sum(row["virtual"] for row in counted.values()),
        "share": sum(row["virtual"] for row in counted.values()) / max(1, len(counted)), "failures": dict(failed),
    }  # fmt: skip


def main() -> None:
    """Run, print, exit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--results", type=Path, required=True, help="folder for one JSON file per class")
    parser.add_argument("--only", default="", help="regular expression of class names")
    parser.add_argument("--again", action="store_true", help="do not use results that are there")
    parser.add_argument("--failed", action="store_true", help="do those again that failed on the virtual GPU only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with forerun.virtual_cuda(CARD), torch.no_grad():  # children inherit imports; autograd's threads cannot be forked
        torch.nn.Linear(2, 2).cuda()(torch.zeros(1, 2, device="cuda"))
    options.results.mkdir(parents=True, exist_ok=True)
    tables = [summary(name, collect(name, options)) for name in options.libraries]
    print(f"{'library':14} {'classes':>8} {'on CPU':>7} {'virtual':>8} {'share':>7}")
    for table in tables:
        counts = f"{table['classes']:8} {table['on_cpu']:7} {table['on_virtual_gpu']:8}"
        print(f"{table['library']:14} {counts} {table['share']:7.1%}")
        for reason, names in sorted(table["failures"].items(), key=lambda item: -len(item[1])):
            print(f"    {len(names):3} {reason}\n        {', '.join(names[:6])}")
    share = sum(t["on_virtual_gpu"] for t in tables) / max(1, sum(t["on_cpu"] for t in tables))
    print(
        json.dumps(
            {"benchmark": "zoo", "version": VERSION, "share": share, "torch": torch.__version__, "libraries": tables}
        )
    )
    sys.exit(share < GOAL)


if __name__ == "__main__":
    main()
