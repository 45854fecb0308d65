"""Prices that `forerun prices update` stored on this machine: one file beside the cache, read where it is newer.

Units: US dollars per hour of one GPU, on demand unless it says spot.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from forerun.disk_cache import cache_root
from forerun.records import Record

FILE = "prices.json"


class CloudPrice(Record):
    """The least that one cloud asks for one GPU, over its regions and machine types."""

    gpu: str
    cloud: str
    dollars_per_hour: float = Field(gt=0, allow_inf_nan=False)
    spot_dollars_per_hour: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    machine: str
    """Machine type, with the number of GPUs that it has."""
    region: str = ""
    """Where this machine costs so; empty where the source does not say."""
    date: str = ""
    """Day on which the price was read, year-month-day; empty in files that older versions stored."""
    source: str = ""


class StoredPrices(Record):
    """What an update found."""

    date: str
    """Day of the update, year-month-day."""
    source: str
    prices: list[CloudPrice]


def prices_file() -> Path:
    """Where they are kept: in the folder of the cache, which leaves files that are no entries alone."""
    return cache_root() / FILE


def stored_prices(path: Path | None = None) -> StoredPrices | None:
    """What the last update found; None without one, or where the file is damaged, as if there were none."""
    try:
        return StoredPrices.model_validate_json((path or prices_file()).read_text(encoding="utf-8"))
    except (OSError, ValidationError, json.JSONDecodeError, UnicodeDecodeError):
        return None


def least_by_gpu(stored: StoredPrices) -> dict[str, CloudPrice]:
    """The least on-demand price of each GPU over all clouds."""
    least: dict[str, CloudPrice] = {}
    for price in stored.prices:
        if price.gpu not in least or price.dollars_per_hour < least[price.gpu].dollars_per_hour:
            least[price.gpu] = price
    return least


@cache
def stored_fields() -> dict[str, dict[str, Any]]:
    """By GPU the fields of a catalogue's row that the last update found: its price, the day and the source."""
    stored = stored_prices()
    return {} if stored is None else {
        name: {
            "price_per_hour": round(price.dollars_per_hour, 4),
            "price_date": stored.date,
            "price_source": f"{price.cloud}, {price.machine}; {stored.source}, read by forerun prices update",
        }
        for name, price in least_by_gpu(stored).items()
    }  # fmt: skip
