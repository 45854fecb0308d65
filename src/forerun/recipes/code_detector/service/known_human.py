"""How often a detector flags files that people are known to have written, of sources that it has not seen."""

from typing import Literal

from forerun.records import Record


class KnownHuman(Record):
    """Files of one source and how many are flagged, with a 95 % interval of the share."""

    name: str
    """Where the files come from."""
    files: int
    flagged: int
    low: float
    high: float
    language: str | None = None
    """Language of all files; null where nobody said."""
    flagged_alone: int | None = None
    """How many the detector would flag without its second opinion; null where there is none."""
    looked_at: bool = False
    """Whether its rate was known while the detector's design was chosen, so that it is no test of that choice."""

    @property
    def label(self) -> str:
        """Its name, with a word where it was looked at before."""
        return f"{self.name} (looked at before)" if self.looked_at else self.name

    def promise(self, budget: float) -> Literal["broken", "kept", "open"]:
        """Whether the interval says that at most `budget` of such files are flagged."""
        return "broken" if self.low > budget else "kept" if self.high <= budget else "open"
