"""What was tried to break Forerun, and what came of it: attacks are run and kept, docs/robustness.md is made of them.

    python -m benchmarks.robustness run fuzz --questions 500 --seed 7     run benchmarks/fuzz.py so, keep what it says
    python -m benchmarks.robustness keep kills@COMMIT OUTPUT …            keep outputs of runs made elsewhere
    python -m benchmarks.robustness start                                 time `forerun --help`, ten times
    python -m benchmarks.robustness note fuzz "words"                     what was found out about a table's failures
    python -m benchmarks.robustness                                       write the page again

Scripts: fuzz, covering, monotone, escapes, kills, faults, service_attacks. What is kept is the JSON line that ends each
output, in `robustness.jsonl`. Fuzz runs of different seeds are added up, so ten thousand can be asked in parts
and go on after a stop: a seed that is kept at this commit is not asked again. Else the newest run counts.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forerun.units import GIB

ROOT = Path(__file__).parents[1]
FILE, PAGE = Path(__file__).parent / "robustness.jsonl", ROOT / "docs" / "robustness.md"
SCRIPTS = ("fuzz", "covering", "monotone", "escapes", "kills", "faults", "service_attacks")
STARTS = 10
Content = dict[str, Any]
HEAD = """# What was tried to break Forerun

Settings that nobody should write, programs that want out of the sandbox, killed runs, failing disks, attacks on a
served run. Written by `python -m benchmarks.robustness` from runs of the scripts that it names; each table has its
date and the load of the machine (two cores) when it began.
"""
FUZZ_GOAL = 10_000
FUZZ_BEFORE = (
    "Before there was one boundary for settings (2026-11-23): 496 of 2,606 attacked settings ended in a traceback "
    "and 7 answers took over 60 s; 152 tracebacks in 1,200 questions of this script."
)
MONOTONE_BEFORE = "The first grid (416 forecasts, 2026-11-23) broke a rule 45 times, device memory by up to 8.3 %."
COVERING_BEFORE = "Before (2026-11-23): compile with DDP failed 18 of 18 times, SGD or BERT with FSDP always."
ESCAPES_BEFORE = "Before the kernel's walls (2026-11-22): 16 of 75 ways out succeeded."


def records() -> list[Content]:
    """Everything that was kept, the oldest first."""
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()] if FILE.exists() else []


def keep(name: str, arguments: Sequence[str], document: Content, *, load: float | None, when: str, at: str) -> None:
    """Add one run's document; `at` is the commit."""
    if name == "escapes":
        tried = Counter((row["user"], row["level"], row["kind"]) for row in document["escapes"])
        out = Counter((row["user"], row["level"], row["kind"]) for row in document["escapes"] if row["got_out"])
        document = document | {"escapes": [[*key, number, out[key]] for key, number in sorted(tried.items())]}
    row = {
        "name": name, "arguments": list(arguments), "date": when, "commit": at, "load": load, "document": document,
    }  # fmt: skip
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit of this checkout, in short."""
    return subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a script, show its output, keep its last line; its exit code."""
    same = [row for row in records() if row["name"] == name == "fuzz" and row["commit"] == commit()]
    if list(arguments) in [row["arguments"] for row in same]:
        print(f"{name} {' '.join(arguments)}: kept already at this commit")
        return 0
    load, at, when = os.getloadavg()[0], commit(), _today(time.time())
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    print(result.stdout, end="")
    document = last_document(result.stdout)
    if document is None:
        print(f"{name}: ended with {result.returncode} and without its JSON line; nothing is kept", file=sys.stderr)
        return result.returncode or 1
    keep(name, arguments, document, load=load, when=when, at=at)
    return result.returncode


def last_document(output: str) -> Content | None:
    """The JSON line that ends an output; None where there is none."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def _today(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def time_starts() -> None:
    """Seconds of `forerun --help`, several times."""
    load, seconds, processor = os.getloadavg()[0], [], []
    for _ in range(STARTS):
        before, start = os.times(), time.monotonic()
        subprocess.run([sys.executable, "-m", "forerun", "--help"], capture_output=True, check=True)
        seconds.append(round(time.monotonic() - start, 3))
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        processor.append(round(used, 3))
    document = {"seconds": seconds, "processor_seconds": processor}
    keep("start", (), document, load=load, when=_today(time.time()), at=commit())


def page() -> str:
    """The whole page."""
    kept = records()
    lines = [HEAD, *_fuzz([row for row in kept if row["name"] == "fuzz"])]
    lines += _notes(kept, "fuzz")
    newest = {row["name"]: row for row in kept if row["name"] != "note"}
    for name, show in SECTIONS.items():
        lines += [*show(newest[name]), *_notes(kept, name)] if name in newest else []
    missing = [name for name in (*SCRIPTS, "start") if name not in newest]
    if missing:
        lines += [
            "## Not run since this page exists",
            "",
            ", ".join(f"`benchmarks/{name}.py`" for name in missing) + ".",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _fuzz(rows: Sequence[Content]) -> Iterator[str]:
    rows = list({row["document"]["seed"]: row for row in rows}.values())  # of one seed the newest
    if not rows:
        return
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        for kind, outcomes in row["document"]["kinds"].items():
            kinds.setdefault(kind, Counter()).update(outcomes)
    names = sorted({name for counts in kinds.values() for name in counts}, key=lambda name: -_total(kinds, name))
    asked = sum(row["document"]["questions"] for row in rows)
    seeds = ", ".join(str(row["document"]["seed"]) for row in rows)
    longest = max(row["document"]["longest_seconds"] for row in rows)
    most = max(row["document"]["most_bytes"] for row in rows)
    failures = [line for row in rows for line in row["document"]["failures"]]
    yield f"## {asked:,} questions that nobody should ask ({_dates(rows)})\n"
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    yield (
        f"`benchmarks/fuzz.py`, seeds {seeds}, commits {commits}. Right is a documented exit code, no traceback, a "
        f"short message, within 60 s and 4 GiB, no impossible number, no code run. Longest answer {longest:.1f} s"
        f"{_loads(rows)}, most memory {most / GIB:.2f} GiB.\n"
    )
    yield "| kind of question | asked | " + " | ".join(names) + " |"
    yield "|---|--:|" + "--:|" * len(names)
    for kind in sorted(kinds):
        yield _row(kind, f"{kinds[kind].total():,}", *(f"{kinds[kind][name]:,}" for name in names))
    yield _row("**all**", f"**{asked:,}**", *(f"**{_total(kinds, name):,}**" for name in names))
    yield ""
    places = Counter(_plain(line).rstrip(": ")[:300] for line in failures)
    yield f"{len(places)} kinds of failure" + (":" if places else ".")
    yield from (f"- {line}" + (f" (in {number} parts)" if number > 1 else "") for line, number in places.items())
    late = [spent for row in rows for spent in row["document"].get("late", ())]
    if late:
        yield (
            f"\n{len(late)} more took over 60 s by the clock while others had the machine (up to "
            f"{max(clock for clock, _ in late):.0f} s), and at most {max(used for _, used in late):.0f} s of processor "
            "time, by which they were judged."
        )
    yield f"\n{FUZZ_BEFORE}"
    if asked < FUZZ_GOAL:
        yield f"\n**Short**: {FUZZ_GOAL:,} were asked for; {FUZZ_GOAL - asked:,} are missing."
    yield ""


def _notes(rows: Sequence[Content], name: str) -> list[str]:
    notes = [row for row in rows if row["name"] == "note" and row["arguments"] == [name]]
    return [f"{row['document']['text']} ({row['date']})\n" for row in notes]


def _total(kinds: dict[str, Counter[str]], name: str) -> int:
    return sum(counts[name] for counts in kinds.values())


def _covering(row: Content) -> Iterator[str]:
    own = row["document"]
    yield f"## Every two settings together ({_when(row)})\n"
    yield f"`benchmarks/covering.py`: {own['rows']:,} rows; with those made smaller, {own['forecasts']:,} forecasts.\n"
    yield "| pairs of values | forecast together | conflicts, refused in our words | not reached | failures |"
    yield "|--:|--:|--:|--:|--:|"
    in_our_words = own["conflicts"] - own["failures"]
    yield _row(
        *(f"{number:,}" for number in (own["pairs"], own["covered"], in_our_words, own["left"], own["failures"]))
    )
    yield f"\n{COVERING_BEFORE}"
    if own["left"]:
        yield f"\n**Short**: {own['left']:,} pairs were not reached in the time."
    yield ""


def _monotone(row: Content) -> Iterator[str]:
    own = row["document"]
    broken = sum(rule["broken"] for rule in own["rules"].values())
    yield f"## More never needs less ({_when(row)})\n"
    yield f"`benchmarks/monotone.py`: {own['forecasts']:,} forecasts of {own['cases']} drawn cases; a rule was broken"
    yield f"{broken:,} times, cost = time x price x cards {own['wrong_costs']} times. Bounds with their reasons:"
    yield "`BOUNDS` there, held by `tests/test_monotone.py`.\n"
    yield "| rule, quantity | pairs | broken | worst | beyond its bound |"
    yield "|---|--:|--:|--:|--:|"
    for name, rule in own["rules"].items():
        yield _row(name, rule["pairs"], rule["broken"], f"{rule['worst']:.2%}", rule.get("beyond", ""))
    reasons: dict[str, list[str]] = {}
    for name, rule in own["rules"].items():
        if rule.get("why"):
            reasons.setdefault(rule["why"], []).append(name)
    yield "\nWhy:\n" if reasons else ""
    yield from (f"- {'; '.join(names)}: {why}." for why, names in reasons.items())
    yield f"\n{MONOTONE_BEFORE}\n"


def _escapes(row: Content) -> Iterator[str]:
    own = row["document"]
    yield f"## Ways out of the sandbox ({_when(row)})\n"
    yield f"`benchmarks/escapes.py`: {own['tried']:,} tries, {own['got_out']} got out.\n"
    yield "| user | walls | kind | tried | got out |"
    yield "|---|---|---|--:|--:|"
    yield from (_row(*cells) for cells in own["escapes"])
    yield f"\n{ESCAPES_BEFORE}\n"


def _kills(row: Content) -> Iterator[str]:
    own = row["document"]
    yield f"## Killed at any moment ({_when(row)})\n"
    yield "`benchmarks/kills.py`: a resumed run must end with the same weights and all its steps.\n"
    yield "| kills | runs | began anew | torn folder left | ended otherwise |"
    yield "|--:|--:|--:|--:|--:|"
    yield _row(*(own[name] for name in ("kills", "runs", "began_anew", "torn", "faults")))
    yield ""


def _faults(row: Content) -> Iterator[str]:
    own = row["document"]
    yield f"## Machines that fail ({_when(row)})\n"
    yield f"`benchmarks/faults.py`: {own['faults']} faults of disks, checkpoints, ledger, clock, numbers and devices;"
    yield f"{own['skipped']} could not be made on this machine. Wrong: {', '.join(own['wrong']) or 'none'}.\n"


def _service(row: Content) -> Iterator[str]:
    yield f"## Attacks on services ({_when(row)})\n"
    yield "`benchmarks/service_attacks.py`; service and clients share the cores.\n"
    yield "| service | attack | tried | got something | refused with 429 | last dropped after |"
    yield "|---|---|--:|--:|--:|--:|"
    services = row["document"]["services"]
    for service in services:
        for attack in service["attacks"]:
            dropped = attack["last_dropped_seconds"]
            yield _row(
                service["name"], attack["name"], attack["tried"], attack["got_something"], attack["refused"] or "",
                "" if dropped is None else f"{dropped:.1f} s",
            )  # fmt: skip
    yield "\n| service | clients that behave | requests | errors | p50 | p99 |"
    yield "|---|---|--:|--:|--:|--:|"
    for service in services:
        for label, name in (("alone", "alone"), ("beside half-sent requests", "beside"), ("beside a flood", "flooded")):
            load = service[name]
            times = f"{load['p50']:.3f} s", f"{load['p99']:.3f} s"
            yield _row(service["name"], label, load["requests"], load["errors"], *times)
    yield ""


def _start(row: Content) -> Iterator[str]:
    seconds, processor = (row["document"][name] for name in ("seconds", "processor_seconds"))
    yield f"## Start of the command line ({_when(row)})\n"
    yield (
        f"`forerun --help`, {len(seconds)} times: median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to "
        f"{max(seconds):.2f} s; processor time {statistics.median(processor):.2f} s. The goal is 0.4 s.\n"
    )


SECTIONS = {
    "covering": _covering, "monotone": _monotone, "escapes": _escapes, "kills": _kills, "faults": _faults,
    "service_attacks": _service, "start": _start,
}  # fmt: skip


def _when(row: Content) -> str:
    command = " ".join(row["arguments"])
    return f"{row['date']}, commit {row['commit']}{_loads([row])}" + (f", `{command}`" if command else "")


def _dates(rows: Sequence[Content]) -> str:
    return " and ".join(sorted({row["date"] for row in rows}))


def _loads(rows: Sequence[Content]) -> str:
    loads = sorted({round(row["load"]) for row in rows if row["load"] is not None})
    return f", load {' to '.join(map(str, loads[:: max(1, len(loads) - 1)]))}" if loads else ""


def _row(*cells: object) -> str:
    return "| " + " | ".join(_plain(str(cell)) for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text that fits into one cell, without the folder that it was asked in."""
    return re.sub(r"/tmp/\w+", "…", " ".join(text.replace("|", "/").split()))


def main() -> None:
    """Run, keep, write the page."""
    what, *rest = sys.argv[1:] or ["page"]
    code = 0
    name, _, at = (rest[0] if rest else "").partition("@")
    if what == "run" and name in SCRIPTS:
        code = run(name, rest[1:])
    elif what == "keep" and name in SCRIPTS:
        for path in map(Path, rest[1:]):
            document = last_document(path.read_text(encoding="utf-8"))
            if document is not None:
                keep(name, (), document, load=None, when=_today(path.stat().st_mtime), at=at or commit())
    elif what == "start":
        time_starts()
    elif what == "note" and len(rest) == 2:
        keep("note", [name], {"text": rest[1]}, load=None, when=_today(time.time()), at=commit())
    elif what != "page":
        sys.exit(f"run SCRIPT …, keep SCRIPT OUTPUT …, start, or nothing. Scripts: {', '.join(SCRIPTS)}.")
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main()
