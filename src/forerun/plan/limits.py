"""How are `--deadline`, `--budget`, `--allow` and `--price` read? Text and numbers checked, in seconds and dollars."""

import math
import re
from collections.abc import Sequence

from forerun.errors import InvalidSettings, nearest
from forerun.hardware.catalogue import Device
from forerun.plan.space import ALLOWABLE
from forerun.units import HOUR, MINUTE

UNITS = {"s": 1.0, "min": MINUTE, "m": MINUTE, "h": HOUR, "d": 24 * HOUR}
PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)")


def seconds_of(text: str) -> float:
    """Seconds of `90s`, `30min`, `2h`, `1h30m` or `1.5d`.

    Raises:
        InvalidSettings: it is none of these.
    """
    deadline, total, place = text.strip().lower(), 0.0, 0
    while place < len(deadline):
        part = PART.match(deadline, place)
        if part is None or part[2] not in UNITS:
            break
        total += float(part[1]) * UNITS[part[2]]
        place = part.end()
    if place < len(deadline) or total <= 0:
        raise InvalidSettings(
            f"--deadline wants a time above zero with its unit (s, m or min, h, d); found {text!r}. "
            f"Examples: 90s, 30min, 2h, 1h30m."
        )
    return total


def budget_of(dollars: float) -> float:
    """A budget above zero.

    Raises:
        InvalidSettings: it is not.
    """
    if not math.isfinite(dollars) or dollars <= 0:
        raise InvalidSettings(f"--budget wants dollars above zero; found {dollars:g}. Example: --budget 10.")
    return dollars


def allowed(options: Sequence[str]) -> list[str]:
    """Words of repeated and comma-separated `--allow` options.

    Raises:
        InvalidSettings: an unknown word.
    """
    words = [word.strip() for option in options for word in option.split(",") if word.strip()]
    for word in words:
        if word not in ALLOWABLE:
            raise InvalidSettings(
                f"--allow takes {' and '.join(ALLOWABLE)}; found {word!r}. Nearest: {nearest(word, list(ALLOWABLE))}."
            )
    return list(dict.fromkeys(words))


def priced(devices: Sequence[Device], texts: Sequence[str]) -> list[Device]:
    """`devices` with the prices per hour of `GPU=DOLLARS` texts in place of the catalogue's.

    Raises:
        InvalidSettings: a text is no such pair, or names a GPU that is not compared.
    """
    prices: dict[str, float] = {}
    for text in texts:
        name, separator, number = text.partition("=")
        name = name.strip().lower()
        try:
            dollars = float(number)
        except ValueError:
            dollars = math.nan
        if not separator or not 0 < dollars < math.inf:
            raise InvalidSettings(f"--price wants GPU=DOLLARS, an hourly price above zero; found {text!r}.")
        if name not in {device.name for device in devices}:
            suggestions = nearest(name, [device.name for device in devices])
            raise InvalidSettings(f"--price: {name!r} is none of the GPUs compared. Nearest: {suggestions}.")
        prices[name] = dollars
    source = {"price_source": "--price", "price_date": None}
    return [
        d if d.name not in prices else d.model_copy(update={"price_per_hour": prices[d.name], **source})
        for d in devices
    ]
