"""How often does a detector flag code that people are known to have written? Modules of this Python's standard library.

    python -m benchmarks.detector_errors FOLDER [--keep]        FOLDER: what `forerun export RUN` wrote; a minute

Files that are in the corpus, or share a tenth of a file's words in a row with one of it, are left out. Those that are
too short for a verdict do not count. `--keep` writes the rate into the export's card, so that the service's page shows
it. Prints the files with the highest scores and one JSON line.

**Not covered:** code of beginners; the library is the work of experienced people, much of it older than any model.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from forerun.evaluate.proportions import wilson
from forerun.recipes.code_detector.data.corpus import embedded
from forerun.recipes.code_detector.service.detector_card import CARD
from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.recipes.code_detector.service.messages import MOST_CHARACTERS
from forerun.recipes.code_detector.service.scoring import DetectionQuestion, verdict_of
from forerun.recipes.code_detector.service.serving import open_detector

METHOD = 1
WORDS_IN_A_ROW, MOST_SHARED = 13, 0.1
JUDGED = ("worth-a-conversation", "no-finding")
FOLDERS = (
    "", "json", "email", "asyncio", "unittest", "xml/dom", "http", "importlib", "logging", "concurrent/futures",
    "multiprocessing", "html", "urllib", "sqlite3", "wsgiref", "curses", "dbm", "tkinter", "distutils",
)  # fmt: skip


def runs(code: str) -> set[int]:
    """Hashes of every so many words in a row."""
    words = code.split()
    return {hash(tuple(words[n : n + WORDS_IN_A_ROW])) for n in range(len(words) - WORDS_IN_A_ROW + 1)}


def _share(mine: set[int], others: set[int]) -> float:
    return len(mine & others) / max(1, len(mine))


def library_files() -> dict[str, str]:
    """Text by name of the library's modules that are short enough for a request."""
    root = Path(os.__file__).parent
    paths = [path for folder in FOLDERS for path in sorted((root / folder).glob("*.py"))]
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8", errors="replace") for path in paths}
    return {name: text for name, text in texts.items() if len(text) <= MOST_CHARACTERS}


def main() -> None:
    """Score the library and print the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    detector = open_detector(options.folder)
    own = [sample.code for sample in embedded().samples if sample.language == "python"]
    known_runs = set().union(*map(runs, own))
    files = library_files()
    shared = {name: _share(runs(text), known_runs) for name, text in files.items()}
    kept = {name: text for name, text in files.items() if shared[name] < MOST_SHARED}
    rows = []
    for name, text in kept.items():
        [answer] = detector.answer([DetectionQuestion(text, "python")])
        verdict, _ = verdict_of(answer, detector.card, "python", text)
        rows.append((answer.probability, verdict, name))
    judged = sorted((row for row in rows if row[1] in JUDGED), reverse=True)
    flagged = sum(verdict == JUDGED[0] for _, verdict, _ in judged)
    interval = wilson(flagged, len(judged))
    for probability, verdict, name in judged[:10]:
        print(f"{probability:.4f}  {verdict:22} {name}")
    rate = KnownHuman(
        name=f"the standard library of Python {platform.python_version()}", files=len(judged), flagged=flagged,
        low=interval.low, high=interval.high,
    )  # fmt: skip
    left_out, unjudged = len(files) - len(kept), len(rows) - len(judged)
    print(f"{flagged} of {len(judged)} flagged; {left_out} left out as known, {unjudged} unjudged")
    if options.keep:
        path = options.folder / CARD
        path.write_text(json.dumps({**json.loads(path.read_text()), "known_human": rate.model_dump()}, indent=2))
    print(json.dumps({"method": METHOD, **rate.model_dump(), "threshold": detector.card.served.threshold}))
    sys.exit(0)


if __name__ == "__main__":
    main()
