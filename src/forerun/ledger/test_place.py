"""A quick look never says no where the ledger has something to say."""

import pytest

from forerun.ledger.place import may_know
from forerun.ledger.store import open_ledger


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'a b.sqlite'}"
    with open_ledger(url) as ledger:
        ledger.start_run(name="n", workload="w", settings={}, settings_hash="h", gpu="t4", folder="f", versions={})
    return url


def test_only_devices_of_its_rows_are_known(url):
    assert may_know(url, ["a10", "t4"])
    assert not may_know(url, ["a10", "l4"])


@pytest.mark.parametrize("odd", ["postgresql://host/name", "sqlite:///:memory:", "sqlite:///x?mode=ro", "nonsense"])
def test_what_it_cannot_read_may_know(odd):
    assert may_know(odd, ["t4"])


def test_no_file_knows_nothing_and_no_ledger_may(tmp_path):
    assert not may_know(f"sqlite:///{tmp_path / 'none.sqlite'}", ["t4"])
    (tmp_path / "text").write_text("no database")
    assert may_know(f"sqlite:///{tmp_path / 'text'}", ["t4"])
