"""Objects of a kind that are alive in this process, of which there may be millions."""

import gc
from itertools import compress
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def live_objects(kind: type[Kind]) -> list[Kind]:
    """Every object of a class and of those derived from it that Python's collector knows; those frozen are left out.

    Classes are compared, never asked: an object may answer for its class itself.
    """
    every = gc.get_objects()
    return list(compress(every, map(_with_derived(kind).__contains__, map(type, every))))


def _with_derived(kind: type) -> set[Any]:
    kinds, waiting = set[Any](), [kind]
    while waiting:
        each = waiting.pop()
        if each not in kinds:
            kinds.add(each)
            waiting += type.__subclasses__(each)
    return kinds
