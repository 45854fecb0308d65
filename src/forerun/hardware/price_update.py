"""Today's prices of clouds: read from SkyPilot's public catalogue (Apache-2.0), or from a folder laid out as that is.

The catalogue has `CLOUD/vms.csv` with a line for each machine type and region: AcceleratorName, AcceleratorCount, Price
and SpotPrice in dollars per hour of the machine. A price here is that of the machine over its GPUs, the least of a
cloud. Names of GPUs are read as users' are; what could be several GPUs, or is none of the catalogue, is counted and
left out.

Not covered: commitments, discounts, taxes, disks and traffic; accelerators that are priced without their machine (GCP).
"""

import csv
import datetime
import io
import os
import urllib.error
import urllib.request
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import BadData, FilesNotWritten, UnknownDevice
from forerun.hardware.catalogue import device, forget_prices
from forerun.hardware.stored_prices import CloudPrice, StoredPrices, prices_file

SOURCE = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8"
CLOUDS = ("aws", "azure", "gcp", "lambda", "nebius", "oci", "runpod")
"""Those with list prices of their own; marketplaces (vast, shadeform, …) are asked by `--cloud`."""
SECONDS, MOST_BYTES = 30, 256 * 2**20
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price")
NAMES = {
    "A100": "a100-40gb", "A100-80GB": "a100-80gb", "A100-80GB-SXM": "a100-80gb", "H100": "h100-80gb",
    "H100-SXM": "h100-80gb", "H100-NVL": "h100-nvl", "V100": "v100-16gb", "P100": "p100-16gb", "GH200": "gh200-96gb",
    "RTX6000-Ada": "rtx-6000-ada", "RTX3080": "rtx-3080-10gb",
}  # fmt: skip
"""SkyPilot's names that could be several of ours, as the machines behind them are."""


@dataclass(frozen=True)
class PriceUpdate:
    """What was found, and what was not."""

    stored: StoredPrices
    unread: dict[str, str]
    """Clouds whose table could not be read, and why."""
    unknown: Counter[str]
    """Lines of GPUs that are none, or could be several, of the catalogue, by the source's name."""


def update_prices(source: str = SOURCE, clouds: Sequence[str] = CLOUDS) -> PriceUpdate:
    """Read the tables of `clouds` below `source`, an address or a folder, and store what they ask.

    Raises:
        BadData: no table could be read, or none has a price of a GPU of the catalogue; what was stored stays.
        FilesNotWritten: the file cannot be written.
    """
    prices: list[CloudPrice] = []
    unread: dict[str, str] = {}
    unknown: Counter[str] = Counter()
    for cloud in clouds:
        try:
            prices += read_prices(_table(source, cloud), cloud, unknown)
        except BadData as error:
            unread[cloud] = str(error)
    if not prices:
        first, *others = unread.values() or ["no GPU of the catalogue"]
        more = f" So were {len(others)} more." if others else ""
        raise BadData(
            f"prices: tables with prices of GPUs in {source}; found none: {first.rstrip('.')}.{more} What was stored "
            f"stays. Without a network, --from FOLDER reads a copy."
        )
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    dated = [price.model_copy(update={"date": today, "source": source}) for price in prices]
    stored = StoredPrices(date=today, source=source, prices=dated)
    _write(stored, prices_file())
    forget_prices()
    return PriceUpdate(stored, unread, unknown)


def read_prices(text: str, cloud: str, unknown: Counter[str]) -> list[CloudPrice]:
    """The least price of each GPU in a table; names that are no GPU's are counted in `unknown`.

    Raises:
        BadData: it has not the columns of such a table.
    """
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or [])]
    if missing:
        raise BadData(f"a table with the columns {', '.join(COLUMNS)}; found none named {', '.join(missing)}.")
    least: dict[str, CloudPrice] = {}
    gpus: dict[str, str | None] = {}
    for row in rows:
        name, count, machine = row["AcceleratorName"] or "", _number(row["AcceleratorCount"]), row["InstanceType"]
        whole = _number(row["Price"])
        if not name or not machine or not count or not whole:
            continue
        if name not in gpus:
            gpus[name] = _gpu_of(name)
        gpu = gpus[name]
        if gpu is None:
            unknown[name] += 1
            continue
        spot = _number(row.get("SpotPrice"))
        price = CloudPrice(
            gpu=gpu, cloud=cloud, dollars_per_hour=whole / count, machine=f"{machine} ({count:g})",
            spot_dollars_per_hour=spot / count if spot else None, region=row.get("Region") or "",
        )  # fmt: skip
        least[gpu] = _lesser(least.get(gpu), price)
    return list(least.values())


def _lesser(one: CloudPrice | None, other: CloudPrice) -> CloudPrice:
    """The cheaper on demand, with the lesser spot price of both."""
    if one is None:
        return other
    cheaper = min(one, other, key=lambda price: price.dollars_per_hour)
    spots = [price.spot_dollars_per_hour for price in (one, other) if price.spot_dollars_per_hour is not None]
    return cheaper.model_copy(update={"spot_dollars_per_hour": min(spots, default=None)})


def _gpu_of(name: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return device(NAMES.get(name, name)).name
        except UnknownDevice:
            return None


def _number(text: str | None) -> float | None:
    """A positive number; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _table(source: str, cloud: str) -> str:
    if not cloud.replace("-", "").isalnum():
        raise BadData(f"a cloud's name has letters, digits and dashes; found {cloud!r}.")
    if "://" not in source:
        path = Path(source) / cloud / "vms.csv"
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadData(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    address = f"{source.rstrip('/')}/{cloud}/vms.csv"
    if not address.startswith(("https://", "http://")):
        raise BadData(f"an address begins with https:// or http://; found {source!r}.")
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise BadData(f"{address} was not answered ({getattr(error, 'reason', None) or error}).") from error
    if len(content) > MOST_BYTES:
        raise BadData(f"{address} sends more than {MOST_BYTES // 2**20} MiB.")
    return content.decode("utf-8", errors="replace")


def _write(stored: StoredPrices, path: Path) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(stored.model_dump_json(indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FilesNotWritten(f"{path}: prices are stored there; found {error.strerror}. Free the disk.") from error
