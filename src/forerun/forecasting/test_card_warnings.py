import pytest

from forerun.forecasting.card_warnings import card_warnings
from forerun.hardware.catalogue import Device, device


@pytest.mark.parametrize("name", ["a100-40gb", "rtx-4090", "l4", "h100-80gb"])
def test_nothing_is_said_of_cards_that_were_read(name: str):
    assert card_warnings(device(name)) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("p100-16gb", ["compute capability 6.0", "cu126", "no tensor cores", "No published step on Pascal", "peaks"]),
        ("v100-16gb", ["compute capability 7.0", "cu126"]),
        ("gtx-1660-ti", ["no tensor cores"]),
        ("mi300x", ["AMD GPU", "seen to take on such cards", "1.11 times as long"]),
        ("mi350x", ["AMD GPU", "seen to take on such cards", "worked out by rules"]),
        ("mi100", ["AMD GPU", "1.8 times as long as that says", "collectives are priced at nothing"]),
        ("rx-7900-xtx", ["AMD GPU", "plain arithmetic"]),
        ("a100-40gb-3g.20gb", ["slice of a100-40gb"]),
        ("rtx-4070-super", ["worked out by rules from its specifications, not read: memory, peaks"]),
        ("mi250x-die", ["world_size is twice"]),
    ],
)
def test_what_is_said(name: str, parts: list[str]):
    text = " ".join(card_warnings(device(name)))
    assert all(part in text for part in parts), text
    assert ("cu126" in text) == ((device(name).compute_capability or (9, 0)) < (7, 5))


def test_a_cpu_has_none():
    assert card_warnings(Device(name="cpu", kind="cpu", architecture="x86_64", memory_bytes=2**30)) == []
