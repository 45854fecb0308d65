"""Share of the model classes of libraries that train on the virtual GPU, among those that train on this CPU.

    python -m benchmarks.zoo --results zoo_results transformers timm torchvision diffusers
    python -m benchmarks.zoo --results zoo_results transformers --only bert

After `make test-scripts`, with `PYTHONPATH=tests/scripts/site:.venv/script-packages`: the first mends a torchvision
that was built for another PyTorch.

Each class is built at a small size with random weights and does one step of AdamW on the CPU. A class that does so is
counted, and must then do the same step under `forerun.virtual_cuda`, with at least as many gradients. Families run in
processes of their own, one at a time, with limits on processor time and memory; a result that is there is kept.
Families come in a random order over all libraries (`--seed`), so that what was run so far is a sample of the whole.
Prints a table, failures by reason, and one JSON line; exit 1 below the goal of 97 %. Intervals are Wilson's for 95 %,
as if classes were independent; those of a family are not quite. Method version 2.
"""

import argparse
import collections
import contextlib
import importlib
import itertools
import json
import math
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.zoo_libraries.example import Example, Step, train_step

import forerun

LIBRARIES = ("transformers", "timm", "torchvision", "diffusers")
GOAL = 0.97
CARD = "a100-80gb"
CPU_SECONDS, VIRTUAL_SECONDS = 90, 120
"""Limits of one step, in seconds of processor time: what else the machine does changes no result."""
IDLE_FACTOR = 10
"""A process is ended after so many times its limit by the clock on the wall, too: one that waits uses no processor."""
MEMORY_BYTES = 12 * 2**30
VERSION = 2
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
    start = time.process_time()
    with time_limit(CPU_SECONDS):
        example, real, reason = on_cpu(candidates)
    seconds = time.process_time() - start
    if example is None or real is None:
        return note({"cpu": False, "reason": reason, "cpu_seconds": seconds})
    row = {"cpu": True, "virtual": False, "reason": DIED, "cpu_seconds": seconds, "note": example.note}
    note(row)
    start = time.process_time()
    try:
        with time_limit(VIRTUAL_SECONDS), forerun.virtual_cuda(CARD) as gpu:
            step = train_step(example, "cuda")
        # on the CPU values decide which experts get tokens, here all do: more gradients are no failure
        same = (step.loss_shape, step.parameters) == (real.loss_shape, real.parameters)
        same = same and step.with_gradient >= real.with_gradient
        reason = "" if same else f"another step: {real} on the CPU, {step} here"
        row |= {"virtual": same, "reason": reason, "assumed": len(gpu.assumed)}
        row |= {"more_gradients": step.with_gradient - real.with_gradient}
    except Exception as error:  # noqa: BLE001
        row |= {"reason": reason_of(error), "place": place_of(error)}
    return note(row | {"virtual_seconds": time.process_time() - start})


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside the block after so many seconds of processor time; waiting costs nothing."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no step within {seconds} s of processor time")

    former = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


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
    code = _wait(child, IDLE_FACTOR * _most_seconds(jobs))
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


def _most_seconds(jobs: dict[Path, Any]) -> int:
    return (CPU_SECONDS + VIRTUAL_SECONDS + 30) * len(jobs)


def _as_child(jobs: dict[Path, Callable[[Callable[[dict[str, Any]], None]], None]]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_most_seconds(jobs), _most_seconds(jobs)))
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


Classes = dict[str, Path]
"""Result files by class name."""


def classes(library: str, options: argparse.Namespace) -> Classes:
    """Every class of a library whose name is wanted; results that are not are taken away."""
    names = [name for name in load(library).names() if re.search(options.only, name)]
    files = {name: options.results / f"{library}.{re.sub('[/:]', '.', name)}.json" for name in names}
    for file in files.values():
        row = json.loads(file.read_text()) if file.exists() else {"cpu": False}
        if options.again or (options.failed and row["cpu"] and not row["virtual"]):
            file.unlink(missing_ok=True)
    return files


def families(libraries: dict[str, Classes], seed: int) -> list[tuple[str, Classes]]:
    """Library and classes of each family, which share a process, in an order that a seed makes."""
    groups = [
        (library, {name: files[name] for name in group})
        for library, files in libraries.items()
        for _, group in itertools.groupby(files, load(library).family)
    ]
    random.Random(seed).shuffle(groups)
    return groups


def collect(library: str, group: Classes) -> None:
    """Make what results of one family are not there."""
    source = load(library)
    jobs = {
        file: lambda note, name=name: trained(source.examples(name), note)
        for name, file in group.items()
        if not file.exists()
    }
    if jobs:
        in_own_process(jobs)
    for file in jobs:
        row = json.loads(file.read_text())
        print(f"{file.stem} {_word(row)} {row['reason']}", file=sys.stderr, flush=True)


def wilson(successes: int, tries: int) -> tuple[float, float]:
    """Bounds of a share, 95 % (Wilson, JASA 1927, doi:10.1080/01621459.1927.10502953)."""
    if not tries:
        return 0.0, 1.0
    z, share = 1.959964, successes / tries
    middle = share + z * z / (2 * tries)
    half = z * math.sqrt(share * (1 - share) / tries + z * z / (4 * tries * tries))
    return max(0.0, (middle - half) / (1 + z * z / tries)), min(1.0, (middle + half) / (1 + z * z / tries))


def _word(row: dict[str, Any]) -> str:
    return "-" if not row["cpu"] else "yes" if row["virtual"] else "NO"


def summary(library: str, rows: dict[str, dict[str, Any]], listed: int) -> dict[str, Any]:
    """Share of a library, of whose listed classes `rows` were run; failures by reason."""
    counted = {name: row for name, row in rows.items() if row["cpu"]}
    failed: dict[str, list[str]] = collections.defaultdict(list)
    for name, row in counted.items():
        if not row["virtual"]:
            failed[row["reason"]].append(name)
    passed = sum(row["virtual"] for row in counted.values())
    return {
        "library": library, "classes": listed, "run": len(rows), "on_cpu": len(counted), "on_virtual_gpu": passed,
        "share": passed / max(1, len(counted)), "interval": wilson(passed, len(counted)), "failures": dict(failed),
    }  # fmt: skip


def show(tables: list[dict[str, Any]]) -> float:
    """Print the table and failures by reason; the share of all libraries."""
    print(f"{'library':14} {'classes':>8} {'run':>6} {'on CPU':>7} {'virtual':>8} {'share':>7}  95 % interval")
    passed, counted = (sum(table[field] for table in tables) for field in ("on_virtual_gpu", "on_cpu"))
    whole = {"library": "all", "on_virtual_gpu": passed, "on_cpu": counted, "failures": {}}
    whole |= {field: sum(table[field] for table in tables) for field in ("classes", "run")}
    whole |= {"share": passed / max(1, counted), "interval": wilson(passed, counted)}
    for table in [*tables, whole]:
        counts = f"{table['classes']:8} {table['run']:6} {table['on_cpu']:7} {table['on_virtual_gpu']:8}"
        low, high = table["interval"]
        print(f"{table['library']:14} {counts} {table['share']:7.1%}  {low:.1%} to {high:.1%}")
        for reason, names in sorted(table["failures"].items(), key=lambda item: -len(item[1])):
            print(f"    {len(names):3} {reason}\n        {', '.join(names[:6])}")
    return whole["share"]


def main() -> None:
    """Run, print, exit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", default=list(LIBRARIES))
    parser.add_argument("--results", type=Path, required=True, help="folder for one JSON file per class")
    parser.add_argument("--only", default="", help="regular expression of class names")
    parser.add_argument("--seed", type=int, default=0, help="of the order of families")
    parser.add_argument("--most", type=int, help="run so many families at most")
    parser.add_argument("--again", action="store_true", help="do not use results that are there")
    parser.add_argument("--failed", action="store_true", help="do those again that failed on the virtual GPU only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with forerun.virtual_cuda(CARD), torch.no_grad():  # children inherit imports; autograd's threads cannot be forked
        torch.nn.Linear(2, 2).cuda()(torch.zeros(1, 2, device="cuda"))
    options.results.mkdir(parents=True, exist_ok=True)
    libraries = {library: classes(library, options) for library in options.libraries}
    for library, group in families(libraries, options.seed)[: options.most]:
        collect(library, group)
    tables = []
    for library, files in libraries.items():
        rows = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        tables.append(summary(library, rows, len(files)))
    share = show(tables)
    line = {"benchmark": "zoo", "version": VERSION, "share": share, "torch": torch.__version__, "libraries": tables}
    print(json.dumps(line))
    sys.exit(share < GOAL)


if __name__ == "__main__":
    main()
