"""Traces of one workload, shared by the cards that answer alike what its trace asked of the first.

A trace follows from settings, batch and workload, and from those facts of the card that were asked for while it was
made. A second card with the same facts has the same trace. What is shared lives as long as the request.
"""

from collections.abc import Callable
from typing import Any

from forerun.hardware.catalogue import Device
from forerun.trace import Trace


class SharedTraces:
    """Traces by what they are of, each with the facts of the card that it follows from."""

    def __init__(self) -> None:
        self._traces: dict[str, list[tuple[object, dict[str, Any], Trace | None]]] = {}

    def trace(self, key: str, workload: object, device: Device, make: Callable[[Device], Any]) -> Any:
        """The trace that `key` names of `workload` for `device`: one that was made for such a card, or a new one."""
        traces = self._traces.setdefault(key, [])
        for owner, facts, trace in traces:
            if owner is workload and all(getattr(device, name) == value for name, value in facts.items()):
                return trace
        watched, questions = watched_device(device)
        trace = make(watched)
        traces.append((workload, {name: getattr(device, name) for name in questions}, trace))
        return trace


def watched_device(device: Device) -> tuple[Device, set[str]]:
    """The same device, and the names of its fields that were asked for so far."""
    questions: set[str] = set()

    class Watched(Device):
        """Notes what is asked of it."""

        def __getattribute__(self, name: str) -> Any:
            if name in Device.model_fields:
                questions.add(name)
            return super().__getattribute__(name)

    return Watched.model_construct(**{name: getattr(device, name) for name in Device.model_fields}), questions
