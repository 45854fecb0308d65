"""Forecasts of rows, made by worker processes that each see one set of libraries, and kept between runs.

Each is kept with a digest of what it follows from (the row, the programs here, our code), so that a run that was
stopped can go on with the rest. It lies in `.forecasts.json`, which git ignores: rows of the test half are nobody's to
read one by one, and `--only` makes some anew without the others.
"""

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.scoreboard.libraries import SETS, search_path
from benchmarks.scoreboard.rows import Row

from forerun.forecasting.made_with import package_digest

ROOT = Path(__file__).resolve().parents[2]
STORE = Path(__file__).parent / ".forecasts.json"
CHUNK = 8
"""Rows of one worker process: its results are kept when it ends."""
PROGRAMS = ("programs.py", "worker.py", "libraries.py")
Forecasts = dict[str, dict[str, Any]]


def stored() -> Forecasts:
    """Forecasts of earlier runs by row id."""
    return json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}


def commit() -> str:
    """The commit of the working tree, in short."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def follows_from(row: Row) -> str:
    """Digest of all that the forecast of `row` follows from, but for installed libraries."""
    programs = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in PROGRAMS]
    return hashlib.sha256(json.dumps([asdict(row), package_digest(), programs]).encode()).hexdigest()[:16]


def forecast_all(rows: list[Row], processes: int, *, resumes: bool = False) -> Forecasts:
    """Forecasts by row id, added to the stored ones as they come; if it `resumes`, not of rows that are up to date."""
    digests = {row.id: follows_from(row) for row in rows}
    if resumes:
        kept = stored()
        rows = [row for row in rows if kept.get(row.id, {}).get("follows_from") != digests[row.id]]
        print(f"{len(digests) - len(rows)} rows are up to date", file=sys.stderr)
    chunks = []
    for name in SETS:
        of_set = [row for row in rows if row.library == name]
        chunks += [(name, of_set[k : k + CHUNK]) for k in range(0, len(of_set), CHUNK)]
    forecasts, made_at = stored(), commit()
    with ThreadPoolExecutor(processes) as pool:
        for done, batch in enumerate(pool.map(lambda chunk: run_worker(*chunk), chunks)):
            forecasts |= {
                each["id"]: each | {"follows_from": digests[each["id"]], "made_at": made_at} for each in batch
            }
            STORE.write_text(json.dumps(forecasts), encoding="utf-8")
            print(f"{done + 1} of {len(chunks)} parts", file=sys.stderr, flush=True)
    return forecasts


def run_worker(library: str, rows: list[Row]) -> list[dict[str, Any]]:
    """Forecasts of `rows` in a process that sees `library`; errors for all where it cannot be installed."""
    try:
        folder = search_path(library)
    except RuntimeError as error:
        return [{"id": row.id, "error": str(error)} for row in rows]
    paths = [*([str(folder)] if folder else []), str(ROOT / "src"), str(ROOT)]
    paths += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    lines = "\n".join(json.dumps(asdict(row)) for row in rows)
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scoreboard.worker"]
    process = subprocess.run(command, input=lines, capture_output=True, text=True, env=environment, check=False)
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    missing = rows[len(results) :]
    return results + [{"id": row.id, "error": f"worker ended: {process.stderr[-300:]}"} for row in missing]
