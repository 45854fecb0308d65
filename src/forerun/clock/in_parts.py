"""Exchanges of split layers that go in parts beside the products next to them (asynchronous tensor parallelism).

Of n ranks each has one part of n already: a product begins with the part that is there while others come, and each part
of its result is sent while the next is made. A gather and what reads it then end when both have ended, one part of the
product after the last part has come; a product and its scatter one part of the scatter after the product (Wang et al.
2023, Overlap Communication with Dependent Computation via Decomposition, ASPLOS). A scatter of a backward pass may go
beside all products since the last exchange, as those of weights wait for none. Parts are copied by copy engines, which
hold no multiprocessors. That smaller products run slower is not counted.
"""

from dataclasses import dataclass
from typing import Protocol

from forerun.trace import Phase


class Ended(Protocol):
    """An exchange whose end may be known."""

    @property
    def end(self) -> float | None:
        """Seconds on the clocks."""
        ...


@dataclass
class ProductsBeside:
    """The products of one rank since its last exchange, and the gather that they go beside."""

    gather: Ended | None = None
    ranks: int = 1
    since: float = 0.0
    """Seconds of products since then."""
    last: float = 0.0
    """Seconds of the last of them."""

    def begin_gather(self, gather: Ended, ranks: int) -> None:
        """A gather begins, beside the products that follow."""
        self.gather, self.ranks, self.since, self.last = gather, ranks, 0.0, 0.0

    def add_product(self, seconds: float, device: float) -> None:
        """A product has ended at `device`; where the gather has, and a part of the products after it, it is done."""
        self.since, self.last = self.since + seconds, seconds
        if self.gather is not None and device >= self._end():
            self.gather, self.since = None, 0.0

    def settle(self) -> float:
        """When what reads the gather can have ended; what follows needs all of it."""
        if self.gather is None:
            return 0.0
        end, self.gather, self.since = self._end(), None, 0.0
        return end

    def hidden_by(self, phase: Phase, ranks: int) -> float:
        """Seconds before now in which a scatter could go, beside products that ended now."""
        seconds = self.last if phase is Phase.FORWARD else max(self.since, self.last)
        self.since, self.last = 0.0, 0.0
        return seconds * (1 - 1 / ranks)

    def _end(self) -> float:
        end = self.gather.end if self.gather is not None else None
        return (end or 0.0) + self.since / self.ranks
