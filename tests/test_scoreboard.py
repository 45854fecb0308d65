"""The scoreboard's rows, its statistics, and that the README quotes what it last printed."""

import csv
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.scoreboard.__main__ import LATEST, scores, summary  # noqa: E402
from benchmarks.scoreboard.libraries import SETS  # noqa: E402
from benchmarks.scoreboard.programs import ARCHITECTURES, PROGRAMS  # noqa: E402
from benchmarks.scoreboard.rows import load_rows  # noqa: E402

from forerun.clock.priors import PriorCosts  # noqa: E402
from forerun.forecasting.ranges import TIME_SPREAD  # noqa: E402
from forerun.hardware.catalogue import device  # noqa: E402
from forerun.models.catalogue import model_config  # noqa: E402
from forerun.settings.load import settings_from  # noqa: E402

ROWS = load_rows()


def test_rows_are_complete_and_can_be_forecast():
    assert len({row.id for row in ROWS}) == len(ROWS) > 150
    for row in ROWS:
        assert row.library in SETS
        if row.program == "settings":
            settings = settings_from(row.settings["settings"])
            assert model_config(settings.model.name, settings.model.config, settings.model.attention)
        else:
            assert row.program in PROGRAMS
            assert row.settings["model"] in ARCHITECTURES
        assert device(row.gpu)
        measured = row.allocated_bytes, row.reserved_bytes, row.device_bytes, row.step_seconds
        assert any(v is not None for v in measured)
        assert row.is_specified or row.note, "what is missing must be said"


def test_a_third_is_held_out():
    share = sum(row.is_held_out for row in ROWS) / len(ROWS)
    assert 0.25 < share < 0.42


def test_statistics():
    figures = summary(np.array([-0.1, 0.0, 0.2]))
    assert figures == {"rows": 3, "median": 0.1, "mean": pytest.approx(0.1), "p95": pytest.approx(0.19),
                     "bias": pytest.approx(1 / 30)}  # fmt: skip
    assert summary(np.array([])) == {"rows": 0}


def test_a_perfect_forecast_scores_zero():
    row = next(r for r in ROWS if r.device_bytes is not None and r.is_specified and not r.quantized)
    size = row.device_bytes
    forecast = {
        "allocated": row.allocated_bytes,
        "reserved": size,
        "device": size,
        "conservative": size,
        "capacity": size,
    }
    forecast |= {"step": row.step_seconds, "evidence": "measured", "constant_mfu": 1.0, "roofline": 1.0}
    figures = scores([(row, forecast)])
    assert figures["time.known_gpu"]["median"] == 0
    assert figures["memory.allocated"]["median"] == figures["memory.device"]["mean"] == 0
    assert figures["memory.within_conservative"] == 1
    assert figures["memory.qlora_device"] == {"rows": 0}


def test_the_readme_quotes_the_last_scoreboard():
    with LATEST.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["specified"] == "True"]
    assert len(lines) == sum(row.is_specified for row in ROWS), "run `python -m benchmarks.scoreboard` again"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, label in (("error_allocated", "peak allocated"), ("error_device", "device memory")):
        plain = [abs(float(li[name])) for li in lines if li[name] and "quantization" not in li["settings"]]
        every = [abs(float(li[name])) for li in lines if li[name]]
        used = every if name == "error_allocated" else plain
        row = re.search(rf"\| {label} \| (\d+) \| ([\d.]+) % \|", text)
        assert row is not None, f"README has no row for {label}"
        assert int(row[1]) == len(used)
        assert float(row[2]) == pytest.approx(100 * statistics.median(used), abs=0.006)


def timed_lines():
    with LATEST.open(encoding="utf-8", newline="") as file:
        return [li for li in csv.DictReader(file) if li["specified"] == "True" and li["measured_step"]]


def test_the_readme_quotes_step_times():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    in_priors = [li for li in timed_lines() if PriorCosts(device(li["gpu"])).evidence == "measured"]
    sizes = [abs(float(li["error_step"])) for li in in_priors]
    row = re.search(r"\| step time, GPU in the priors \| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|", text)
    assert row is not None
    assert int(row[1]) == len(sizes)
    assert float(row[2]) == pytest.approx(100 * statistics.median(sizes), abs=0.006)
    assert float(row[3]) == pytest.approx(100 * np.quantile(sizes, 0.9), abs=0.006)


def test_ranges_hold_for_steps_that_were_held_out():
    """An 80 % range on GPUs in the priors: what was not looked at must not speak against it (binomial test, 5 %)."""
    inside = []
    for line in timed_lines():
        evidence = PriorCosts(device(line["gpu"])).evidence
        if line["held_out"] == "True" and evidence == "measured":
            low, high = TIME_SPREAD[evidence]
            inside.append(low <= float(line["measured_step"]) / float(line["forecast_step"]) <= high)
    assert len(inside) >= 14
    assert binomtest(sum(inside), len(inside), 0.8).pvalue > 0.05


@pytest.mark.slow
def test_one_row_of_the_installed_library_runs():
    from benchmarks.scoreboard.__main__ import run_worker

    row = next(r for r in ROWS if r.library == "installed")
    (forecast,) = run_worker("installed", [row])
    assert forecast["reserved"] > forecast["allocated"] > 0
