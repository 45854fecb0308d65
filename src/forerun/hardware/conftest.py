"""What several tests of hardware need."""

import pytest

from forerun.hardware.catalogue import forget_prices


@pytest.fixture
def own_prices(tmp_path, monkeypatch):
    """A cache of its own, so that no stored price of another test is seen."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    forget_prices()
    yield
    monkeypatch.undo()
    forget_prices()
