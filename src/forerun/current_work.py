"""What is the program doing at this moment, for somebody who waits? Long work says its name; nothing is shown here.

    with work("tracing a step of 32 x 512 tokens") as say:
        …
        say("the same, recomputed")

`cli/waiting.py` shows it after two seconds. Work inside work hides the outer one until it is done; threads share one
list, because whoever waits, waits for all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_works: list[list[str]] = []
_places: list[Callable[[], str]] = []


@contextmanager
def work(what: str) -> Iterator[Callable[[str], None]]:
    """Say what is done inside; the function that is given changes the words."""
    entry = [what]

    def say(words: str) -> None:
        entry[0] = words

    _works.append(entry)
    try:
        yield say
    finally:
        for place, other in enumerate(_works):  # not `remove`: equal words are not the same work
            if other is entry:
                del _works[place]
                break


@contextmanager
def at(place: Callable[[], str]) -> Iterator[None]:
    """Let whoever waits long be told how far the work inside has come, which `place` says whenever it is asked."""
    _places.append(place)
    try:
        yield
    finally:
        _places.remove(place)


def current_place() -> str:
    """How far the innermost work that says so has come; empty where none does."""
    return _places[-1]() if _places else ""


def current_work() -> str:
    """Words of the innermost work; empty where there is none."""
    return _works[-1][0] if _works else ""
