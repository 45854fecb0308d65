"""Models of timm and torchvision by name: sizes as published, and errors that say what to do."""

from importlib.util import find_spec

import pytest

import forerun
from forerun.errors import NotSupported, UnknownModel
from forerun.models.image_libraries import LIBRARIES, image_config, libraries_hint, library_name, library_of
from forerun.spelling import NameNote

HAS_LIBRARIES = all(find_spec(library) for library in LIBRARIES)
needs_libraries = pytest.mark.skipif(not HAS_LIBRARIES, reason="timm and torchvision are not installed")


def settings(name, **sections):
    return {
        "name": "images", "workload": "image-classification", "model": {"name": name}, "data": {"examples": 1000},
        "batch": {"micro_batch_size": 8}, **sections,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "library"),
    [("timm/resnet50.a1_in1k", "timm"), ("torchvision/vit_b_16", "torchvision"), ("timm", None),
     ("google/vit-base-patch16-224", None), ("bert-base-uncased", None)],
)  # fmt: skip
def test_names_begin_with_their_library(name, library):
    assert library_of(name) == library


@pytest.mark.scripts
@needs_libraries
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("torchvision/resnet50", 25_557_032), ("torchvision/vit_b_16", 86_567_656), ("timm/resnet50.a1_in1k", 25_557_032),
     ("timm/vit_base_patch16_224", 86_567_656), ("timm/convnext_tiny", 28_589_128)],
)  # fmt: skip
def test_parameters_are_those_published(name, parameters):
    """The tables of torchvision's models and timm's results (results-imagenet.csv), the latter in millions."""
    assert forerun.forecast(settings(name), gpu="rtx-3090").parameters.total == parameters


@pytest.mark.scripts
@needs_libraries
def test_one_network_of_two_libraries_has_one_forecast():
    ours, theirs = (forerun.forecast(settings(f"{library}/resnet50"), gpu="rtx-3090") for library in LIBRARIES)
    assert ours.memory.peak_allocated_bytes == pytest.approx(theirs.memory.peak_allocated_bytes, rel=0.001)
    assert ours.step.seconds.expected == pytest.approx(theirs.step.seconds.expected, rel=0.01)


@pytest.mark.scripts
@needs_libraries
@pytest.mark.parametrize("name", ["timm/vit_base_patch16_224", "torchvision/vit_b_16", "timm/resnet18"])
def test_another_image_size_is_taken_and_costs(name):
    small, large = (
        forerun.forecast(settings(name, media=media), gpu="rtx-3090") for media in ({}, {"image_size": 384})
    )
    assert small.memory.breakdown.activation_bytes * 2 < large.memory.breakdown.activation_bytes
    grown = large.parameters.total - small.parameters.total
    assert grown == (0 if "resnet" in name else (24**2 - 14**2) * 768)


@pytest.mark.scripts
@needs_libraries
@pytest.mark.parametrize("name", ["timm/resnet18", "torchvision/resnet18"])
def test_labels_are_a_setting(name):
    fewer = settings(name, model={"name": name, "config": {"num_labels": 10}})
    assert forerun.forecast(fewer, gpu="rtx-3090").parameters.total == 11_689_512 - 990 * 513


@pytest.mark.scripts
@needs_libraries
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [("timm/resnet51", UnknownModel, "has no model 'resnet51'. Nearest: resnet5"),
     ("timm/resnet50.nope", UnknownModel, "Leave the tag out"),
     ("torchvision/resnet51", UnknownModel, "Nearest: .*resnet50"),
     ("torchvision/inception_v3", NotSupported, "several in training")],
)  # fmt: skip
def test_names_that_are_no_model_say_so(name, error, message):
    with pytest.raises(error, match=message):
        image_config(name)


@pytest.mark.parametrize(
    ("written", "name"),
    [("hf_hub:timm/resnet50.a1_in1k", "timm/resnet50.a1_in1k"), ("torchvision.models.resnet18", "torchvision/resnet18"),
     ("timm/anything", "timm/anything"), ("google/vit-base-patch16-224", None), ("", None)],
)  # fmt: skip
def test_names_as_programs_have_them(written, name):
    assert library_name(written) == name


def test_a_miss_says_which_package_may_know_the_name():
    assert ("pip install timm" in libraries_hint()) == (find_spec("timm") is None)


@pytest.mark.scripts
@needs_libraries
@pytest.mark.parametrize(
    ("written", "name"),
    [("swin_t", "torchvision/swin_t"), ("EfficientNet-B3", "torchvision/efficientnet_b3"), ("vgg16", "torchvision/vgg16"),
     ("mobilenetv3_large_100.ra_in1k", "timm/mobilenetv3_large_100.ra_in1k"), ("resnet51", None),
     ("convnextv2_tiny", "timm/convnextv2_tiny"), ("vit_b_16", "torchvision/vit_b_16")],
)  # fmt: skip
def test_a_bare_name_is_that_of_the_package_which_has_it_and_is_said(written, name):
    if name is None:
        assert library_name(written) is None
        return
    with pytest.warns(NameNote, match=f"taken as {name}"):
        assert library_name(written) == name


@pytest.mark.scripts
@needs_libraries
def test_hyphens_and_capitals_are_as_people_type_them():
    assert image_config("torchvision/ResNet-50").architecture == "resnet50"
    assert image_config("timm/resnet-50").architecture == "resnet50"


@pytest.mark.scripts
@needs_libraries
def test_a_regnet_of_torchvision_is_forecast():
    """39.4M in torchvision's table of RegNet_Y_8GF_Weights; its widths are worked out by tensors."""
    assert forerun.forecast(settings("torchvision/regnet_y_8gf"), gpu="rtx-3090").parameters.total == 39_381_472
