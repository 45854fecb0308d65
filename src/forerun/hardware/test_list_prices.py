import datetime

import pytest

from forerun.errors import InvalidSettings
from forerun.hardware import stored_prices as stored
from forerun.hardware.catalogue import device, devices
from forerun.hardware.list_prices import at_cloud, cloud_prices, price_text, rented_from, shipped_prices
from forerun.hardware.names import machines
from forerun.hardware.stored_prices import CloudPrice, StoredPrices

pytestmark = pytest.mark.usefixtures("own_prices")


def test_every_shipped_price_is_of_a_card_and_says_where_from_and_when():
    names = {row.name for row in devices()}
    for price in shipped_prices():
        assert price.gpu in names
        assert all((price.region, price.source, price.machine))
        assert datetime.date.fromisoformat(price.date) <= datetime.date.today()
        assert price.spot_dollars_per_hour is None or price.spot_dollars_per_hour < price.dollars_per_hour


def test_machines_of_the_shipped_prices_are_those_of_the_names():
    """A machine that both files know has the same card and the same number of them in both."""
    shared = 0
    for price in shipped_prices():
        name, _, count = price.machine.rpartition(" (")
        known = machines().get(name.lower().replace("_", "-"))
        if known is not None:
            shared += 1
            assert (known.gpu, known.count) == (price.gpu, int(count.rstrip(")"))), price.machine
    assert shared >= 17


def test_of_one_cloud_the_latest_day_counts_and_of_one_day_the_lesser():
    by_cloud = {price.cloud: price for price in cloud_prices("h100-80gb")}
    assert (by_cloud["runpod"].dollars_per_hour, by_cloud["runpod"].date) == (3.99, "2026-11-09")
    assert by_cloud["lambda"].dollars_per_hour == pytest.approx(31.92 / 8)
    assert list(by_cloud) == sorted(by_cloud, key=lambda cloud: by_cloud[cloud].dollars_per_hour)


def test_an_update_replaces_what_is_older_and_leaves_other_clouds():
    newer = CloudPrice(gpu="h100-80gb", cloud="lambda", dollars_per_hour=5.0, machine="m (1)")
    older = CloudPrice(gpu="h100-80gb", cloud="aws", dollars_per_hour=1.0, machine="m (1)", date="2020-01-01")
    path = stored.prices_file()
    path.parent.mkdir(parents=True)
    update = StoredPrices(date="2099-01-01", source="here", prices=[newer, older])
    path.write_text(update.model_dump_json(), encoding="utf-8")
    by_cloud = {price.cloud: price for price in cloud_prices("h100-80gb")}
    assert (by_cloud["lambda"].dollars_per_hour, by_cloud["lambda"].date) == (5.0, "2099-01-01")
    assert by_cloud["aws"].date == "2026-09-06"


def test_a_card_at_a_clouds_price_says_whose_it_is():
    card = device("h100-80gb")
    dear = at_cloud(card, "Azure")
    assert dear.price_per_hour == pytest.approx(98.32 / 8)
    assert price_text(dear) == "$12.29 an hour, azure ND96isr_H100_v5 (8) in eastus, 2026-09-06"
    assert at_cloud(card, "azure:spot").price_per_hour == pytest.approx(18.169536 / 8)
    assert at_cloud(card, "lambda labs").price_per_hour == pytest.approx(3.99)
    assert card == device("h100-80gb")
    assert price_text(card, 2.5) == "$2.50 an hour, as stated"
    assert price_text(device("rtx-3060-12gb")) == ""


@pytest.mark.parametrize(
    ("gpu", "cloud", "message"),
    [
        ("h100-80gb", "amazom", "a cloud whose prices are known; found 'amazom'"),
        ("h100-80gb", "aws:weekly", "Write aws:spot"),
        ("h100-80gb", "aws:spot", r"no spot price of it at aws\. Known: azure \$2\.27, coreweave \$2\.46"),
        ("rtx-3060-12gb", "aws", "No cloud with one is known"),
    ],
)
def test_what_no_cloud_offers_is_refused_with_those_that_do(gpu, cloud, message):
    with pytest.raises(InvalidSettings, match=message):
        at_cloud(device(gpu), cloud)


def test_cards_of_a_cloud_are_those_that_it_asks_a_price_for():
    rows = rented_from("crusoe", devices())
    assert {row.name for row in rows} == {price.gpu for price in cloud_prices(cloud="crusoe")}
    with pytest.raises(InvalidSettings, match="none of those asked about"):
        rented_from("crusoe", [device("t4")])
