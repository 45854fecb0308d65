"""Ten processes that open one new ledger in the same moment all write into it, and runs of one minute get ids of their own."""

import multiprocessing

import sqlalchemy as sa

from forerun.ledger import store
from forerun.ledger.store import open_ledger
from forerun.ledger.tables import METADATA, create_tables
from forerun.ledger.test_store import RUN, step

WRITERS, RUNS_EACH, STEPS_EACH = 10, 2, 20


def write(url, together):
    together.wait()
    with open_ledger(url) as ledger:
        for _ in range(RUNS_EACH):
            run = ledger.start_run(**RUN)
            for number in range(STEPS_EACH):
                ledger.record_step(run, step(number))


def test_ten_processes_make_one_ledger(tmp_path):
    for attempt in range(3):  # before there was one statement for both, 44 of 200 writers failed
        url, fork = f"sqlite:///{tmp_path / f'{attempt}.sqlite'}", multiprocessing.get_context("fork")
        together = fork.Barrier(WRITERS)
        writers = [fork.Process(target=write, args=(url, together)) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        assert [writer.exitcode for writer in writers] == [0] * WRITERS
        with open_ledger(url) as ledger:
            rows = ledger.runs(limit=100)
            assert len(rows) == WRITERS * RUNS_EACH
            assert all(len(ledger.steps(row.id)) == STEPS_EACH for row in rows)


def test_an_id_that_is_taken_is_drawn_again(tmp_path, monkeypatch):
    drawn = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(store.secrets, "token_hex", lambda size: next(drawn))
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        first, second = ledger.start_run(**RUN), ledger.start_run(**RUN)
    assert first.endswith("-aaaa")
    assert second.endswith("-bbbb")


def test_a_ledger_with_some_of_its_tables_gets_the_others(tmp_path):
    """One that an older version wrote, and one whose first process was killed."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    create_tables(engine)
    METADATA.tables["events"].drop(engine)
    create_tables(engine)
    inspector = sa.inspect(engine)
    assert set(inspector.get_table_names()) == set(METADATA.tables)
    assert [row["name"] for row in inspector.get_indexes("events")] == ["ix_events_run_id"]
    engine.dispose()
