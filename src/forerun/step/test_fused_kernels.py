"""A step that runs takes the package's kernels, and says so where it cannot."""

import pytest
from torch import nn

from forerun.errors import InvalidSettings, MissingExtra
from forerun.settings.load import settings_from
from forerun.step.fused_kernels import take_kernels

SETTINGS = settings_from(
    {"name": "k", "workload": "causal-lm", "model": {"name": "tiny-llama", "kernels": "liger"}, "data": {"examples": 8}}
)


@pytest.mark.parametrize("capability", [None, (6, 1)])
def test_a_device_without_triton_is_refused(capability):
    with pytest.raises(InvalidSettings, match=r"compute capability 7\.0"):
        take_kernels(nn.Linear(1, 1), SETTINGS, capability)


def test_without_the_package_the_error_names_it():
    with pytest.raises(MissingExtra, match="pip install liger-kernel"):
        take_kernels(nn.Linear(1, 1), SETTINGS, (8, 0))
