import re
import warnings

import pytest

from forerun.errors import UnknownDevice
from forerun.hardware.catalogue import device, devices
from forerun.hardware.names import aliases, machines
from forerun.spelling import NameNote


@pytest.mark.parametrize(
    ("text", "name", "note"),
    [
        ("3090", "rtx-3090", "taken as rtx-3090"),
        ("a100 80", "a100-80gb", "also a100-80gb-pcie"),
        ("H100 SXM", "h100-80gb", "132 SMs"),
        ("g5.xlarge", "a10g", "g5.xlarge has 1"),
        ("ec2 g5.2xlarge", "a10g", "g5.2xlarge has 1"),
        ("aws p5", "h100-80gb", "p5 has 8"),
        ("azure NC40ads H100 v5", "h100-nvl", "has 1"),
        ("gcp a2-ultragpu-1g", "a100-80gb", "has 1"),
        ("vast.ai 3090", "rtx-3090", "taken as rtx-3090"),
        ("lambda labs a10", "a10", "taken as a10"),
        ("hgx h100", "h100-80gb", "taken as h100-80gb"),
        ("DGX GB200", "gb200", "taken as gb200"),
        ("B200 192GB", "b200", "taken as b200"),
        ("kaggle GPU T4 x2", "t4", "two of them"),
        ("RTX A6000 Ada", "rtx-6000-ada", "the card of Ada is the RTX 6000 Ada"),
        ("g5.12xlarge", "a10g", "has 4. Its 4 GPUs are parallel.world_size"),
        ("Standard_ND96asr_v4", "a100-40gb", "has 8"),
        ("2x T4", "t4", "world_size=2"),
        ("kaggle t4", "t4", "two of them"),
        ("kaggle 2×T4", "t4", "two of them"),
        ("2x3090", "rtx-3090", "world_size=2"),
        ("4090x2", "rtx-4090", "world_size=2"),
        ("gpu_8x_h100_sxm5", "h100-80gb", "Its 8 GPUs are parallel.world_size"),
        ("runpod 4090", "rtx-4090", "taken as rtx-4090"),
        ("ml.p4d.24xlarge", "a100-40gb", "p4d.24xlarge has 8"),
        ("BM.GPU.H100.8", "h100-80gb", "has 8"),
        ("a10g-small", "a10g", "has 1"),
        ("l4x4", "l4", "has 4"),
        ("2060 laptop", "rtx-2060-laptop", "336 GB/s"),
        ("kaggle p100", "p100-16gb", "p100-16gb"),
        ("7900 xtx", "rx-7900-xtx", "24.0 GiB"),
        ("4060 ti 16 GB", "rtx-4060-ti-16gb", ""),
        ("a100 3g.20gb", "a100-40gb-3g.20gb", "19.5 GiB"),
        ("dgx spark", "gb10", "121.6 GiB, 273 GB/s, 48 SMs"),
    ],
)
def test_a_name_that_means_one_card_is_taken_and_said(text: str, name: str, note: str):
    with pytest.warns(NameNote, match=note.replace(".", r"\.")):
        assert device(text).name == name


@pytest.mark.parametrize(
    "text", ["RTX 4070 ti super", "rtx3090", "NVIDIA GeForce RTX 4090", "gtx 1080 Ti", "H200", "NVIDIA A10G"]
)
def test_a_card_by_its_own_name_is_taken_in_silence(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device(text).name.split("-")[0] in text.lower()


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("kaggle", ["t4", "p100-16gb"]),
        ("colab", ["t4", "l4", "a100-40gb"]),
        ("a100", ["a100-40gb", "a100-40gb-pcie", "a100-80gb", "a100-80gb-pcie"]),
        ("4060 ti", ["rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]),
        ("NVIDIA GeForce RTX 3080", ["rtx-3080-10gb", "rtx-3080-12gb"]),
        ("rtx 6000", ["quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000", "a6000"]),
    ],
)
def test_what_can_be_several_is_an_error_that_tells_them_apart(text: str, candidates: list[str]):
    with pytest.raises(UnknownDevice, match="can be several GPUs") as raised:
        device(text)
    assert all(f"{name} (" in str(raised.value) for name in candidates)
    assert "GiB" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("3090 48gb", ["Nearest: rtx-3090"]),
        ("1070 laptop", ["Laptop", "of this one there is no row"]),
        ("3080 laptop 16gb", ["rtx-3080-ti-laptop has these words, but is a ti"]),
        ("m1", ["Neither CUDA nor ROCm"]),
        ("x" * 9_000, ["…"]),
        ("", ["Nearest"]),
    ],
)
def test_a_miss_names_three(text: str, parts: list[str]):
    with pytest.raises(UnknownDevice) as raised:
        device(text)
    message = str(raised.value)
    assert all(part in message for part in parts)
    assert message.partition("Nearest: ")[2].partition(".")[0].count(",") == 2 or "." in message
    assert len(message) < 500


def test_every_alias_reaches_rows_of_the_catalogue():
    names = {row.name for row in devices()}
    assert len(machines()) >= 90
    assert not {gpu for gpus in aliases().values() for gpu in gpus} - names
    assert not set(aliases()) & names, "an alias never hides a name"
    for text, gpus in aliases().items():
        if len(gpus) == 1:
            with pytest.warns(NameNote):
                assert device(text).name == gpus[0]
        else:
            with pytest.raises(UnknownDevice):
                device(text)


def test_every_name_is_its_own_and_every_product_name_finds_its_card():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NameNote)
        missed = []
        for row in devices():
            assert device(row.name) is row
            try:
                answer = device(row.title or row.name).name
            except UnknownDevice as error:
                answer = str(error)
            missed += [] if row.name in answer else [(row.title, answer)]
    assert missed == []


@pytest.mark.parametrize(
    "text", ["4090 laptop", "RTX 4090 Mobile", "NVIDIA GeForce RTX 4090 Laptop GPU", "rtx 4090 notebook"]
)
def test_laptop_versions_are_rows_of_their_own(text: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row, card = device(text), device("rtx-4090")
    assert row.name == "rtx-4090-laptop"
    assert row.memory_bytes < card.memory_bytes
    assert row.board_watts < card.board_watts
    assert "laptop" in row.remark


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("rtx 4900", "rtx-4090"), ("rtx4900", "rtx-4090"), ("rtx 3900", "rtx-3090"), ("rxt 4090", "rtx-4090"),
        ("rtx 5900", "rtx-5090"), ("a6000 ad", "a6000-ada"), ("kagle", "kaggle"), ("g5.xlrage", "g5.xlarge"),
        ("p4d.24", "p4d.24xlarge"), ("a2-highgpu-1", "a2-highgpu-1g"), ("radeon 7900 xtxx", "rx-7900-xtx"),
        ("kaggle p10", "kaggle-p100"), ("titan rxt", "titan-rtx"), ("tesa t4", "t4"),
    ],
)  # fmt: skip
def test_a_typing_error_is_answered_with_what_was_meant(text: str, first: str):
    with pytest.raises(UnknownDevice, match=f"Nearest: {re.escape(first)},"):
        device(text)
