"""For every test of the project: hypothesis judges answers, not how long a busy machine takes for them.

Rows and tokens of own data are kept in a folder of the tests' own. Traces are not kept: tests trace what they ask.
"""

import atexit
import gc
import os
import shutil
import tempfile

import pytest
from hypothesis import settings

settings.register_profile("forerun", deadline=None)
settings.load_profile("forerun")

os.environ["FORERUN_CACHE"] = tempfile.mkdtemp(prefix="forerun-tests-")
os.environ["FORERUN_TRACES"] = "off"
atexit.register(shutil.rmtree, os.environ["FORERUN_CACHE"], ignore_errors=True)


def pytest_collection_finish() -> None:
    """What all test modules hold is no garbage: the collector, and who asks it for tensors, need not look there."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_prices(tmp_path, monkeypatch):
    """A cache of its own, so that no stored price of another test is seen."""
    from forerun.hardware.catalogue import forget_prices

    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    forget_prices()
    yield
    monkeypatch.undo()
    forget_prices()
