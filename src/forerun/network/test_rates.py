import json
from importlib.resources import files

import pytest

from forerun.network.catalogue import fabric, fabrics, networks
from forerun.network.rates import link_rates, network_rates, scale_to_link


def test_measured_links_have_coefficients_of_their_own():
    for name in ("nvlink3", "nvlink4", "nvlink5", "nvlink5-nvl72", "pcie4-l40s", "pcie5-rtx-pro-6000"):
        rates, is_measured = link_rates(fabric(name))
        assert is_measured
        assert rates.error_fraction < 0.12  # the goal inside a machine


def test_other_links_have_shares_of_their_own_rate_and_a_wider_spread():
    for row in fabrics():
        rates, is_measured = link_rates(row)
        best = max(p.bytes_per_second for p in rates.coefficients.protocols.values())
        assert 0.5 < best / row.bytes_per_second < 1.1
        assert (rates.coefficients.multicast is not None) == row.multicast
        if not is_measured:
            assert rates.spread_fraction > link_rates(fabric("nvlink4"))[0].spread_fraction


def test_every_kind_of_network_has_coefficients():
    for row in networks():
        rates = network_rates(row.kind)
        assert 0 < rates.coefficients.tree_fraction <= rates.coefficients.ring_fraction <= 1
        assert rates.measured == (row.kind == "efa")


def test_scaling_leaves_latencies():
    rates = link_rates(fabric("nvlink3"))[0].coefficients
    twice = scale_to_link(rates, 2)
    assert twice.protocols["ll"].hop_seconds == rates.protocols["ll"].hop_seconds
    assert twice.peers["ll"].bytes_per_second == pytest.approx(2 * rates.peers["ll"].bytes_per_second)


def test_coefficients_say_who_made_them():
    table = json.loads(files("forerun.network").joinpath("coefficients.json").read_text())
    assert "benchmarks/collectives.py" in table["made_by"]
    assert "aiconfigurator" in table["source"]
