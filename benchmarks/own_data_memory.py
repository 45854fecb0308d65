"""Own data larger than memory: seconds to the first step and peak resident set of `forerun run`, by file.

    python benchmarks/own_data_memory.py [GB] [text|labels|chats ...]      a table and one JSON line; 1 GB by default
    python benchmarks/own_data_memory.py 5 text --words DATA --once

Each file is made here. A row is 20 to 200 words of a Zipf law over 50,000 made-up ones; with `--words` it is 1 to 10
sentences drawn from the speeches and Wikipedia articles in `DATA/lm_text`. It is trained on for three steps with the
cheapest model from scratch, twice (`--once`: once): `first` reads, splits and tokenises, `again` opens what the first
run kept. 10 % of the rows watch and 10 % judge, as a run has them that says nothing, of which at most 20,000 each are
scored; `scoring` is from the last step to the end, the baselines included. `rows` and `tokens` are those trained on;
`MB/s` are bytes of the file by seconds to the first step; `resident` is the larger of the child's largest resident set
(`ru_maxrss`) and of what it and its workers held together when looked at (proportional sets, twice a second); `disk` is
what rows and tokens take in the cache; `processor` is the processor time of the whole run, which other programs of a
shared machine do not lengthen. Limit: 4 GB (10^9 bytes) of host memory whatever the file's size. Method version 3
(2: 0.1 % of the rows watched and judged; 1: the largest resident set of any one process).
"""

import argparse
import contextlib
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

WORDS, SEED, PIECE = 50_000, 0, 20_000
SENTENCE_END = re.compile(r"(?<=[.!?]) |\n+")
MOST_SENTENCES = 10
LIMIT_BYTES = 4 * 10**9
LOOK_SECONDS = 0.5
KILOBYTE = 1024
"""Unit of `ru_maxrss` on Linux: getrusage(2)."""
SIZE = {"vocab_size": 8192}
KINDS = {
    "text": ("rows.jsonl", {"workload": "causal-lm", "model": {"name": "tiny-gpt2", "config": SIZE}}),
    "labels": ("rows.csv", {"workload": "sequence-classification", "model": {"name": "tiny-bert", "config": SIZE}}),
    "chats": ("rows.jsonl", {"workload": "causal-lm", "model": {"name": "tiny-llama", "config": SIZE}}),
}
SETTINGS = {
    "name": "own-data-memory", "precision": "fp32", "schedule": {"max_steps": 3},
    "batch": {"micro_batch_size": 8, "sequence_length": 128, "padding": "bucketed"},
}  # fmt: skip


def sentences() -> Iterator[str]:
    """Rows of words without end."""
    chance, spelling = np.random.default_rng(SEED), random.Random(SEED)
    letters = "etaoinshrdlucmfwypvbgk"
    words = np.asarray(["".join(spelling.choices(letters, k=spelling.randint(2, 9))) for _ in range(WORDS)])
    share = 1 / np.arange(1, WORDS + 1)
    edges = np.cumsum(share / share.sum())
    while True:
        sizes = chance.integers(20, 200, PIECE)
        drawn = words[np.minimum(np.searchsorted(edges, chance.random(sizes.sum())), WORDS - 1)].tolist()
        first = 0
        for size in sizes.tolist():
            yield " ".join(drawn[first : first + size])
            first += size


def real_sentences(data: Path) -> Iterator[str]:
    """Rows of sentences that people wrote, without end; without quotes and backslashes, so that JSON has them as is."""
    chance, texts = np.random.default_rng(SEED), []
    with gzip.open(data / "lm_text" / "us_presidential_speeches.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts += [json.loads(line)["text"] for line in lines]
    with gzip.open(data / "lm_text" / "wikipedia_raw_sample.txt.gz", "rt", encoding="utf-8") as text:
        texts.append(text.read())
    clean = re.sub(r'["\\\x00-\x09\x0b-\x1f]', " ", "\n".join(texts))
    pool = [part.strip() for part in SENTENCE_END.split(clean) if len(part.strip()) > 20]
    while True:
        sizes = chance.integers(1, MOST_SENTENCES + 1, PIECE)
        drawn = chance.integers(0, len(pool), int(sizes.sum())).tolist()
        first = 0
        for size in sizes.tolist():
            yield " ".join([pool[place] for place in drawn[first : first + size]])
            first += size


def write_file(path: Path, kind: str, size_bytes: int, rows: Iterator[str]) -> None:
    """A file of `kind` of at least `size_bytes`."""
    with path.open("w", encoding="utf-8") as file:
        if kind == "labels":
            file.write("text,label\n")
        while file.tell() < size_bytes:
            for number, text in zip(range(PIECE), rows, strict=False):
                if kind == "labels":
                    line = f"{text},{('no', 'yes', 'perhaps')[number % 3]}"
                elif kind == "text":
                    line = f'{{"text": "{text}"}}'
                else:
                    half = len(text) // 2
                    turns = (("user", text[:half].strip()), ("assistant", text[half:].strip()))
                    line = json.dumps({"messages": [{"role": role, "content": own} for role, own in turns]})
                file.write(f"{line}\n")


class FamilyMemory(threading.Thread):
    """Largest memory that a process and those it started held together, in bytes."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._family, self.peak_bytes = psutil.Process(process), 0

    def run(self) -> None:
        """Look until the process is gone."""
        while True:
            try:
                members = [self._family, *self._family.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            sizes = []
            for member in members:
                with contextlib.suppress(psutil.Error, OSError):
                    sizes.append(member.memory_full_info().pss)
            self.peak_bytes = max(self.peak_bytes, sum(sizes))
            time.sleep(LOOK_SECONDS)


def measured(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """One run in a process of its own."""
    source, settings = KINDS[kind]
    data = {"source": str(folder / source)}
    file = folder / "run.yaml"
    file.write_text(json.dumps({**SETTINGS, **settings, "data": data}))
    environment = {
        **os.environ, "FORERUN_CACHE": str(folder / "cache"), "FORERUN_LEDGER": f"sqlite:///{folder}/ledger.sqlite"
    }  # fmt: skip
    start, first_step, last_step, tail = time.perf_counter(), None, None, ""
    with (folder / "out.json").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "forerun", "run", str(file), "--json"], cwd=folder, env=environment, stdout=out,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stderr is not None
        family = FamilyMemory(child.pid)
        family.start()
        for line in child.stderr:
            if first_step is None and line.startswith("step 1/"):
                first_step = time.perf_counter() - start
            if line.startswith("Training is done"):
                last_step = time.perf_counter() - start
            tail = line
        _, status, usage = os.wait4(child.pid, 0)
    whole = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 4):  # 4: three steps do not beat a baseline
        raise SystemExit(f"{kind}: forerun run ended with {code}: {tail}")
    manifests = [json.loads(path.read_text()) for path in (folder / "cache").glob("*/entry.json")]
    files = [file for manifest in manifests for file in manifest["files"].values()]
    run = json.loads((folder / "out.json").read_text())
    samples = max((folder / "cache").glob("*/side-0/ends.npy"), key=lambda path: path.stat().st_size)
    ends, size = np.load(samples, mmap_mode="r"), (folder / source).stat().st_size
    assert first_step is not None, tail
    assert last_step is not None, tail
    return {
        "kind": kind, "run": name, "rows": len(ends), "tokens": int(ends[-1]), "first_step_seconds": first_step,
        "whole_seconds": whole, "scoring_seconds": whole - last_step,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "resident_bytes": max(usage.ru_maxrss * KILOBYTE, family.peak_bytes),
        "file_bytes": size, "prepared_bytes_per_second": size / first_step,
        "disk_bytes": sum(file["bytes"] for file in files), "steps": run["measurement"]["run"]["total_steps"],
    }  # fmt: skip


def main() -> None:
    """Make the files, measure the runs of each, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("gigabytes", nargs="?", type=float, default=1.0)
    parser.add_argument("kinds", nargs="*", metavar="|".join(KINDS), help="all by default")
    parser.add_argument("--words", type=Path, metavar="DATA", help="folder of data with lm_text")
    parser.add_argument("--once", action="store_true", help="only the first run")
    options = parser.parse_args()
    results = []
    print(
        f"{'':8}{'':7}{'rows':>11}{'tokens':>15}{'first step':>12}{'MB/s':>7}{'scoring':>10}{'whole run':>11}"
        f"{'processor':>11}{'resident':>10}{'disk':>9}"
    )
    for kind in options.kinds or list(KINDS):
        with tempfile.TemporaryDirectory() as place:
            rows = sentences() if options.words is None else real_sentences(options.words)
            write_file(Path(place) / KINDS[kind][0], kind, int(options.gigabytes * 10**9), rows)
            for name in ("first",) if options.once else ("first", "again"):
                row = measured(Path(place), kind, name)
                results.append(row)
                print(
                    f"{kind:8}{name:7}{row['rows']:11,}{row['tokens']:15,}{row['first_step_seconds']:10,.0f} s"
                    f"{row['prepared_bytes_per_second'] / 10**6:7.1f}{row['scoring_seconds']:8,.0f} s"
                    f"{row['whole_seconds']:9,.0f} s"
                    f"{row['processor_seconds']:9,.0f} s"
                    f"{row['resident_bytes'] / 10**9:7.2f} GB{row['disk_bytes'] / 10**9:6.2f} GB", flush=True,
                )  # fmt: skip
    is_within = all(row["resident_bytes"] < LIMIT_BYTES for row in results)
    print(json.dumps({"version": 3, "gigabytes": options.gigabytes, "is_within_limit": is_within, "runs": results}))


if __name__ == "__main__":
    main()
