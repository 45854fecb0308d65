"""Variants of a sweep, and which runs of the ledger count for it."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.runs import sweep
from forerun.runs.sweep import PlannedRun, Sweep, make_variants, run_variant, values_of
from forerun.settings.load import settings_from

BASE = settings_from({"name": "s", "workload": "causal-lm", "model": {"name": "gpt2"}, "data": {"examples": 100}})
USUAL = {"small": ("batch.micro_batch_size=1",), "large": ("batch.micro_batch_size=8",)}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("0,0.01, 0.1", ["0", "0.01", "0.1"]),
        ("[q_proj,v_proj],all-linear", ["[q_proj,v_proj]", "all-linear"]),
        ("{a: 1, b: 2}", ["{a: 1, b: 2}"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("", [""]),
    ],
)
def test_commas_part_values_but_not_inside_brackets(text, values):
    assert values_of(text) == values


@given(st.lists(st.sampled_from(["1", "[1,2]", "{a: 1, b: 2}", "x"]), min_size=1))
def test_values_joined_by_commas_are_found_again(values):
    assert values_of(",".join(values)) == values


def test_every_combination_is_a_variant():
    sets = ["optimizer.learning_rate=1e-4,1e-3", "batch.micro_batch_size=1,2,4", "seed=7"]
    variants = make_variants(BASE, sets, USUAL)
    assert [v.name for v in variants][:2] == [
        "learning_rate=1e-4, micro_batch_size=1",
        "learning_rate=1e-4, micro_batch_size=2",
    ]
    assert len(variants) == 6
    assert {v.settings.seed for v in variants} == {7}
    assert {(v.settings.optimizer.learning_rate, v.settings.batch.micro_batch_size) for v in variants} == {
        (rate, size) for rate in (1e-4, 1e-3) for size in (1, 2, 4)
    }


def test_without_lists_the_usual_variants_share_what_is_set():
    variants = make_variants(BASE, ["seed=7"], USUAL)
    assert [(v.name, v.settings.batch.micro_batch_size, v.settings.seed) for v in variants] == [
        ("small", 1, 7),
        ("large", 8, 7),
    ]


@pytest.mark.parametrize(
    ("sets", "usual", "words"),
    [
        ([], {}, "several values"),
        (["seed=1,1"], {}, "same run"),
        (["seed=1,1.0"], {}, "same run"),
        ([f"seed={','.join(map(str, range(201)))}"], {}, "at most 200"),
        (["seed=1,x"], {}, "seed"),
        (["sed=1,2"], {}, "Nearest: seed"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(sets, usual, words):
    with pytest.raises(InvalidSettings, match=words):
        make_variants(BASE, sets, usual)


class FakeRange:
    expected = 10.0


class FakeRun:
    seconds, cost = FakeRange, 0.5


class FakeForecast:
    run, fits, settings_hash = FakeRun, True, "h"


def planned(state="waiting"):
    return PlannedRun(make_variants(BASE, ["seed=7"], USUAL)[0], FakeForecast(), state=state)  # type: ignore[arg-type]


def test_only_what_is_still_to_run_is_priced():
    whole_sweep = Sweep("t", [planned(), planned("finished"), planned("does not fit"), planned()])
    assert (whole_sweep.seconds, whole_sweep.cost) == (20.0, 1.0)


@pytest.mark.parametrize(
    ("code", "state"),
    [('print(\'{"run_id": "r1"}\'); raise SystemExit(4)', "finished"), ("raise SystemExit(2)", "failed")],
)
def test_a_variant_runs_in_a_process_of_its_own(monkeypatch, tmp_path, code, state):
    real = sweep.subprocess.run
    commands = []

    def run(command, **options):
        commands.append(command)
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(sweep.subprocess, "run", run)
    one = planned()
    run_variant("recipe", one)
    assert (one.state, one.run_id) == (state, "r1" if state == "finished" else None)
    assert commands[0][1:6] == ["-m", "forerun", "run", "recipe", "--json"]
    assert ("--set", "batch.micro_batch_size=1") in zip(commands[0], commands[0][1:], strict=False)


def test_an_interrupted_variant_stops_the_sweep(monkeypatch):
    class Done:
        returncode, stdout = 130, ""

    monkeypatch.setattr(sweep.subprocess, "run", lambda *a, **k: Done)
    with pytest.raises(KeyboardInterrupt):
        run_variant("recipe", planned())


class FakeLedger:
    """Runs, newest first, some with a measurement."""

    def __init__(self, rows, measured):
        self._rows, self._measured = rows, measured

    def runs(self, limit):
        return self._rows

    def measurement(self, run_id):
        return self._measured.get(run_id)

    def forecast(self, run_id):
        return FakeForecast


@pytest.mark.parametrize(
    ("rows", "measured", "resume", "expected"),
    [
        ([("b", "h", "interrupted"), ("a", "h", "verified")], {"a": 1}, True, ("b", "waiting")),
        ([("a", "h", "verified")], {"a": 1}, True, ("a", "finished")),
        ([("a", "h", "verified")], {"a": 1}, False, (None, "waiting")),
        ([("a", "other", "verified")], {"a": 1}, True, (None, "waiting")),
        ([("b", "h", "failed"), ("a", "h", "verified")], {"a": 1}, True, ("a", "finished")),
    ],
)
def test_a_resumed_sweep_takes_what_the_ledger_has(rows, measured, resume, expected):
    class Row:
        def __init__(self, id, settings_hash, state):
            self.id, self.settings_hash, self.state = id, settings_hash, state

    ledger = FakeLedger([Row(*row) for row in rows], measured)
    variant = planned().variant
    whole_sweep = sweep.plan_sweep("t", [variant], lambda settings: FakeForecast, ledger, resume=resume)  # type: ignore[arg-type]
    assert (whole_sweep.planned[0].run_id, whole_sweep.planned[0].state) == expected
