"""The two clocks of one rank: the host issues operators, the device executes them in order.

The device starts an operator when it is free and the host has issued it. Time in which the device waits for the host is
`host`; reads of values make the host wait for the device. Exchanges with other ranks run beside the device, those of
one group after one another, on a stream of their own (ProcessGroupNCCL has one for each group); the device waits for
gathered weights before it uses them, where the program waits, and for all gradients before the update: that is
`communication`. While collectives run they hold some multiprocessors, and products beside them slow by that share. On
a host device (`cpu`) there is one clock.

When an exchange ends may be unknown until another rank has played its part: then the rank is held up (`is_held_up`),
and somebody plays the others first.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forerun.clock.in_parts import ProductsBeside
from forerun.clock.issuing import RECOMPUTED_SHARE
from forerun.clock.timed_calls import EXCHANGES, MESSAGE_ROLES, WITH_HOST, Role, TimedCall
from forerun.records import OperatorTime
from forerun.trace import Phase

Stream = tuple[str, tuple[int, ...]]
"""What runs one after another: messages in one direction with one rank, the collectives of a group of ranks."""
COLLECTIVES = "collectives"
IN_PARTS = "in parts"
ON_HOST: Stream = ("host", ())
"""The stream of what goes to the host and is updated there."""
FROM_HOST: Stream = ("from-host", ())
"""The stream of what comes from the host ahead of its gather."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange among ranks. It begins when the last of them can, and ends `seconds` later."""

    seconds: float
    unknown: int = 1
    """Ranks that have not come to it, and exchanges before it on their streams whose end is not known."""
    begin: float = 0.0
    end: float | None = None
    is_shared: bool = False
    """Other ranks that are played take part, and may be late."""
    followers: list["Exchange"] = field(default_factory=list)

    def arrive(self, ready: float, before: "Exchange | None") -> None:
        """One rank can begin at `ready`, and not before `before` on its stream has ended."""
        self.begin = max(self.begin, ready)
        if before is not None and before.end is None:
            self.unknown += 1
            before.followers.append(self)
        elif before is not None:
            self.begin = max(self.begin, before.end or 0.0)
        self._settle()

    def _settle(self) -> None:
        """One thing less is unknown; where nothing is, the exchange ends, and those behind it may."""
        settled = [self]
        while settled:
            exchange = settled.pop()
            exchange.unknown -= 1
            if not exchange.unknown:
                exchange.end = exchange.begin + exchange.seconds
                for follower in exchange.followers:
                    follower.begin = max(follower.begin, exchange.end)
                settled += exchange.followers


class Board(Protocol):
    """Where ranks meet."""

    def exchange(self, rank: int, call: TimedCall) -> Exchange:
        """The next exchange of this kind that `rank` comes to; it has not arrived yet."""
        ...


class AloneBoard:
    """Every other rank does the same at the same time: nobody is waited for."""

    def exchange(self, rank: int, call: TimedCall) -> Exchange:
        """An exchange of its own."""
        return Exchange(call.device_seconds)


@dataclass
class RankClock:
    """The clocks of one rank while its operators are played."""

    calls: Sequence[TimedCall]
    is_host: bool = False
    communication_share: float = 0.0
    board: Board = field(default_factory=AloneBoard)
    rank: int = 0
    host: float = 0.0
    device: float = 0.0
    """When the device has ended what it was given; of several cards of one process the last of them."""
    cards: dict[int, float] = field(default_factory=dict)
    """Of each card of one process when it has ended; empty while there is one."""
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of the device by phase, of waiting for the host and of waiting for exchanges (`communication`)."""
    late_seconds: float = 0.0
    """Of the waiting for exchanges: because other ranks came later; in a pipeline its bubble."""
    totals: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    streams: dict[Stream, Exchange] = field(default_factory=dict)
    """The last exchange of each."""
    gathered: Exchange | None = None
    awaited: list[Exchange] = field(default_factory=list)
    """What the device must wait for before it goes on."""
    products: ProductsBeside = field(default_factory=ProductsBeside)
    """Those that exchanges in parts go beside."""

    def is_held_up(self) -> bool:
        """Wait for what is awaited; whether that is not known yet."""
        if not self.awaited:
            return False
        if any(exchange.end is None for exchange in self.awaited):
            return True
        for exchange in self.awaited:
            self._wait_for(exchange)
        self.awaited.clear()
        return False

    def await_use(self, call: int) -> None:
        """Await what the next call reads: gathered weights."""
        if self.gathered is not None and self.calls[call].role is Role.COPY_OUT:
            self.awaited.append(self.gathered)

    def await_all(self) -> None:
        """Await every exchange: the update needs every gradient of every rank."""
        self._wait_until(self.products.settle())
        self.awaited += self.streams.values()

    def issue_seconds(self, call: int, *, is_again: bool) -> float:
        """Seconds in which the host issues a call; `is_again`: activation checkpointing runs it a second time."""
        return self.calls[call].host_seconds * (RECOMPUTED_SHARE if is_again else 1.0)

    def play(self, call: int, phase: Phase, count: int = 1, *, is_again: bool = False) -> Exchange | None:
        """Issue and run one operator, which counts as `count`; its exchange with other ranks, if it is one."""
        timed, name = self.calls[call], phase._value_
        seconds, exchange = timed.device_seconds, None
        if self.is_host:
            self.busy["host"] += timed.host_seconds
            self.busy[name] += seconds
            self.device += timed.host_seconds + seconds
        elif timed.role in EXCHANGES or timed.role in WITH_HOST:
            self.host += timed.host_seconds
            exchange = self._begin(timed) if timed.before_product is None else self._begin_in_parts(timed, phase)
        else:
            if timed.has_flops and not timed.is_product:
                self._wait_until(self.products.settle())
            self.host += self.issue_seconds(call, is_again=is_again)
            if timed.card or timed.other_card is not None or self.cards:
                self._play_on_card(timed, name)
            elif seconds:
                wait = max(0.0, self.host - self.device)
                if timed.has_flops and self.communication_share:
                    seconds = self._beside_ranks(seconds, self.device + wait)
                self.busy["host"] += wait
                self.busy[name] += seconds
                self.device += wait + seconds
                if timed.is_product:
                    self.products.add_product(seconds, self.device)
            if timed.syncs:  # `.item()` and `nonzero` return when the device has caught up
                self.host = max(self.host, self.cards.get(timed.card, self.device))
        total = self.totals[(timed.name, name)]
        total[0] += count * timed.times
        total[1] += count * seconds
        return exchange

    def _play_on_card(self, timed: TimedCall, name: str) -> None:
        """Run a kernel on one of several cards; a copy from another waits for both, and both for it.

        Phases and waiting for the host are counted where the last card of all goes on (PyTorch's copies between
        devices wait for both streams: aten/src/ATen/native/cuda/Copy.cu, `copy_device_to_device`, 2.13).
        """
        if not timed.device_seconds:
            return
        cards = [timed.card] if timed.other_card is None else [timed.card, timed.other_card]
        if not self.cards:  # until now all was on the first
            self.cards[0] = self.device
        for card in cards:
            self.cards.setdefault(card, 0.0)
        begin = max(self.host, *(self.cards[card] for card in cards))
        end = begin + timed.device_seconds
        self.cards |= dict.fromkeys(cards, end)
        wait = min(max(0.0, begin - self.device), max(0.0, end - self.device))
        self.busy["host"] += wait
        self.busy[name] += max(0.0, end - self.device - wait)
        self.device = max(self.device, end)

    def _begin(self, timed: TimedCall) -> Exchange:
        if timed.role in WITH_HOST:
            return self._begin_with_host(timed)
        stream = (timed.role, (timed.peer or 0,)) if timed.role in MESSAGE_ROLES else (COLLECTIVES, timed.ranks)
        exchange = self.board.exchange(self.rank, timed)
        gathers = timed.role is Role.GATHER  # its input, a shard, is there; gradients are not before they are made
        ready = self._ends_of(FROM_HOST[0]) if gathers else self.device
        exchange.arrive(max(self.host, ready), self.streams.get(stream))
        self.streams[stream] = exchange
        if gathers:
            self.gathered = exchange
        if timed.role is Role.AWAITED:
            self.awaited.append(exchange)
        return exchange

    def _begin_with_host(self, timed: TimedCall) -> Exchange:
        """A copy over the link, each way on a stream of its own, or an update of what came to the host."""
        exchange, ready, stream = Exchange(timed.device_seconds), self.host, FROM_HOST
        if timed.role is not Role.FROM_HOST:  # that is there: the last step ended with its update
            stream, ready = ON_HOST, max(self.host, self.device)
        if timed.role is Role.TO_HOST:
            ready = max(ready, self._ends_of(COLLECTIVES))
        exchange.arrive(ready, self.streams.get(stream))
        self.streams[stream] = exchange
        return exchange

    def _ends_of(self, kind: Hashable) -> float:
        """When what is known of the streams of a kind has ended."""
        return max((last.end or 0.0 for stream, last in self.streams.items() if stream[0] == kind), default=0.0)

    def _begin_in_parts(self, timed: TimedCall, phase: Phase) -> Exchange:
        """A gather before products, or a scatter after them, that goes beside them."""
        self._wait_until(self.products.settle())
        stream, ranks = (IN_PARTS, timed.ranks), max(1, len(timed.ranks))
        exchange = self.board.exchange(self.rank, timed)
        if exchange.is_shared:  # with ranks that are played: it ends when nobody knows yet
            exchange.arrive(max(self.host, self.device), self.streams.get(stream))
            self.awaited.append(exchange)
        elif timed.before_product:
            exchange.arrive(max(self.host, self.device), self.streams.get(stream))
            self.products.begin_gather(exchange, ranks)
        else:
            earlier = self.products.hidden_by(phase, ranks)
            exchange.arrive(max(self.host, self.device - earlier), self.streams.get(stream))
            if exchange.end is not None:  # its last part goes when the last of the product is there
                exchange.end = max(exchange.end, self.device + exchange.seconds / ranks)
            self.awaited.append(exchange)
        self.streams[stream] = exchange
        return exchange

    def _beside_ranks(self, seconds: float, begin: float) -> float:
        """Time of a kernel from `begin` on when collectives hold a share of the multiprocessors until they end."""
        ends = [last.end for stream, last in self.streams.items() if last.end and stream[0] == COLLECTIVES]
        remaining = max(ends, default=0.0) - begin
        if remaining <= 0:
            return seconds
        beside = remaining * (1 - self.communication_share)
        return seconds / (1 - self.communication_share) if beside >= seconds else seconds + remaining - beside

    def _wait_for(self, exchange: Exchange) -> None:
        """The device can go on only when an exchange has ended."""
        wait = self._wait_until(exchange.end or 0.0)
        if exchange.is_shared:
            self.late_seconds += max(0.0, wait - exchange.seconds)

    def _wait_until(self, end: float) -> float:
        """The device goes on at `end` at the earliest; seconds that it waits."""
        wait = max(0.0, end - self.device)
        self.busy["communication"] += wait
        self.device += wait
        return wait

    def skip(self, seconds: float) -> None:
        """Let time pass, in which what was played goes on in the same way."""
        self.host += seconds
        self.device += seconds
        self.cards = {card: end + seconds for card, end in self.cards.items()}
        for exchange in {id(each): each for each in (*self.streams.values(), self.gathered) if each}.values():
            exchange.end = (exchange.end or 0.0) + seconds

    def finish(self) -> None:
        """The step ends when both clocks have ended, and what lives on the host is back."""
        if ON_HOST in self.streams:
            end = self.streams[ON_HOST].end or 0.0
            self.busy["optimizer"] += max(0.0, end - self.device)
            self.device = max(self.device, end)
        if not self.is_host and self.host > self.device:
            self.busy["host"] += self.host - self.device

    def operators(self) -> tuple[OperatorTime, ...]:
        """Operator classes by time, most first."""
        rows = [
            OperatorTime(name=name.removeprefix("aten."), phase=phase, calls=int(calls), seconds=seconds)
            for (name, phase), (calls, seconds) in self.totals.items()
            if seconds
        ]
        return tuple(sorted(rows, key=lambda row: -row.seconds))
