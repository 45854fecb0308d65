"""Answers for many visitors of one small host: kept in memory, each question asked once, a queue with an end.

Nothing of a visitor is written: no ledger, no pasted configuration, no folder of this machine as a model.
"""

import asyncio
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from forerun.errors import InvalidSettings
from forerun.models.catalogue import architectures, is_folder
from forerun.units import GIB, MIB
from forerun.web.asking import AT_ONCE, Answer, answer_of

MOST_WAITING = 24
"""Questions that are asked or wait; who comes then is told so."""
MOST_KEPT_BYTES = 64 * MIB
"""Of answers as JSON; one has 10 to 300 kB."""
LIMIT_SECONDS = 120.0
WORKER_BYTES = 8 * GIB
"""Address space of each of `AT_ONCE` workers; a LLaMA-2-7B that is traced anew has 0.6 GB of it in memory."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
BUSY = {
    "error": "Too many people ask at this moment, and the queue is full. Ask again in a minute, or install Forerun: it "
    "answers on your own machine."
}


def require_public_model(name: str) -> None:
    """Refuse models that are files of this machine.

    Raises:
        InvalidSettings: it is neither in the catalogue nor written as a hub's id.
    """
    if any(name == row.name for row in architectures()):
        return
    if not HUB_ID.fullmatch(name) or is_folder(name):
        raise InvalidSettings(
            f"model.name: a model of the catalogue, or owner/name on the hub; found {name!r}. Folders are read where "
            "Forerun runs on your own machine."
        )


class SharedAnswers:
    """Answers that were given, and questions that are being asked, whoever asked them."""

    def __init__(self, ask: Callable[..., Awaitable[Answer]] = answer_of) -> None:
        self._ask = ask
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._kept_bytes = 0
        self._asked: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        self._visitors: Counter[str] = Counter()
        """How many wait for each question; one that nobody waits for ends."""

    async def ask(self, question: Mapping[str, Any], on_progress: Callable[[str], None]) -> Answer:
        """The answer to a question, kept or asked; `BUSY` where too many are asked."""
        key = json.dumps(question, sort_keys=True)
        if key in self._kept:
            self._kept.move_to_end(key)
            return json.loads(self._kept[key])
        if key not in self._asked and len(self._asked) >= MOST_WAITING:
            return BUSY
        if key not in self._asked:
            before = len(self._asked) - AT_ONCE + 1
            if before > 0:
                on_progress(f"{before} question{'s' * (before > 1)} before yours")
            self._asked[key] = asyncio.create_task(self._answer(key, question, on_progress))
        self._visitors[key] += 1
        try:
            return await asyncio.shield(self._asked[key])
        finally:
            self._visitors[key] -= 1
            if not self._visitors[key]:
                del self._visitors[key]
                self._asked.pop(key).cancel()

    async def _answer(self, key: str, question: Mapping[str, Any], on_progress: Callable[[str], None]) -> Answer:
        bounded = {**question, "memory_bytes": WORKER_BYTES}
        answer = await self._ask(bounded, on_progress, limit_seconds=LIMIT_SECONDS)
        if "error" not in answer:
            self._keep(key, json.dumps(answer))
        return answer

    def _keep(self, key: str, text: str) -> None:
        self._kept[key] = text
        self._kept_bytes += len(text)
        while self._kept_bytes > MOST_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])
