"""Run the parts of a search side by side: in this process, in others here, or on a Ray cluster where that is installed.

Functions and arguments must pickle. Results come in the order of the arguments.
"""

import contextlib
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol, TypeVar

from forerun.errors import InvalidSettings, NotSupported

Outcome = TypeVar("Outcome")


class FanOut(Protocol):
    """Runs a function on each of several parts."""

    workers: int
    """That work at once."""

    def map(self, function: Callable[..., Outcome], *parts: Sequence[Any]) -> Iterable[Outcome]:
        """Results of `function` on the first of all `parts`, the second, and so on."""
        ...


class InThisProcess:
    """One after the other."""

    workers = 1

    def map(self, function: Callable[..., Outcome], *parts: Sequence[Any]) -> Iterable[Outcome]:
        """As of `FanOut`."""
        return list(map(function, *parts))


class InProcesses:
    """In processes of this machine."""

    def __init__(self, pool: ProcessPoolExecutor, workers: int):
        self.pool, self.workers = pool, workers

    def map(self, function: Callable[..., Outcome], *parts: Sequence[Any]) -> Iterable[Outcome]:
        """As of `FanOut`."""
        return self.pool.map(function, *parts)


class OnRay:
    """As tasks of a Ray cluster."""

    def __init__(self, ray: Any):
        self.ray, self.workers = ray, int(ray.cluster_resources().get("CPU", 1))

    def map(self, function: Callable[..., Outcome], *parts: Sequence[Any]) -> Iterable[Outcome]:
        """As of `FanOut`."""
        task = self.ray.remote(function)
        return self.ray.get([task.remote(*each) for each in zip(*parts, strict=True)])


@contextlib.contextmanager
def fan_out(workers: str) -> Iterator[FanOut]:
    """`auto` (as many processes as this one may use processors), a number, or `ray`.

    Raises:
        InvalidSettings: it is none of these.
        NotSupported: `ray` without the package.
    """
    if workers == "ray":
        with _ray() as ray:
            yield OnRay(ray)
        return
    if workers != "auto" and not (workers.isdigit() and int(workers)):
        raise InvalidSettings(f"--workers wants a number above zero, auto or ray; found {workers!r}.")
    number = len(os.sched_getaffinity(0)) if workers == "auto" else int(workers)
    if number == 1:
        yield InThisProcess()
        return
    # A forked process inherits locks of threads that it does not have.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context) as pool:
        yield InProcesses(pool, number)


@contextlib.contextmanager
def _ray() -> Iterator[Any]:
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise NotSupported("--workers ray: the package ray is not installed. Install it, or name a number.") from error
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False)
    try:
        yield ray
    finally:
        if started:
            ray.shutdown()
