import pytest

from forerun.errors import InvalidSettings, UnknownNetwork
from forerun.hardware.catalogue import device, devices
from forerun.network.catalogue import fabric, fabric_of, fabrics, network, networks, usual_network
from forerun.units import GIGA


def test_names_are_unique_and_every_row_has_a_source():
    for rows in (fabrics(), networks()):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
        assert all(row.name == row.name.lower() and len(row.source) > 20 for row in rows)


def test_every_gpu_has_links_of_exactly_one_row():
    listed = [gpu for row in fabrics() for gpu in row.gpus]
    own = [row.name for row in devices() if row.links is not None]
    unknown = [row.name for row in devices() if fabric_of(row.name) is None]
    assert sorted(listed + own + unknown) == sorted(row.name for row in devices())
    assert all(fabric_of(name) == fabric(device(name).links) for name in own)
    whole = [name for name in unknown if not device(name).is_amd and device(name).segment != "slice"]
    assert whole == ["p100-16gb-sxm", "a800-80gb", "h800", "gh200-96gb", "gh200-144gb", "gb10"], (
        "links that were not read"
    )


def test_usual_networks_name_gpus_of_the_catalogue_once():
    usual = [gpu for row in networks() for gpu in row.usual_for]
    assert len(set(usual)) == len(usual)
    assert set(usual) <= {row.name for row in devices()}
    assert usual_network("h100-80gb").name == "ib-ndr400"
    assert usual_network("t4").name == "ethernet-25g"


@pytest.mark.parametrize(
    ("name", "gigabit"),
    [("efa-p4d", 400), ("efa-p5", 3200), ("efa-p5en", 3200), ("azure-nd-a100-v4", 1600), ("azure-nd-h100-v5", 3200),
     ("gcp-a3-high", 800), ("gcp-a3-mega", 1600), ("gcp-a4", 3200), ("coreweave-ndr", 3200), ("ib-ndr400", 3200),
     ("ib-hdr200", 1600), ("ib-hdr200-x4", 800), ("ethernet-100g", 100)],
)  # fmt: skip
def test_wire_rate_of_a_machine_of_eight(name, gigabit):
    """Published gigabits per second of a machine (sources: networks.toml)."""
    row = network(name)
    assert row.adapters_of(8) * row.adapter_bytes_per_second * 8 == pytest.approx(gigabit * GIGA)


@pytest.mark.parametrize(("gpu", "rate"), [("a100-80gb", 300), ("h200", 450), ("b200", 900), ("l4", 31.5)])
def test_links_of_a_gpu(gpu, rate):
    assert fabric_of(gpu).bytes_per_second == pytest.approx(rate * GIGA, rel=1e-3)


def test_users_own_networks():
    own = network({"kind": "infiniband", "adapters": 4, "gigabit_per_second": 200})
    assert own.name == "own"
    assert own.adapters_of(8) == 4
    faster = network({"like": "efa-p5", "latency_seconds": 1e-5})
    assert (faster.adapters, faster.latency_seconds) == (32, 1e-5)


def test_what_is_unknown_is_refused_with_what_would_do():
    with pytest.raises(UnknownNetwork, match="ib-ndr400"):
        network("ib-ndr-400")
    with pytest.raises(UnknownNetwork, match="nvlink4"):
        fabric("nvlink-4")
    with pytest.raises(InvalidSettings, match="gigabit_per_second"):
        network({"kind": "infiniband", "adapters": 8})
    with pytest.raises(InvalidSettings, match="bandwidth"):
        network({"kind": "infiniband", "adapters": 8, "gigabit_per_second": 400, "bandwidth": 1})
