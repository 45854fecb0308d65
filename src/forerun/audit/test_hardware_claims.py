"""Devices as the catalogue has them."""

import pytest

from forerun.audit.check import check_one
from forerun.errors import UnknownDevice


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"kind": "device", "name": "Tesla T4", "memory": "16 GB", "capability": 7.5}, "consistent"),
        ({"kind": "device", "name": "t4", "memory": "24 GB"}, "wrong"),
        ({"kind": "peaks", "tera": {"a100-40gb": 312, "h100-80gb": 989}}, "consistent"),
        ({"kind": "peaks", "tera": {"a100-40gb": 156, "h100-80gb": 989}}, "wrong"),
        ({"kind": "peaks", "tera": {"a100-40gb": 400, "h100-80gb": 989}}, "wrong"),
        ({"kind": "device-ratio", "faster": "h100-80gb", "slower": "a100-40gb", "claimed": "3.2x"}, "consistent"),
        ({"kind": "device-ratio", "faster": "h100-80gb", "slower": "a100-40gb", "claimed": "2x"}, "unsupported"),
        ({"kind": "device-ratio", "faster": "h100-80gb", "slower": "a100-40gb", "claimed": "9x"}, "impossible"),
        ({"kind": "capability", "dtype": "bfloat16", "at_least": 8.0}, "consistent"),
        ({"kind": "capability", "dtype": "bfloat16", "at_least": 7.0}, "wrong"),
        ({"kind": "capability", "dtype": "bfloat16"}, "wrong"),
        ({"kind": "precision-choice", "asks": "torch.cuda.is_bf16_supported()", "older": ["t4"]}, "wrong"),
        ({"kind": "precision-choice", "asks": "torch.cuda.is_bf16_supported()", "older": ["l4"]}, "consistent"),
        ({"kind": "precision-choice", "asks": "torch.cuda.is_bf16_supported(including_emulation=False)", "older": ["t4"]}, "consistent"),
    ],
)  # fmt: skip
def test_devices(check, verdict):
    finding = check_one(check)
    assert finding.verdict == verdict, finding


def test_an_unknown_device_names_the_claim():
    with pytest.raises(UnknownDevice, match="Claim 1, check device: No GPU named 'a100-41gb'"):
        check_one({"kind": "device", "name": "a100-41gb"})
