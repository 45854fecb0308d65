"""Which files are the program's own."""

import sysconfig
import textwrap
from pathlib import Path

import torch

from forerun.virtual.cuda.lines import is_library, is_of_others


def test_packages_are_libraries_wherever_they_are():
    packages = Path(sysconfig.get_path("purelib"))
    assert is_library(str(packages / "skorch" / "net.py"))
    assert is_of_others("/home/me/.local/lib/python3.11/site-packages/skorch/net.py")
    assert is_library("/usr/lib/python3/dist-packages/yaml/__init__.py")
    assert is_library(torch.__file__)
    assert not is_of_others(torch.__file__)
    assert is_library(textwrap.__file__)
    assert not is_of_others(textwrap.__file__)
    assert not is_library("/home/me/project/train.py")
