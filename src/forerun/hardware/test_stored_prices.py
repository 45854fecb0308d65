from forerun.hardware.stored_prices import CloudPrice, StoredPrices, least_by_gpu, stored_prices


def price(gpu, cloud, dollars):
    return CloudPrice(gpu=gpu, cloud=cloud, dollars_per_hour=dollars, machine="m (1)")


def test_the_cheapest_cloud_counts():
    listed = [price("t4", "a", 0.5), price("t4", "b", 0.4), price("l4", "a", 0.8)]
    least = least_by_gpu(StoredPrices(date="2026-11-26", source="here", prices=listed))
    assert {gpu: each.cloud for gpu, each in least.items()} == {"t4": "b", "l4": "a"}


def test_a_damaged_file_counts_as_none(tmp_path):
    path = tmp_path / "prices.json"
    assert stored_prices(path) is None
    for content in (b"{", b"\xff", b"[]", b'{"date": "2026-11-26", "source": "", "prices": [{"gpu": "t4"}]}'):
        path.write_bytes(content)
        assert stored_prices(path) is None
    path.write_text(StoredPrices(date="2026-11-26", source="here", prices=[]).model_dump_json(), encoding="utf-8")
    assert stored_prices(path).date == "2026-11-26"
