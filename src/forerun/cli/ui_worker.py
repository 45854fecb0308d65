"""A process that answers one question of the pages: JSON on stdin, JSON on stdout, progress on stderr.

    python -m forerun.cli.ui_worker            {"kind": "forecast", "settings": {…}, "gpu": "t4"}

Kinds: `forecast` (the document of `forerun forecast --json`, and the points of its timeline), `changes` (of settings,
as `--what-if`), `comparison` (the document of `forerun compare --json`, over the cards that are rented out and the one
that was asked about), `nearby` (traces for other sizes, which the pages ask for while nobody waits), `studies` (of
`forerun tune`, from the database at `storage`), `script` (the document of `forerun exec --json` of a pasted program,
which runs shut in). `memory_bytes` bounds the process's address space. Whoever asked may kill it at any time.
"""

import json
import os
import resource
import sys
from typing import Any

from forerun.api import compare_settings, find_device, forecast_settings, resolve, trace_sizes_nearby, what_if_settings
from forerun.cli.options import NOT_IN_DOCUMENT, ledger_if_any
from forerun.errors import ForerunError
from forerun.hardware.catalogue import group_of_devices

BACKGROUND = 10
"""How nice a process is for which nobody waits."""


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer as a JSON document.

    Raises:
        ForerunError: as the command line would.
    """
    if "memory_bytes" in question:
        resource.setrlimit(resource.RLIMIT_AS, (question["memory_bytes"], question["memory_bytes"]))
    if question["kind"] == "studies":
        from forerun.tune.studies import studies_in

        return {"studies": studies_in(question["storage"])}
    if question["kind"] == "script":
        from forerun.web.script_job import forecast_script

        return dict(forecast_script(question["script"], find_device(question["gpu"]).name, say))
    settings = resolve(question["settings"])
    device = find_device(question["gpu"])
    if question["kind"] == "nearby":
        os.nice(BACKGROUND)
        return {"nearby": trace_sizes_nearby(settings, device)}
    if question["kind"] == "comparison":
        rented = group_of_devices("rented") or []
        cards = rented if device in rented else [device, *rented]
        with ledger_if_any([card.name for card in cards]) as ledger:
            return compare_settings(settings, cards, ledger, on_progress=say).model_dump(mode="json", by_alias=True)
    with ledger_if_any([device.name]) as ledger:
        if question["kind"] == "changes":
            return {"changes": [row.model_dump(mode="json") for row in what_if_settings(settings, device, ledger, say)]}
        say("running the step on the virtual GPU")
        forecast = forecast_settings(settings, device, ledger=ledger)
    return {
        "forecast": forecast.model_dump(mode="json", by_alias=True, exclude=NOT_IN_DOCUMENT),
        "timeline": [point.model_dump(mode="json") for point in forecast.detail.timeline],
        "operators": [row.model_dump(mode="json") for row in forecast.detail.operators],
    }


def answer_or_error(question: dict[str, Any]) -> dict[str, Any]:
    """The answer; an error of the user's is one too."""
    try:
        return answer(question)
    except ForerunError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer what is on stdin."""
    print(json.dumps(answer_or_error(json.loads(sys.stdin.read()))))


if __name__ == "__main__":
    main()
