"""How often a detector flags files that people are known to have written."""

from forerun.records import Record


class KnownHuman(Record):
    """Files of one origin and how many are flagged, with a 95 % interval of the share."""

    name: str
    """Where the files come from."""
    files: int
    flagged: int
    low: float
    high: float
