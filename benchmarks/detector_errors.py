"""How often does a detector flag code that people are known to have written? Sources that it has not seen.

    python -m benchmarks.detector_errors FOLDER [--keep]        FOLDER: what `forerun export RUN` wrote; a minute
    python -m benchmarks.detector_errors FOLDER --data FILE     people's rows of FILE, by source and language

Without FILE the files are the modules of this Python's standard library. FILE has the fields of
`forerun.recipes.code_detector.data.corpus`; rows without a `label` are people's. Sources that the detector was trained
on are left out, and so are files that share a tenth of their words in a row with the corpus. Files that are too short
for a verdict do not count. `--keep` writes
the rates into the export's card, so that every answer and the service's page show them. Prints the files with the
highest scores and one JSON line.

**Not covered:** code of beginners; the library is the work of experienced people, much of it older than any model.
"""

import argparse
import gzip
import json
import os
import platform
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forerun.evaluate.proportions import wilson
from forerun.recipes.code_detector.data.corpus import Language, embedded
from forerun.recipes.code_detector.evaluation.card import write_card
from forerun.recipes.code_detector.service.detector_card import read_card
from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.recipes.code_detector.service.messages import MOST_CHARACTERS
from forerun.recipes.code_detector.service.scoring import DetectionQuestion, verdict_of
from forerun.recipes.code_detector.service.serving import ServedDetector, open_detector

METHOD, SHOWN = 3, 5
MOST_FILES = 1000
"""Files of a source and language, drawn at random."""
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


def of_library(detector: ServedDetector) -> KnownHuman:
    """The rate on the standard library, without what the corpus holds."""
    files = without_known(library_files(), "python")
    return rate(detector, f"the standard library of Python {platform.python_version()}", "python", files)


def without_known(files: dict[str, str], language: Language) -> dict[str, str]:
    """The files but for those that are in the corpus, or nearly."""
    own = [sample.code for sample in embedded().samples if sample.language == language]
    known_runs = set().union(*map(runs, own))
    shared = {name: _share(runs(text), known_runs) for name, text in files.items()}
    kept = {name: text for name, text in files.items() if shared[name] < MOST_SHARED}
    print(f"{len(files) - len(kept)} of {len(files)} left out as known")
    return kept


def of_sources(detector: ServedDetector, path: Path, most: int) -> list[KnownHuman]:
    """The rate on the people's rows of each source and language of a file that the detector has not seen."""
    groups: dict[tuple[str, Language], dict[str, str]] = {}
    for source, language, name, code in people_of(path):
        if source not in detector.card.sources and len(code) <= MOST_CHARACTERS:
            groups.setdefault((source, language), {})[name] = code
    rates = []
    for (source, language), texts in sorted(groups.items()):
        drawn = dict(random.Random(0).sample(sorted(texts.items()), min(most, len(texts))))
        rates.append(rate(detector, source, language, without_known(drawn, language)))
    return rates


def people_of(path: Path) -> Iterator[tuple[str, Language, str, str]]:
    """Source, language, name and code of every row that people wrote."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for line in text.decode("utf-8").split("\n"):
        row: dict[str, Any] = json.loads(line) if line.strip() else {"label": "ai"}
        if row.get("label", "human") == "human":
            yield row["source"], row["language"], row["id"], row["code"]


def rate(detector: ServedDetector, name: str, language: Language, files: Mapping[str, str]) -> KnownHuman:
    """How many of the files that get a verdict are flagged; prints those with the highest scores."""
    rows, alone, alone_threshold = [], 0, _alone_threshold(detector)
    for file, text in files.items():
        [answer] = detector.answer([DetectionQuestion(text, language)])
        verdict, _ = verdict_of(answer, detector.card, language, text)
        rows.append((answer.probability, verdict, file))
        alone += verdict in JUDGED and answer.decisive(detector.card) > alone_threshold
    judged = sorted((row for row in rows if row[1] in JUDGED), reverse=True)
    flagged = sum(verdict == JUDGED[0] for _, verdict, _ in judged)
    interval = wilson(flagged, len(judged))
    for probability, verdict, file in judged[:SHOWN]:
        print(f"{probability:.4f}  {verdict:22} {file}")
    print(f"{name}, {language}: {flagged} of {len(judged)} flagged, {len(rows) - len(judged)} without a verdict")
    return KnownHuman(
        name=name, files=len(judged), flagged=flagged, low=interval.low, high=interval.high, language=language,
        flagged_alone=alone if detector.card.has_second_opinion else None,
    )  # fmt: skip


def _alone_threshold(detector: ServedDetector) -> float:
    """Threshold of the detector without its second opinion; above all scores where it has none."""
    card = detector.card
    point = next((point for point in card.alone if point.budget == card.served.budget), None)
    return 2.0 if point is None or point.threshold is None else point.threshold


def main() -> None:
    """Score the library, or a file's people, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--most", type=int, default=MOST_FILES, help="files of a source and language, drawn at random")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    detector = open_detector(options.folder)
    rates = [of_library(detector)] if options.data is None else of_sources(detector, options.data, options.most)
    if options.keep:
        card = read_card(options.folder)
        measured = {(row.name, row.language) for row in rates}
        others = [row for row in card.known_human if (row.name, row.language) not in measured]
        write_card(card.model_copy(update={"known_human": (*others, *rates)}), options.folder)
    document = {"method": METHOD, "threshold": detector.card.served.threshold}
    print(json.dumps({**document, "rates": [row.model_dump() for row in rates]}))


if __name__ == "__main__":
    main()
