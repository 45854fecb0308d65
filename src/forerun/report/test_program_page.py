"""The page of a program: everything on it is escaped, nothing is fetched, and its sums are the forecast's."""

import re
from html.parser import HTMLParser

import pytest

from forerun.forecasting.findings import ProgramFinding
from forerun.forecasting.program import ProgramForecast
from forerun.forecasting.program_records import AssumedValue, OutOfMemoryPoint, ScriptReport
from forerun.records import (
    MemoryForecast,
    ParameterCounts,
    Range,
    RunForecast,
    RunPhases,
    StepForecast,
    StepPhases,
)
from forerun.report.program_page import kernels_by_line, kernels_by_operator, memory_curve, render_program_page
from forerun.report.test_chrome_trace import an_account

VOID = {"meta", "br", "img", "link", "input", "hr", "col", "rect", "line", "polygon", "circle", "polyline"}


class Tags(HTMLParser):
    """Checks that every tag is closed, and collects text."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        assert not {"src", "href"} & {name for name, _ in attrs}, "nothing is fetched"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def forecast_of(account, **changes):
    memory, gib = account.memory, 2**30
    fields = {
        "settings_hash": "abc", "gpu": account.device.name, "world_size": 1, "fits": True,
        "parameters": ParameterCounts(total=10, trainable=4),
        "memory": MemoryForecast(
            peak_allocated_bytes=memory.peak_allocated_bytes, peak_reserved_bytes=memory.peak_reserved_bytes,
            device_bytes=Range(optimistic=gib, expected=gib, conservative=gib), context_bytes=gib,
            capacity_bytes=account.device.memory_bytes, breakdown=memory.breakdown,
        ),
        "step": StepForecast(
            seconds=Range(optimistic=0.1, expected=0.2, conservative=0.3), phases=StepPhases(forward_seconds=0.2),
            model_flops=1, hardware_flops=1, mfu=0.5, tokens_per_second=0, samples_per_second=7,
        ),
        "run": RunForecast(
            steps_per_epoch=1, total_steps=1, checkpoints_written=0, checkpoint_bytes=0,
            seconds=Range(optimistic=1, expected=2, conservative=3), phases=RunPhases(), cost=None,
        ),
        "script": ScriptReport(
            command="python <train>.py", exit_code=0, steps_seen=2, warm_from_step=2, wall_seconds=3,
            host_peak_bytes=gib, length_known_from=None,
        ),
    }  # fmt: skip
    return ProgramForecast(**{**fields, **changes})


def test_the_page_is_whole_escaped_and_fetches_nothing():
    account = an_account()
    findings = [ProgramFinding(kind="grows", line="train.py:9", bytes=2**20, text="Memory <grows>.")]
    assumed = [AssumedValue(line="train.py:3", what="a float32 & more", value="1.0")]
    page = render_program_page([forecast_of(account, findings=findings, assumed=assumed)], account)
    reader = Tags()
    reader.feed(page)
    assert reader.open == []
    assert not re.search(r"https?://|<script|@import|url\(", page)
    assert "<train>" not in page
    for text in ("python <train>.py", "Memory <grows>.", "a float32 & more", "samples a second", "no price known"):
        assert text in reader.text
    assert "Net.head" not in reader.text
    assert "What is alive at the peak" in reader.text


def test_running_out_of_memory_is_the_headline():
    account = an_account()
    full = OutOfMemoryPoint(line="train.py:6", tried_bytes=2**32, allocated_bytes=2**33,
                            alive=[{"bytes": 2**32, "category": "optimizer_state"}])  # fmt: skip
    page = render_program_page([forecast_of(account, fits=False, out_of_memory=full)], account)
    assert "Runs out of memory at train.py:6." in page
    assert "4.00 GiB optimizer state." in page
    page = render_program_page([forecast_of(account, fits=False), forecast_of(account)], account)
    assert "Does not fit: needs 1.00 GiB" in page
    assert "<h2>Cards</h2>" in page


def test_a_program_without_a_step_has_a_page():
    account = an_account()
    account = type(account)(account.trace, account.device, account.command, ())
    forecast = forecast_of(account)
    none = forecast.step.model_copy(
        update={"seconds": Range(optimistic=0, expected=0, conservative=0), "phases": StepPhases()}
    )  # fmt: skip
    page = render_program_page([forecast.model_copy(update={"step": none})], account)
    assert "No optimizer step and no backward pass was seen" in page
    assert kernels_by_line(account) == []


def test_kernels_are_those_of_the_last_step():
    account = an_account()
    kernels = [span for span in account.steps_with_spans[-1][1] if span.end > span.begin]
    for rows in (kernels_by_operator(account), kernels_by_line(account)):
        assert sum(row.seconds for row in rows) == pytest.approx(sum(span.end - span.begin for span in kernels))
        assert sum(row.calls for row in rows) == len(kernels)
        assert sum(row.share for row in rows) == pytest.approx(1)
    assert {row.name for row in kernels_by_operator(account)} == {"mm", "c10d.allreduce_"}
    assert {row.name for row in kernels_by_line(account)} == {"train.py:7"}


def test_the_curve_reaches_its_peak_and_knows_the_steps():
    account = an_account()
    view = memory_curve(account)
    assert view is not None
    assert max(view.layers[-1].upper) <= account.memory.peak_allocated_bytes
    assert [name for name, _ in view.moments] == ["step 1", "step 2"]
    assert view.marks[0][1] == account.memory.peak_allocated_bytes
