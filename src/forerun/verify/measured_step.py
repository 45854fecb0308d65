"""A user's own numbers for a step, in seconds and bytes: what `--measured step=0.54s,peak=18.2GiB` states."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forerun.errors import InvalidSettings
from forerun.experience import StepObservation
from forerun.forecasting.program import ProgramForecast
from forerun.records import FORECAST_SCHEMA, Forecast
from forerun.units import GIB, GIGA, KIB, KILO, MEGA, MIB, MICRO, MILLI, MINUTE

SECONDS = {"us": MICRO, "µs": MICRO, "ms": MILLI, "s": 1.0, "min": MINUTE}
BYTES = {"b": 1, "kb": KILO, "mb": MEGA, "gb": GIGA, "kib": KIB, "mib": MIB, "gib": GIB}
MEMORY = ("peak", "allocated", "reserved", "device")
EXAMPLE = "step=0.54s,peak=18.2GiB"
_VALUE = re.compile(
    r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf(?:inity)?))\s*([a-zµ]*)\s*", re.IGNORECASE
)


def observation_of(texts: Sequence[str]) -> StepObservation:
    """The observation that repeated and comma-separated `name=value` texts state.

    Raises:
        InvalidSettings: an unknown or repeated name, a missing or wrong unit, or a number that is not above zero.
    """
    values: dict[str, float] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, separator, text = part.partition("=")
        name = name.strip().lower()
        if not separator or name not in ("step", *MEMORY):
            raise InvalidSettings(
                f"--measured wants step=TIME and peak=BYTES, or allocated, reserved or device in place of peak; found "
                f"{part!r}. Example: --measured {EXAMPLE} (a point in decimals, a comma between numbers)."
            )
        if name in values:
            raise InvalidSettings(f"--measured names {name} twice; found {part!r} too. Give the number that you trust.")
        values[name] = _value(name, text)
    memory = {name: round(value) for name, value in values.items() if name != "step"}
    return StepObservation(seconds=values.get("step"), memory=memory)


def _value(name: str, text: str) -> float:
    units, what = (SECONDS, "a time") if name == "step" else (BYTES, "bytes")
    match = _VALUE.fullmatch(text)
    spelled = "s, ms, us or min" if name == "step" else "GiB, GB, MiB, MB, KiB, KB or B"
    if match is None or match[2].lower() not in units:
        raise InvalidSettings(
            f"--measured {name} wants {what} with its unit ({spelled}); found {text!r}. Example: --measured {EXAMPLE}."
        )
    value = float(match[1]) * units[match[2].lower()]
    if not math.isfinite(value) or value <= 0 or (name != "step" and value < 1):
        raise InvalidSettings(f"--measured {name} wants a finite number above zero; found {text!r}.")
    return value


def forecast_in(path: Path, gpu: str | None) -> Forecast:
    """The forecast in a file that `forecast --json` or `exec --json` wrote; of several GPUs that of `gpu`.

    Raises:
        InvalidSettings: it cannot be read, is no forecast, or has none or several for the GPU.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(f"--forecast {path} cannot be read: {error.strerror}. Check the path.") from error
    except ValueError as error:
        raise InvalidSettings(f"--forecast {path} is not JSON: {error}. Write it with --json > {path}.") from error
    several = document.get("forecasts") if isinstance(document, Mapping) else None
    documents = several if isinstance(several, list) else [document]
    names = [each.get("gpu") for each in documents if isinstance(each, Mapping)]
    fitting = [each for each in documents if isinstance(each, Mapping) and gpu in (None, each.get("gpu"))]
    if len(fitting) != 1:
        raise InvalidSettings(
            f"--forecast {path} must hold one forecast for the GPU; found {', '.join(map(str, names)) or 'none'}"
            f"{'' if gpu is None else f', and --gpu {gpu}'}. Name one of them with --gpu."
        )
    return _read(fitting[0], path)


def _read(document: Mapping[str, Any], path: Path) -> Forecast:
    kind = ProgramForecast if "script" in document else Forecast
    content = {key: value for key, value in document.items() if key in {"schema", *kind.model_fields}}
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InvalidSettings(
            f"--forecast {path} is no document of schema {FORECAST_SCHEMA}: {field}: {error.errors()[0]['msg']}. "
            f"Write it with `forerun forecast … --json` or `forerun exec … --json`."
        ) from error
