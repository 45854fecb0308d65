"""Wall and processor seconds of the guides of `docs/guides`, each run from top to bottom as a reader would.

    python -m benchmarks.guides [GUIDE ...] [--to FILE]        a table and one JSON line; fifteen minutes on two cores

Every line of a guide's `sh` blocks runs in an empty folder with a ledger and a cache of its own, as in
`tests/test_guides.py`. `wall` is what a reader waits, `processor` what all processes of the line took; `load` is the
machine's average over a minute when the line ended. Threads are those of the environment (`OMP_NUM_THREADS`). Method
version 1.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from test_guides import CRITERION_FAILED, EXPECTED, GUIDES, commands  # noqa: E402


def environment(folder: Path) -> dict[str, str]:
    """That of a reader with the package installed, and nothing kept of earlier runs."""
    programs = folder / "bin"
    programs.mkdir()
    for name, call in (("forerun", "-m forerun "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        (programs / name).chmod(0o755)
    return {
        **os.environ, "GUIDES": str(GUIDES), "HF_HUB_OFFLINE": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FORERUN_LEDGER": f"sqlite:///{folder / 'ledger.sqlite'}", "FORERUN_CACHE": str(folder / "cache"),
    }  # fmt: skip


def processor_seconds() -> float:
    """Of all children that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_guide(guide: str, folder: Path) -> list[dict[str, Any]]:
    """What each line took."""
    settings, lines = environment(folder), []
    work = folder / "work"
    work.mkdir()
    for line in commands(guide):
        start, processor = time.perf_counter(), processor_seconds()
        result = subprocess.run(line, shell=True, cwd=work, env=settings, capture_output=True, text=True)
        if result.returncode not in ((0, CRITERION_FAILED) if "may end with 4" in line else (0,)):
            raise SystemExit(f"{guide}: {line}\nended with {result.returncode}: {result.stderr[-2000:]}")
        lines.append({
            "line": line, "exit_code": result.returncode, "wall_seconds": time.perf_counter() - start,
            "processor_seconds": processor_seconds() - processor, "load": os.getloadavg()[0],
            "tail": result.stdout[-3000:],
        })  # fmt: skip
        row = lines[-1]
        print(
            f"{guide:11}{row['wall_seconds']:7.1f} s{row['processor_seconds']:8.1f} s{row['load']:6.1f}  {line[:90]}",
            flush=True,
        )
    return lines


def main() -> None:
    """Run, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("guides", nargs="*", metavar="|".join(EXPECTED), help="all by default")
    parser.add_argument("--to", type=Path, help="file for the JSON line")
    options = parser.parse_args()
    print(f"{'':11}{'wall':>9}{'processor':>10}{'load':>6}")
    found = {}
    for guide in options.guides or list(EXPECTED):
        with tempfile.TemporaryDirectory() as place:
            found[guide] = run_guide(guide, Path(place))
        whole = [sum(row[name] for row in found[guide]) for name in ("wall_seconds", "processor_seconds")]
        print(f"{guide:11}{whole[0]:7.1f} s{whole[1]:8.1f} s        the whole page", flush=True)
    document = json.dumps({"version": 1, "threads": os.environ.get("OMP_NUM_THREADS"), "guides": found})
    print(document) if options.to is None else options.to.write_text(f"{document}\n")


if __name__ == "__main__":
    main()
