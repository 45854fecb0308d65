"""A package that is not there."""

import importlib

import pytest

from forerun.errors import UnknownModel
from forerun.models.image_libraries import LIBRARIES, image_config


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_there_is_named_with_what_installs_it(library, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnknownModel, match=f"No module named '{library}'.*pip install {library}"):
        image_config(f"{library}/resnet50")
