import warnings

import pytest

from forerun.errors import UnknownDevice
from forerun.hardware.catalogue import device
from forerun.spelling import NameNote


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MSI GeForce RTX 3060 Ventus 2X 12G OC", "rtx-3060-12gb"), ("ASUS Dual RTX 4060 Ti OC 16GB", "rtx-4060-ti-16gb"),
        ("INNO3D GeForce RTX 4090 X3 OC", "rtx-4090"), ("RTX 3090 24GB GDDR6X", "rtx-3090"), ("h 100 sxm", "h100-80gb"),
        ("Grafikkarte RTX 4090", "rtx-4090"), ("英伟达 RTX4070TiSuper 显卡", "rtx-4070-ti-super"), ("3090s", "rtx-3090"),
        ("4070S", "rtx-4070-super"), ("RTX 4070S Ti", "rtx-4070-ti-super"), ("GTX 1660 S", "gtx-1660-super"),
        ("Q_RTX_8000", "quadro-rtx-8000"), ("RTX PRO 6000 S", "rtx-pro-6000-server"), ("2080 maxq", "rtx-2080-max-q"),
        ("GB200 NVL72", "gb200"), ("H100 80GB HBM2e", "h100-pcie"), ("A100-PCI-80GB", "a100-80gb-pcie"),
        ("free colab gpu", "t4"), ("gpu_1x_a100_sxm4", "a100-40gb"), ("H100-SXM-8-80G", "h100-80gb"),
        ("nvidia-tesla-a100", "a100-40gb"), ("ml.g7e.2xlarge", "rtx-pro-6000-server"), ("a 3090", "rtx-3090"),
    ],
)  # fmt: skip
def test_what_stands_around_a_name_is_left_out_and_said(text: str, name: str):
    with pytest.warns(NameNote, match=f"taken as {name} "):
        assert device(text).name == name


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("dual 3090", "rtx-3090", 2), ("two 3090s", "rtx-3090", 2), ("T4:4", "t4", 4), ("zwei RTX 4090", "rtx-4090", 2)],
)
def test_words_for_a_number_of_cards(text: str, name: str, count: int):
    with pytest.warns(NameNote, match=f"world_size={count}"):
        assert device(text).name == name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("2x 4080s", ["rtx-4080-super", "rtx-4080"]), ("8x V100s", ["v100s-32gb-pcie", "v100-16gb"]),
        ("h 100", ["h100-80gb", "h100-pcie"]), ("h100-380", ["h100-80gb", "h100-pcie"]),
    ],
)  # fmt: skip
def test_what_has_two_readings_is_not_guessed(text: str, names: list[str]):
    with pytest.raises(UnknownDevice, match="can be several GPUs") as raised:
        device(text)
    assert all(f"{name} (" in str(raised.value) for name in names)


@pytest.mark.parametrize(
    "text", ["7900 GRE", "RTX 4090 48GB", "2080 Ti 22GB", "H100 CNX", "A100X", "GTX Titan X", "3090 or 4090", "MSI"]
)
def test_a_card_without_a_row_is_still_refused(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnknownDevice, match="Nearest"):
            device(text)


def test_a_long_name_is_not_said_whole():
    with pytest.raises(UnknownDevice) as raised:
        device("rtx " * 4000)
    assert len(str(raised.value)) < 1_000
