"""The scoreboard's rows and split, its statistics, and that README and ranges say what it last wrote."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.accuracy_page import PAGE, README, page, with_tables  # noqa: E402
from benchmarks.ranges import conformal, ends, held, predicted  # noqa: E402
from benchmarks.scoreboard import results  # noqa: E402
from benchmarks.scoreboard.__main__ import BOARD, LATEST  # noqa: E402
from benchmarks.scoreboard.boards import QUANTITIES, board, coverage, ladder, ladders, short, summary  # noqa: E402
from benchmarks.scoreboard.collect_user import OUTSIDE_SOURCES  # noqa: E402
from benchmarks.scoreboard.libraries import SETS  # noqa: E402
from benchmarks.scoreboard.programs import ARCHITECTURES, PROGRAMS  # noqa: E402
from benchmarks.scoreboard.rows import ADDED, load_rows  # noqa: E402

from forerun.forecasting.ranges import shares  # noqa: E402
from forerun.hardware.catalogue import device  # noqa: E402
from forerun.models.catalogue import model_config  # noqa: E402
from forerun.settings.load import settings_from  # noqa: E402

MAIN = load_rows()
ROWS = MAIN + load_rows(ADDED / "rows")
SCORES = json.loads(BOARD.read_text(encoding="utf-8"))


def test_rows_are_complete_and_can_be_forecast():
    assert len({row.id for row in ROWS}) == len(ROWS) > 300
    for row in ROWS:
        assert row.library in SETS
        if row.program == "settings":
            settings = settings_from(row.settings["settings"])
            assert model_config(settings.model.name, settings.model.config, settings.model.attention)
        else:
            assert row.program in PROGRAMS
            assert row.program == "image-training" or row.settings["model"] in ARCHITECTURES
        assert device(row.gpu)
        measured = row.allocated_bytes, row.reserved_bytes, row.device_bytes, row.step_seconds, row.run_seconds
        assert (row.run_seconds is not None) == bool(row.covers)
        assert any(v is not None for v in measured) or row.outcome == "oom"
        assert row.is_specified or row.note, "what is missing must be said"
        assert row.source not in OUTSIDE_SOURCES, "its licence keeps its numbers out of the repository"


def test_a_family_stays_in_one_half_and_what_was_seen_is_never_tested():
    halves: dict[str, set[bool]] = {}
    for row in ROWS:
        assert row.is_seen or row.family
        assert not (row.is_seen and row.is_test)
        if not row.is_seen:
            halves.setdefault(row.family, set()).add(row.is_test)
    assert all(len(half) == 1 for half in halves.values())
    assert {True, False} == {half for family in halves.values() for half in family}


def test_rows_of_the_test_half_are_published_in_sums_only():
    test_ids = {row.id for row in ROWS if row.is_test}
    with LATEST.open(encoding="utf-8", newline="") as file:
        published = {line["id"] for line in csv.DictReader(file)}
    assert published
    assert not published & test_ids
    sums = json.dumps({name: part for name, part in SCORES.items() if name != "rows_not_forecast"})
    assert not any(row_id in sums for row_id in test_ids)


def flop_of_products(settings):
    """FLOP of a row's step and GPU that no program gets around: the layers' weights, without embeddings and attention."""
    config = model_config(settings.model.name, settings.model.config, settings.model.attention).get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    weights = (10 if getattr(config, "multi_query", False) else 12) * hidden**2
    if getattr(config, "intermediate_size", None) and getattr(config, "num_key_value_heads", None):
        narrow = hidden * config.num_key_value_heads // config.num_attention_heads
        weights = 2 * hidden * (hidden + narrow) + 3 * hidden * config.intermediate_size
    each = 4 if settings.adapter.kind != "none" else 6
    batch = settings.batch
    return each * weights * layers * batch.micro_batch_size * batch.gradient_accumulation_steps * batch.sequence_length


PEAKS = {"tf32": "tfloat32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def test_no_published_step_is_faster_than_its_card():
    timed = [row for row in ROWS if row.program == "settings" and row.step_seconds]
    assert len(timed) > 70
    for row in timed:
        settings = settings_from(row.settings["settings"])
        peak = device(row.gpu).peak(PEAKS[settings.precision.split("-")[0]])
        assert flop_of_products(settings) / row.step_seconds < peak, row.id


def test_statistics():
    figures = summary(np.array([-0.1, 0.0, 0.2]))
    assert figures == {"rows": 3, "median": 0.1, "p90": pytest.approx(0.18), "p95": pytest.approx(0.19),
                     "bias": pytest.approx(1 / 30, abs=1e-5)}  # fmt: skip
    assert summary(np.array([])) == {"rows": 0}


def perfect(row):
    """A forecast that hits what was measured."""
    forecast = {name: getattr(row, field) or 1.0 for name, field in QUANTITIES.items()}
    return forecast | {"group": "settings", "run_range": [0.0, 1e12], "conservative": row.device_bytes or 1.0, "capacity": 80e9,
                       "fits": row.outcome != "oom"}  # fmt: skip


def test_a_perfect_forecast_scores_zero_and_one_source_is_one_line():
    pairs = [(row, perfect(row)) for row in ROWS]
    table = board(pairs, "user")
    assert all(table[name]["fit"]["median"] == 0 for name in QUANTITIES)
    for name in QUANTITIES:
        lines = [(line["source"], line["half"]) for line in table[name]["by_source"]]
        assert len(set(lines)) == len(lines)
        assert table[name]["sources"] == len({source for source, _ in lines})
    assert all(line["right"] == 1 for line in ladders(pairs))
    assert all(figures["inside"] == 1 for halves in coverage(pairs).values() for figures in halves.values())
    far = [(row, result | {"step_range": [3 * (row.step_seconds or 0), 4]}) for row, result in pairs]
    assert all(figures["inside"] == 0 for halves in coverage(far).values() for figures in halves.values())


def test_a_wrong_fits_costs_precision_and_a_wrong_refusal_recall():
    answers = [(True, True), (True, True), (True, False), (False, True), (False, False)]
    figures = ladder(answers)
    assert figures["precision"] == pytest.approx(2 / 3, abs=1e-4)
    assert figures["recall"] == pytest.approx(2 / 3, abs=1e-4)
    assert (figures["ran"], figures["failed"], figures["failed_right"]) == (3, 2, 1)


@pytest.mark.parametrize("rows", [1, 12])
def test_the_conformal_range_holds_for_a_new_family(rows):
    """Families miss alike: of 19, their ends hold 80 % of a twentieth one's rows or a little more, at one row or many."""
    random = np.random.default_rng(0)
    inside = []
    for _ in range(1000):
        families = np.exp(random.normal(0.1, 0.2, (20, 1)) + random.normal(0, 0.05, (20, rows)))
        low, high = conformal(families[:19].tolist())
        inside.append(np.mean((low <= families[19]) & (families[19] <= high)))
    assert 0.78 < np.mean(inside) < 0.86


@pytest.mark.parametrize("rows", [1, 6])
def test_few_families_predict_one_more(rows):
    """Of 13, whose conformal ends are close to the extremes: 80 % of one more family's rows, mostly in less width."""
    random = np.random.default_rng(1)
    inside, narrower = [], []
    for _ in range(2000):
        families = np.exp(random.normal(0.1, 0.15, (14, 1)) + random.normal(0, 0.05, (14, rows)))
        low, high = predicted(families[:13].tolist())
        inside.append(np.mean((low <= families[13]) & (families[13] <= high)))
        widest = conformal(families[:13].tolist())
        narrower.append(high / low < widest[1] / widest[0])
    assert 0.78 < np.mean(inside) < 0.82
    assert np.mean(narrower) > 0.5
    assert ends(families.tolist()) == predicted(families.tolist())
    assert 0 < held(families.tolist()) <= 1
    assert held(families[:3].tolist()) is None


def test_a_family_of_many_rows_weighs_no_more_than_another():
    families = [[1.0 + 0.01 * number] for number in range(20)]
    assert conformal([[0.5] * 1000, *families]) == conformal([[0.5], *families])
    assert conformal([[0.9, 1.1], [1.3]]) == (0.9, 1.3), "of few families, the extremes"


def test_readme_and_page_say_what_the_scoreboard_wrote():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks.accuracy_page` again"
    text = README.read_text(encoding="utf-8")
    assert text == with_tables(text), "run `python -m benchmarks.accuracy_page` again"


def test_the_board_was_made_from_these_rows():
    counted = sum(line["ran"] + line["failed"] for line in SCORES["ladders"] if "/" in line["source"])
    assert counted >= sum(bool(row.outcome) for row in MAIN) - len(SCORES["rows_not_forecast"])
    published = {
        line["source"]
        for name in ("user", "exact")
        for q in QUANTITIES.keys() & SCORES[name].keys()
        for line in SCORES[name][q]["by_source"]
    }
    measured = {short(row.source) for row in MAIN if row.id not in SCORES["rows_not_forecast"]}
    assert measured <= published


def test_compiled_steps_of_both_boards_are_counted_by_half():
    for half, is_test in (("test", True), ("fit", False)):
        mine = [row for row in ROWS if row.is_compiled and row.step_seconds is not None and row.is_test is is_test]
        assert SCORES["compiled"][half]["rows"] == len(mine) > 0
    assert SCORES["compiled"]["test"]["sources"] > 1


def test_ranges_hold_on_rows_that_they_were_not_fitted_to():
    """Every group with 20 rows or more in the test half lies within the goal of 72 to 90 %, or the page says so."""
    text = PAGE.read_text(encoding="utf-8")
    for group, halves in SCORES["coverage"].items():
        figures = halves.get("test", {"rows": 0, "inside": 0.8})
        assert shares(group)[0] < 1 < shares(group)[1]
        if figures["rows"] >= 20 and not 0.72 <= figures["inside"] <= 0.90:
            assert f"{group}: {figures['inside']:.0%}" in text


def test_a_stopped_run_goes_on_with_the_rows_that_are_not_up_to_date(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(results, "STORE", tmp_path / "store.json")

    def worker(library, rows):
        asked.extend(row.id for row in rows)
        return [{"id": row.id} for row in rows]

    monkeypatch.setattr(results, "run_worker", worker)
    rows = [row for row in ROWS if row.library == "installed"][:3]
    results.forecast_all(rows[:2], 1)
    results.forecast_all(rows, 1, resumes=True)
    results.forecast_all([replace(rows[0], gpu="l4"), *rows[1:]], 1, resumes=True)
    assert asked == [rows[0].id, rows[1].id, rows[2].id, rows[0].id]


def test_workers_see_the_folders_that_a_caller_puts_on_the_path_behind_their_libraries(monkeypatch):
    seen = {}

    def run(command, *, env, **rest):
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(results.subprocess, "run", run)
    monkeypatch.setenv("PYTHONPATH", "a-site:b-site")
    results.run_worker("installed", [])
    assert seen["PYTHONPATH"].split(":")[-2:] == ["a-site", "b-site"]
    assert seen["PYTHONPATH"].split(":")[0] == str(ROOT / "src")


@pytest.mark.slow
def test_one_row_of_the_installed_library_runs():
    from benchmarks.scoreboard.results import run_worker

    row = next(r for r in ROWS if r.library == "installed")
    (forecast,) = run_worker("installed", [row])
    assert forecast["reserved"] > forecast["allocated"] > 0
