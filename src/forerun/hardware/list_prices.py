"""What does each cloud ask for a GPU? List prices that are shipped (`prices.toml`), and newer ones of an update.

Input: nothing, or a cloud's name. Output: `CloudPrice` records in US dollars per hour of one GPU, each with machine,
region, day and source; or a `Device` at a cloud's price. Of two prices of one cloud for one GPU the later day counts,
and of one day the lesser.

Not covered: commitments, discounts, taxes, disks and traffic; today's price, unless `forerun prices update` ran today.
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from forerun.errors import InvalidSettings, nearest
from forerun.hardware.catalogue import Device
from forerun.hardware.stored_prices import CloudPrice, stored_prices
from forerun.settings.plain import in_short

SPOT = "spot"


@cache
def shipped_prices() -> tuple[CloudPrice, ...]:
    """Prices of `prices.toml`, one a machine that is listed there."""
    return tuple(
        CloudPrice(
            gpu=row["gpu"], cloud=each["cloud"], dollars_per_hour=row["dollars"] / row["gpus"],
            spot_dollars_per_hour=row["spot"] / row["gpus"] if "spot" in row else None,
            machine=f"{row['machine']} ({row['gpus']})", region=each["region"], date=each["date"],
            source=each["source"],
        )
        for each in _table()["list"] for row in each["machines"]
    )  # fmt: skip


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("forerun.hardware").joinpath("prices.toml").read_text(encoding="utf-8"))


def cloud_name(text: str) -> str:
    """A cloud's name as prices have it: "AWS" and "amazon" are "aws"."""
    plain = " ".join(text.lower().split())
    return _table()["names"].get(plain, plain)


def cloud_prices(gpu: str | None = None, cloud: str | None = None) -> list[CloudPrice]:
    """One price for each GPU and cloud, by GPU, the cheapest first; of one GPU or one cloud alone where named.

    Raises:
        InvalidSettings: no price is known of a cloud of that name.
    """
    update = stored_prices()
    stored = [] if update is None else [p if p.date else p.model_copy(update=_of(update)) for p in update.prices]
    newest: dict[tuple[str, str], CloudPrice] = {}
    for price in [*shipped_prices(), *stored]:
        key = price.gpu, price.cloud
        newest[key] = _newer(newest.get(key), price)
    rows = sorted(newest.values(), key=lambda price: (price.gpu, price.dollars_per_hour))
    names = sorted({price.cloud for price in rows})
    cloud = None if cloud is None else cloud_name(cloud)
    if cloud is not None and cloud not in names:
        raise InvalidSettings(
            f"--cloud: a cloud whose prices are known; found {in_short(cloud)}. Nearest: "
            f"{nearest(cloud, names, 3)}. `forerun prices` lists all."
        )
    return [price for price in rows if gpu in (None, price.gpu) and cloud in (None, price.cloud)]


def _of(update: object) -> dict[str, str]:
    return {name: getattr(update, name) for name in ("date", "source")}


def _newer(one: CloudPrice | None, other: CloudPrice) -> CloudPrice:
    if one is None or other.date > one.date:
        return other
    return min(one, other, key=lambda price: price.dollars_per_hour) if other.date == one.date else one


def at_cloud(device: Device, text: str) -> Device:
    """`device` at the list price of a cloud; `text` is "lambda", or "coreweave:spot" for machines that are taken away.

    Raises:
        InvalidSettings: no such cloud, no such kind of price, or the cloud has no price of this GPU.
    """
    cloud, separator, kind = _parts(text)
    if separator and kind != SPOT:
        raise InvalidSettings(
            f"--cloud: CLOUD, or CLOUD:spot for spot prices; found {in_short(text)}. Write {cloud}:spot."
        )
    offers = [(price, _dollars(price, kind)) for price in cloud_prices(device.name, cloud)]
    price, dollars = offers[0] if offers else (None, None)
    if price is None or dollars is None:
        raise InvalidSettings(
            f"--cloud: a price of {device.name}; found no {kind or 'on-demand'} price of it at {cloud}. "
            f"{_elsewhere(device, kind)} --price takes one of your own."
        )
    described = f"{cloud}{' spot' if kind else ''} {price.machine} in {price.region or 'its cheapest region'}"
    return device.model_copy(
        update={
            "price_per_hour": dollars, "price_date": price.date, "price_source": f"{described}; {price.source}",
        }
    )  # fmt: skip


def _parts(text: str) -> tuple[str, str, str]:
    cloud, separator, kind = text.partition(":")
    return cloud_name(cloud), separator, kind.strip().lower()


def _dollars(price: CloudPrice, kind: str) -> float | None:
    return price.spot_dollars_per_hour if kind == SPOT else price.dollars_per_hour


def _elsewhere(device: Device, kind: str) -> str:
    offers = [(_dollars(price, kind), price.cloud) for price in cloud_prices(device.name)]
    listed = ", ".join(f"{cloud} ${dollars:.2f}" for dollars, cloud in sorted((d, c) for d, c in offers if d))
    return f"Known: {listed}." if listed else "No cloud with one is known."


def rented_from(text: str, devices: Sequence[Device]) -> list[Device]:
    """Those of `devices` that a cloud asks a price for, at that price; `text` as in `at_cloud`.

    Raises:
        InvalidSettings: no such cloud or kind of price, or none of `devices` is priced there.
    """
    cloud, _, kind = _parts(text)
    offered = {price.gpu for price in cloud_prices(cloud=cloud) if _dollars(price, kind) is not None}
    rows = [at_cloud(device, text) for device in devices if device.name in offered]
    if not rows:
        raise InvalidSettings(
            f"--cloud: GPUs with a price at {cloud}; found none of those asked about. It asks prices for: "
            f"{', '.join(sorted(offered)) or 'none'}. Name one of these."
        )
    return rows


def price_text(device: Device, price_per_hour: float | None = None) -> str:
    """What a cost was reckoned with, for a reader: dollars an hour, who asks them, since when; empty without one."""
    if price_per_hour is not None:
        return f"${price_per_hour:,.2f} an hour, as stated"
    if device.price_per_hour is None:
        return ""
    source = (device.price_source or "").partition(";")[0].partition(", read")[0]
    return (
        f"${device.price_per_hour:,.2f} an hour, {source}{', ' if device.price_date else ''}{device.price_date or ''}"
    )
