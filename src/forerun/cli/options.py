"""Options that several commands share, and what they print."""

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forerun.errors import InvalidSettings

if TYPE_CHECKING:
    from pydantic import BaseModel

    from forerun.hardware.catalogue import Device
    from forerun.ledger.store import Ledger
    from forerun.plan.choose import PlanLimits


USUAL_GPU = "a100-40gb"
"""Where no GPU is named, and none is here."""


def _starting(names: Sequence[str], word: str) -> list[str]:
    return [name for name in names if name.startswith(word)]


def complete_gpus(incomplete: str) -> list[str]:
    """GPU names for the shell; of a comma-separated list the last one."""
    from forerun.hardware.catalogue import devices

    before, comma, word = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _starting([*(device.name for device in devices()), "cpu"], word)]


def complete_models(incomplete: str) -> list[str]:
    """Names of the catalogue of models for the shell, and their hub ids once there is a slash."""
    from forerun.models.rows import architectures

    names = [row.name for row in architectures()]
    return _starting(
        [*names, *(i for row in architectures() for i in row.hub_ids)] if "/" in incomplete else names, incomplete
    )


def complete_recipes(incomplete: str) -> list[str]:
    """Recipes and their profiles for the shell."""
    from forerun.runs.registry import target_names

    return _starting(target_names(), incomplete)


def complete_targets(incomplete: str) -> list[str]:
    """Recipes, their profiles, and files of settings for the shell."""
    files = [str(path) for end in ("yaml", "yml") for path in Path().glob(f"{incomplete}*.{end}")]
    return [*complete_recipes(incomplete), *sorted(files)]


def complete_runs(incomplete: str) -> list[str]:
    """Ids of the latest runs for the shell; none where the ledger cannot be opened."""
    from forerun.errors import ForerunError
    from forerun.ledger.store import open_ledger

    try:
        with open_ledger(ledger_url()) as ledger:
            return _starting([*(row.id for row in ledger.runs(limit=50)), "last"], incomplete)
    except ForerunError:
        return []


EXIT_BAD_INPUT, EXIT_DOES_NOT_FIT, EXIT_CRITERION_FAILED, EXIT_INTERRUPTED = 2, 3, 4, 130
NOT_IN_DOCUMENT: Any = {"detail": {"timeline", "operators"}}
"""Parts of a forecast that are long and for drawing; the rest of `detail` says what the forecast was made with."""
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A recipe's name or a YAML file of settings.", autocompletion=complete_targets
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, a unique beginning of it, its folder, or `last`.", autocompletion=complete_runs
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a setting by its dotted path; repeat.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu", metavar="NAME",
        help="Catalogue name, or cpu; comma-separated or repeated. The card here by default, else a100-40gb.",
        autocompletion=complete_gpus,
    ),
]  # fmt: skip
CloudOption = Annotated[
    str | None,
    typer.Option(
        "--cloud", metavar="CLOUD", help="At this cloud's list price (forerun prices); CLOUD:spot at its spot price."
    ),
]
WhatIfOption = Annotated[
    bool, typer.Option("--what-if", help="Add a line for each change of settings: memory and time with it.")
]
BadgeOption = Annotated[
    Path | None, typer.Option("--badge", metavar="FILE", help="Write an SVG badge: fits: t4 ✓ 11.2 of 14.6 GiB.")
]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="Longest run: 90s, 30min, 2h, 1h30m.")
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, metavar="N", help="Threads of each operator on this CPU; 1 where others use its cores.",
    ),
]  # fmt: skip
BudgetOption = Annotated[float | None, typer.Option("--budget", metavar="DOLLARS", help="Most that it may cost.")]


def use_threads(threads: int | None) -> None:
    """Bound the threads of each operator, here and in processes started from here; None leaves them as they are."""
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:  # it has read the environment
            sys.modules["torch"].set_num_threads(threads)


def limits_of(deadline: str | None, budget: float | None) -> "PlanLimits":
    """Limits of a run's time and cost, from the options.

    Raises:
        InvalidSettings: a deadline that is no time, or a budget that is not above zero.
    """
    from forerun.plan.choose import PlanLimits
    from forerun.plan.limits import budget_of, seconds_of

    return PlanLimits(
        None if deadline is None else seconds_of(deadline), None if budget is None else budget_of(budget)
    )  # fmt: skip


def gpu_names(options: list[str] | None, default: str | Callable[[], str]) -> list[str]:
    """GPU names of repeated and comma-separated options, each once, in order; a `default` may have to be looked up.

    Raises:
        InvalidSettings: an option without a name in it.
    """
    if any(not option.strip(" ,") for option in options or []):
        raise InvalidSettings("--gpu: a name of the catalogue, or cpu; found nothing. `forerun gpus` lists them.")
    names = [name.strip() for option in options or [] for name in option.split(",") if name.strip()]
    return list(dict.fromkeys(names)) or [default if isinstance(default, str) else default()]


def at_prices_of(cloud: str | None, price: float | None, devices: "list[Device]") -> "list[Device]":
    """`devices` at the list prices of `cloud`, or as they are without one.

    Raises:
        InvalidSettings: `price` is stated too, or the cloud has no price of one of them.
    """
    if cloud is None:
        return devices
    if price is not None:
        raise InvalidSettings("--cloud and --price: one price; both were found. Drop one.")
    from forerun.hardware.list_prices import at_cloud

    return [at_cloud(device, cloud) for device in devices]


def usual_gpu() -> str:
    """The catalogue's name of the card here, as its driver tells without being started; else `USUAL_GPU`."""
    from forerun.hardware.catalogue import device_of_name_string
    from forerun.hardware.detect import read_card_names

    names = read_card_names()
    if not names:
        return USUAL_GPU
    here = device_of_name_string(names[0])
    if here is None:
        say_note(f"{names[0]} is not in the catalogue, so this is for {USUAL_GPU}; --gpu names another.")
    return USUAL_GPU if here is None else here.name


def say_note(text: str) -> None:
    """One line for the reader on stderr."""
    from rich.console import Console

    Console(stderr=True).print(f"Note: {text}", soft_wrap=True, markup=False, highlight=False)


def print_json(document: "BaseModel | dict[str, Any]") -> None:
    """One JSON document on stdout."""
    if not isinstance(document, dict):
        document = json.loads(document.model_dump_json(by_alias=True))
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


@contextlib.contextmanager
def uncollected() -> "Iterator[None]":
    """Imports without looking for garbage, of which they leave none: 20 to 40 ms of `forerun forecast`."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def ledger_if_any(gpus: Sequence[str] = ()) -> "Iterator[Ledger | None]":
    """The ledger, or None with a message on stderr where it cannot be opened; for commands that can do without.

    With `gpus`, None too where it has nothing on any of them.
    """
    from forerun.ledger.place import may_know

    if gpus and not may_know(ledger_url(), gpus):
        yield None
        return

    from forerun.errors import LedgerConflict
    from forerun.ledger.store import open_ledger

    try:
        ledger = open_ledger(ledger_url())
    except LedgerConflict as error:
        from rich.console import Console

        Console(stderr=True).print(f"Going on without a ledger. {error}", soft_wrap=True, markup=False)
        yield None
        return
    with ledger:
        yield ledger


def ledger_url() -> str:
    """URL of the ledger: FORERUN_LEDGER, the path of a SQLite file or a URL, or else the user's own. The environment is
    read only here."""
    from forerun.ledger.place import default_url, url_of_file

    stated = os.environ.get("FORERUN_LEDGER")
    if not stated:
        return default_url()
    return stated if "://" in stated else url_of_file(Path(stated))
