"""Damaged ledgers are kept, what can be read goes on, and no password is shown."""

import random
import sqlite3
import warnings

import pytest

from forerun.errors import ForerunError, LedgerConflict
from forerun.ledger.damage import LedgerDamage, damage_of
from forerun.ledger.store import open_ledger

RUN = {
    "name": "a",
    "workload": "b",
    "settings": {"x": 1},
    "settings_hash": "h",
    "gpu": "t4",
    "folder": "f",
    "versions": {},
}


def whole_ledger(path, runs=40):
    with open_ledger(f"sqlite:///{path}") as ledger:
        for _ in range(runs):
            ledger.start_run(**RUN)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def damages(content):
    """As disks and people damage files: by name."""
    chance = random.Random(1)
    flipped = bytearray(content)
    for _ in range(200):
        flipped[chance.randrange(len(content))] ^= 0xFF
    zeros = bytearray(content)
    zeros[4096:8192] = bytes(4096)
    return {
        "text": b"garbage garbage garbage", "half": content[: len(content) // 2], "header": bytes(100) + content[100:],
        "flipped": bytes(flipped), "a page of zeros": bytes(zeros), "random": chance.randbytes(8192),
        "first page": content[:4096],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["text", "half", "header", "flipped", "a page of zeros", "random", "first page"])
def test_a_damaged_ledger_is_kept_aside_and_a_new_one_works(kind, tmp_path):
    path = tmp_path / "ledger.sqlite"
    content = damages(whole_ledger(path))[kind]
    path.write_bytes(content)
    assert damage_of(path)
    with pytest.warns(LedgerDamage, match="kept as ledger.sqlite.damaged-"):
        ledger = open_ledger(f"sqlite:///{path}")
    with ledger:
        run = ledger.start_run(**RUN)
        assert ledger.run(run).name == "a"
    (aside,) = tmp_path.glob("ledger.sqlite.damaged-*[0-9]")
    assert aside.read_bytes() == content
    with warnings.catch_warnings(), open_ledger(f"sqlite:///{path}") as again:
        warnings.simplefilter("error")
        assert again.run(run).gpu == "t4"


def test_rows_that_can_be_read_are_in_the_new_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    whole_ledger(path)
    with sqlite3.connect(path) as database:  # an index that does not have what its table has
        database.execute("PRAGMA writable_schema=ON")
        database.execute("update sqlite_master set rootpage=(select rootpage from sqlite_master where name='events') "
                         "where name='ix_runs_settings_hash'")  # fmt: skip
    with pytest.warns(LedgerDamage):
        ledger = open_ledger(f"sqlite:///{path}")
    with ledger:
        assert len(ledger.runs(limit=100)) == 40


def test_an_undamaged_ledger_is_left_alone(tmp_path):
    path = tmp_path / "ledger.sqlite"
    whole_ledger(path, 2)
    assert damage_of(path) == ""
    assert damage_of(tmp_path / "none.sqlite") == ""
    assert not list(tmp_path.glob("*damaged*"))


@pytest.mark.parametrize("url", ["postgresql://me:secret@nowhere/db", "nonsense://me:secret@host", "me:secret@host//"])
def test_no_message_has_the_password(url):
    with pytest.raises(LedgerConflict) as caught:
        open_ledger(url)
    assert isinstance(caught.value, ForerunError)
    assert "secret" not in str(caught.value)
