"""How often the recipe's own detector flagged people whom it has not seen: measured, and said beside every score.

`unseen_people.json` is written by `python -m benchmarks.origins people=FILE`, from an exported run and rows that may
not be passed on. Another detector has other rates; this one's say what a promise made on validation files is worth.
"""

import json
from functools import cache
from pathlib import Path

from forerun.recipes.code_detector.service.known_human import KnownHuman
from forerun.records import Record

WORTH_SAYING_FILES = 100
"""Files of a source below which its rate says nothing; the recipe's page has them all."""
FILE = Path(__file__).parent / "unseen_people.json"


class UnseenPeople(Record):
    """Rates of one exported run on people's files of sources that it has not seen."""

    run: str
    date: str
    budget: float
    """Share of people's files that its threshold promises to flag at most."""
    rates: tuple[KnownHuman, ...]

    def sentence(self) -> str:
        """What every answer says of it; the worst source first."""
        ordered = sorted(
            (row for row in self.rates if row.files >= WORTH_SAYING_FILES), key=lambda row: -row.flagged / row.files
        )
        parts = [f"{_source(row)} ({row.flagged / row.files:.1%}, {self._worth(row)})" for row in ordered]
        return (
            f"Measured {self.date} on people whom the recipe's own detector (run {self.run}) has not seen, at a "
            f"promise of {self.budget:.0%}: it flagged {'; '.join(parts)}."
        )

    def _worth(self, row: KnownHuman) -> str:
        alone = "" if row.flagged_alone is None else f", {row.flagged_alone:,} without its second opinion"
        return f"promise {row.promise(self.budget)}{alone}"


def _source(row: KnownHuman) -> str:
    language = f", {row.language}" if row.language else ""
    return f"{row.flagged:,} of {row.files:,} of {row.label}{language}"


@cache
def unseen_people() -> UnseenPeople:
    """The recorded rates, as they ship."""
    return UnseenPeople.model_validate(json.loads(FILE.read_text(encoding="utf-8")))
