"""What people read: the terminal's tables and the page, from made-up records."""

import re

import pytest
from rich.console import Console

from forerun.records import (
    CriterionResult,
    Forecast,
    ForecastDetail,
    MeasuredMemory,
    MeasuredRun,
    MeasuredStep,
    Measurement,
    MemoryBreakdown,
    MemoryForecast,
    OperatorTime,
    ParameterCounts,
    Range,
    RunForecast,
    RunPhases,
    StepForecast,
    StepPhases,
    StepReport,
    TimelinePoint,
    Verdict,
    VerdictRow,
)  # fmt: skip
from forerun.report import terminal
from forerun.report.html import (
    PageContent,
    curve_chart,
    headline,
    memory_parts,
    phase_bars,
    render_page,
    render_results,
)  # fmt: skip
from forerun.report.tables import ResultCurve, ResultTable, Series
from forerun.units import GIB

TABLE = ResultTable(
    title="Scores", note="Held out.", columns=["model", "AUC"], rows=[["<b>x</b>", 0.98765], ["y", None]]
)


def breakdown(scale=1):
    return MemoryBreakdown(
        parameter_bytes=GIB * scale, gradient_bytes=GIB, optimizer_state_bytes=2 * GIB, activation_bytes=3 * GIB,
        temporary_bytes=GIB // 2, other_bytes=GIB // 2,
    )  # fmt: skip


def band(value):
    return Range(optimistic=0.8 * value, expected=value, conservative=1.3 * value)


def forecast(gpu="a100-40gb", fits=True, seconds=600.0, cost=1.5):
    points = [TimelinePoint(seconds=t / 10, phase="forward", bytes=breakdown(t)) for t in range(1, 6)]
    return Forecast(
        settings_hash="0" * 16, gpu=gpu, world_size=1, fits=fits, parameters=ParameterCounts(total=10, trainable=10),
        memory=MemoryForecast(
            peak_allocated_bytes=8 * GIB, peak_reserved_bytes=9 * GIB, device_bytes=band(10 * GIB), context_bytes=GIB,
            capacity_bytes=40 * GIB, breakdown=breakdown(),
        ),
        step=StepForecast(
            seconds=band(0.5), phases=StepPhases(forward_seconds=0.2, backward_seconds=0.3), model_flops=1e12,
            hardware_flops=1e12, mfu=0.4, tokens_per_second=1000, samples_per_second=10,
        ),
        run=RunForecast(
            steps_per_epoch=100, total_steps=1200, checkpoints_written=3, checkpoint_bytes=GIB, seconds=band(seconds),
            phases=RunPhases(training_seconds=seconds - 30, startup_seconds=30), cost=cost,
        ),
        warnings=["Time: uncalibrated."], not_modelled=["the weather"],
        detail=ForecastDetail(
            timeline=points, operators=[OperatorTime(name="mm.default", phase="forward", calls=3, seconds=0.1)]
        ),
    )  # fmt: skip


def measurement():
    return Measurement(
        settings_hash="0" * 16, gpu="cpu", parameters=ParameterCounts(total=10, trainable=10),
        memory=MeasuredMemory(peak_allocated_bytes=8 * GIB, peak_reserved_bytes=None, device_bytes=None, method="by hand"),
        step=MeasuredStep(
            seconds=0.6, phases=StepPhases(forward_seconds=0.25, backward_seconds=0.35), tokens_per_second=900,
            samples_per_second=9,
        ),
        run=MeasuredRun(
            steps_per_epoch=100, total_steps=1200, checkpoints_written=3, checkpoint_bytes=GIB, seconds=700,
            phases=RunPhases(training_seconds=670, startup_seconds=30),
        ),
        versions={"torch": "2.13.0"},
    )  # fmt: skip


def verdict(passed=True):
    row = VerdictRow(
        field="step.seconds", unit="seconds", forecast=0.5, measured=0.6, relative_error=-1 / 6, inside_range=True
    )
    criterion = CriterionResult(name="beats chance", rule="auc above 0.5", value=0.9, passed=passed)
    return Verdict(run_id="r", rows=[row], criteria=[criterion], first_cause="Look at forward.", passed=passed)


def reports(count=20):
    return [
        StepReport(
            step=n, epoch=n / 100, loss=2.0 / n, learning_rate=1e-3, step_seconds=0.6, phases=StepPhases(), samples=1,
            tokens=1, padded_tokens=1, details={"task_loss": 1.0, "task_floor": 0.3},
        )
        for n in range(1, count + 1)
    ]  # fmt: skip


def content(**changes):
    whole = {
        "title": "code-detector on cpu", "settings": {"name": "<i>n</i>", "batch": {"size": 4}}, "forecast": forecast(),
        "run": {"id": "20261121-0000-ab12", "started_at": "2026-11-21", "state": "verified", "settings_hash": "0" * 16},
        "measurement": measurement(), "verdict": verdict(), "steps": reports(), "tables": [TABLE],
    }  # fmt: skip
    return PageContent(**{**whole, **changes})


def render_text(view, width=80):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    console.file.close()
    return console.export_text()


def test_forecast_says_whether_it_fits_and_every_number():
    text = render_text(terminal.forecast_table(forecast(), "Forecast"))
    for words in (
        "Fits",
        "8.00 GiB",
        "9.00 GiB",
        "500 ms",
        "10.0 min",
        "$1.50",
        "1,200",
        "uncalibrated",
        "the weather",
    ):
        assert words in text
    assert "Does not fit" in render_text(terminal.forecast_table(forecast(fits=False), "F"))
    assert max(map(len, text.splitlines())) <= 80


def test_comparison_lists_every_gpu():
    text = render_text(
        terminal.forecast_comparison([forecast(), forecast("t4", fits=False), forecast("l4", cost=None)])
    )
    assert all(word in text for word in ("a100-40gb", "t4", "l4", "no", "–"))


def test_verdict_shows_errors_criteria_and_cause():
    text = render_text(terminal.verdict_table(verdict(passed=False)))
    assert all(word in text for word in ("-16.7 %", "FAIL", "beats chance", "Look at forward.", "in range"))


def test_result_table():
    text = render_text(terminal.result_table(TABLE))
    assert all(word in text for word in ("Scores", "0.988", "–", "Held out."))


def test_page_is_self_contained_and_escaped():
    page = render_page(content())
    assert not re.search(r"(src|href)\s*=", page)
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page
    assert "<b>x</b>" not in page
    assert "<i>n</i>" not in page
    for words in (
        "All 1 criteria passed.",
        "600 ms",
        "Look at forward.",
        "by hand",
        "mm.default",
        "batch.size",
        "0.988",
    ):
        assert words in page


def test_failed_criteria_lead_the_page():
    assert "1 of 1 criteria failed: beats chance." in render_page(content(verdict=verdict(passed=False)))


def test_a_baseline_that_wins_is_the_first_word_of_the_page():
    better = verdict(passed=False).model_copy(update={"better_baseline": "tf-idf is the right choice here: f1 0.8"})
    assert headline(content(verdict=better)).startswith(
        "tf-idf is the right choice here: f1 0.8. 1 of 1 criteria failed"
    )


@pytest.mark.parametrize("missing", [{"measurement": None, "verdict": None}, {"steps": []}, {"tables": []}])
def test_pages_of_unfinished_runs(missing):
    assert "code-detector on cpu" in render_page(content(**missing))


def test_bars_share_one_scale():
    bars = phase_bars(StepPhases(forward_seconds=1, backward_seconds=2), StepPhases(forward_seconds=4, data_seconds=1))
    assert [(b.name, b.forecast_width, b.measured_width) for b in bars] == [
        ("forward", 25.0, 100.0),
        ("backward", 50.0, 0.0),
        ("data", 0.0, 25.0),
    ]


def test_a_curve_has_its_lines_intervals_and_axes():
    series = [
        Series(name="close", x=[0.0, 0.5, 1.0], y=[0.9, 0.8, 0.1], low=[0.85, 0.7, 0.0], high=[0.95, 0.9, 0.2]),
        Series(name="uniform", x=[0.0, 0.5, 1.0], y=[0.9, 0.5, 0.0]),
    ]
    curve = ResultCurve(title="Dose <and> response", across="rate", up="exact match", series=series)
    chart = curve_chart(curve)
    empty = curve_chart(curve.model_copy(update={"series": [Series(name="none", x=[], y=[])]}))
    assert "no points" in empty
    assert "<svg" not in empty
    assert chart.count("<polygon") == 1
    assert chart.count("<polyline") == 2
    assert "Dose &lt;and&gt; response" in chart
    assert "exact match over rate" in chart
    assert chart in render_page(content(curves=[curve]))


def test_long_words_of_a_table_are_wrapped():
    table = ResultTable(title="Trials", note="", columns=["trial", "with"], rows=[["1", "learning_rate=0.001, " * 9]])
    page = render_results("Search", "", [table], [])
    assert page.count('<td class="long">') == 1


def test_the_bar_of_memory_ends_at_the_conservative_number():
    shares = {name: share for name, share, _ in memory_parts(forecast())}
    assert sum(shares.values()) == pytest.approx(100 * 13 / (1.02 * 40), abs=0.1)
    assert shares["unlucky"] == pytest.approx(100 * 3 / (1.02 * 40), abs=0.1)
    assert "prefers-color-scheme" in render_page(content()).replace("@media (prefers", ""), "paper stays white"
