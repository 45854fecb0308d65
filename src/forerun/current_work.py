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


def current_work() -> str:
    """Words of the innermost work; empty where there is none."""
    return _works[-1][0] if _works else ""
