"""The wrapper of torchvision's models: the loss is the reference script's, and the configuration comes back."""

from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

from forerun.models.image_libraries import image_config
from forerun.models.library_import import import_library

IS_THERE = find_spec("torchvision") is not None


@pytest.fixture
def wrapper():
    """The module; transformers imports a torchvision that it finds, which may have to be helped."""
    if IS_THERE:
        import_library("torchvision")
    return import_module("forerun.models.torchvision_wrapper")


def test_a_configuration_comes_back(wrapper, tmp_path):
    wrapper.TorchvisionConfig(architecture="vit_b_16", image_size=384).save_pretrained(tmp_path)
    again = wrapper.TorchvisionConfig.from_pretrained(tmp_path)
    assert (again.architecture, again.image_size, again.num_channels) == ("vit_b_16", 384, 3)


@pytest.mark.scripts
@pytest.mark.skipif(not IS_THERE, reason="torchvision is not installed")
def test_the_loss_is_the_mean_cross_entropy(wrapper):
    torch.manual_seed(0)
    model = wrapper.TorchvisionForImageClassification(image_config("torchvision/resnet18")).eval()
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([3, 7])
    result = model(images, labels)
    assert result.loss is not None
    assert torch.equal(result.loss, F.cross_entropy(model.torchvision_model(images), labels))
    assert model(images).loss is None
