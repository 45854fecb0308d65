"""Bad rows: an error that names row, rule and remedy, or, where `data.repair` allows it, a counted repair."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forerun.errors import BadData
from forerun.settings.schema import Repair

LISTED = 20
"""Most places listed for each kind of repair; all are counted."""
MEANINGS: dict[Repair, str] = {
    "empty-texts": "leaves rows with an empty text out",
    "missing-labels": "leaves rows without a label out",
    "none-apply": "reads an empty cell of several labels as: none applies",
    "ragged-rows": "leaves rows with more or fewer fields than the header out, and the header where it comes again",
    "broken-lines": "leaves lines that are no JSON object out",
    "encoding": "reads bytes that are not UTF-8 as Windows-1252, and half a surrogate pair as U+FFFD",
    "repeated-ids": "leaves all rows of one id but the first out",
    "answers-first": "leaves answers out that a chat begins with",
    "equal-answers": "leaves pairs out whose chosen and rejected answers are equal",
    "lower-ranked": "leaves messages out that are not on the best-ranked path of their tree",
    "tool-calls": "writes calls of tools into answers as <tool_call>{…}</tool_call>, whatever the chat template does",
    "broken-tools": "reads descriptions of tools that are no list of schemas as none, and calls without a name as text",
}


@dataclass
class Repairs:
    """What was left out or mended, so far."""

    allowed: Sequence[Repair] = ()
    counts: Counter[Repair] = field(default_factory=Counter)
    """Rows of each kind."""
    places: dict[Repair, list[str]] = field(default_factory=dict)
    """The first `LISTED` places of each kind."""

    rules: dict[Repair, str] = field(default_factory=dict)
    """The first broken rule of each kind, in words."""
    remedy: str = "allow data.repair: [{}]"
    """What a user does to allow a kind."""
    meanings: Mapping[Repair, str] = field(default_factory=lambda: MEANINGS)
    """What each kind does."""

    def allow(self, kind: Repair, where: str, rule: str) -> None:
        """Count a repair that the user allowed.

        Raises:
            BadData: the user did not; the message names the word that allows it.
        """
        if kind not in self.allowed:
            raise BadData(f"{where}: {rule} Correct it, or {self.remedy.format(kind)}, which {self.meanings[kind]}.")
        self.counts[kind] += 1
        self.rules.setdefault(kind, f"{where}: {rule}")
        places = self.places.setdefault(kind, [])
        if len(places) < LISTED:
            places.append(where)

    def is_none_meant(self, where: str, rule: str) -> bool:
        """Whether an empty cell of several labels says that none applies, which is counted.

        Where `missing-labels` is allowed it says nothing, and the row is to be left out: that claims less.

        Raises:
            BadData: the user allowed neither.
        """
        if "missing-labels" in self.allowed:
            return False
        self.allow("none-apply", where, f"{rule} Rows without a label can be left out: data.repair: [missing-labels].")
        return True

    def lines(self) -> list[str]:
        """One sentence for each kind of repair, with the first places."""
        return [
            f"{kind}: {self.counts[kind]} ({', '.join(self.places[kind][:3])}{' …' if self.counts[kind] > 3 else ''})"
            for kind in sorted(self.counts)
        ]
