"""Prices are read from tables as SkyPilot writes them: a folder, or a server of that layout."""

import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forerun.errors import BadData
from forerun.hardware import stored_prices as stored
from forerun.hardware.catalogue import device, forget_prices
from forerun.hardware.price_update import read_prices, update_prices

HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
LAMBDA = HEADER + (
    "cpu_4x_general,,,4.0,16.0,0.2,us-east-1,,\n"
    "gpu_8x_a100,A100,8.0,88,448,16.0,us-east-1,,8.0\n"
    "gpu_1x_a100,A100,1.0,30,200,1.29,us-east-1,,\n"
    "gpu_1x_a100,A100,1.0,30,200,1.10,us-west-1,,\n"
    "gpu_1x_a10,A10,1.0,30,200,0.75,us-west-1,,nan\n"
    "tpu,TPU-V5,1.0,30,200,1.20,us-west-1,,\n"
    ",T4,1.0,,,0.35,us-west-1,,\n"
)
AWS = HEADER + "g5.xlarge,A10G,1.0,4,16,1.006,us-east-1,,0.4\ng5.12xlarge,A10G,4.0,48,192,5.672,us-east-1,,1.2\n"


pytestmark = pytest.mark.usefixtures("own_prices")


@pytest.fixture
def folder(tmp_path):
    for cloud, text in (("lambda", LAMBDA), ("aws", AWS)):
        (tmp_path / cloud).mkdir()
        (tmp_path / cloud / "vms.csv").write_text(text, encoding="utf-8")
    return tmp_path


def test_the_least_price_of_a_gpu_is_that_of_its_cheapest_machine():
    unknown = Counter()
    prices = {price.gpu: price for price in read_prices(LAMBDA, "lambda", unknown)}
    assert prices.keys() == {"a100-40gb", "a10"}  # a T4 that is priced without its machine is none
    assert prices["a100-40gb"].dollars_per_hour == 1.10
    assert prices["a100-40gb"].spot_dollars_per_hour == 1.0  # of the machine of eight
    assert prices["a100-40gb"].machine == "gpu_1x_a100 (1)"
    assert prices["a100-40gb"].region == "us-west-1"
    assert prices["a10"].spot_dollars_per_hour is None
    assert unknown == {"TPU-V5": 1}


def test_an_update_is_what_forecasts_take_from_then_on(folder):
    before = device("a10g")
    result = update_prices(str(folder), ["aws", "lambda", "gcp"])
    assert list(result.unread) == ["gcp"]
    after = device("a10g")
    assert before.price_per_hour is None
    assert (after.price_per_hour, after.price_date) == (1.006, result.stored.date)
    assert after.price_source.startswith("aws, g5.xlarge (1)")
    assert device("a100-40gb").price_per_hour == 1.10
    assert device("t4").price_source != after.price_source
    (price,) = [price for price in result.stored.prices if price.gpu == "a10g"]
    assert (price.cloud, price.date, price.source) == ("aws", result.stored.date, str(folder))


def test_prices_older_than_those_of_the_catalogue_change_nothing(folder):
    result = update_prices(str(folder), ["lambda"])
    own = device("h100-80gb")
    old = result.stored.model_copy(update={"date": "2020-01-01"})
    stored.prices_file().write_text(old.model_dump_json(), encoding="utf-8")
    forget_prices()
    assert device("a100-40gb").price_date != "2020-01-01"
    assert device("h100-80gb") == own


def test_a_server_of_that_layout_is_read(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        result = update_prices(f"http://127.0.0.1:{server.server_port}", ["aws", "azure"])
    finally:
        server.shutdown()
        server.server_close()
    assert {price.gpu for price in result.stored.prices} == {"a10g"}
    assert "File not found" in result.unread["azure"] or "Not Found" in result.unread["azure"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found none named InstanceType"),
        ("<html>", "columns"),
        (HEADER + "x,TPU,1,1,1,1,r,,\n", "no GPU of the catalogue"),
    ],
)
def test_what_is_no_table_is_refused_and_what_was_stored_stays(folder, text, message):
    update_prices(str(folder), ["aws"])
    (folder / "lambda" / "vms.csv").write_text(text, encoding="utf-8")
    with pytest.raises(BadData, match=message):
        update_prices(str(folder), ["lambda"])
    assert device("a10g").price_per_hour == 1.006


@pytest.mark.parametrize("source", ["file:///etc", "ftp://x", "https://127.0.0.1:1"])
def test_other_addresses_are_refused_in_words(source):
    with pytest.raises(BadData, match="prices: tables with prices"):
        update_prices(source, ["aws"])


def test_clouds_are_no_paths(folder):
    with pytest.raises(BadData, match="letters, digits and dashes"):
        update_prices(str(folder), ["../lambda"])
