import io
import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from forerun.hardware.catalogue import device, devices
from forerun.hardware.detect import CudaReading, Readers
from forerun.hardware.doctor import DoctorReport, examine
from forerun.report.hardware_tables import doctor_json, doctor_view, gpus_json, gpus_table, machine_facts
from forerun.units import GIB, MIB

WIDTH = 80
T4 = CudaReading(
    name="Tesla T4",
    total_bytes=14930 * MIB,
    available_bytes=14700 * MIB,
    compute_capability=(7, 5),
    sm_count=40,
    cuda_version="13.0",
)


def render_lines(view: RenderableType) -> list[str]:
    """Lines of a view at 80 columns, trailing blanks removed."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None).print(view)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def report_of(cuda: CudaReading | None, *, free: int = 50 * GIB) -> DoctorReport:
    readers = Readers(
        text={"/proc/cpuinfo": "model name : Test CPU\nflags : avx2\n"}.get,
        affinity=lambda: 4,
        host=lambda: (4, 8, 64 * GIB, free),
        threads=lambda: 4,
        cuda=lambda: cuda,
        cuda_build=lambda: None,
        driver_version=lambda: "580.95.05",
        version={"torch": "2.13.0", "optuna": "4.5.0"}.get,
    )
    return examine(folder=Path("/"), home=Path("/"), ledger="runs.db", readers=readers, free_bytes=lambda _: 90 * GIB)


def test_gpus_table_shows_every_row_whole_at_80_columns():
    lines = render_lines(gpus_table(devices()))
    body = lines[2 : 2 + len(devices())]
    # One line for each row, in order: a cell that does not fit would fold onto a second line.
    assert [line.split()[0].rstrip("*") for line in body] == [row.name for row in devices()]
    assert all(len(line.split()) == 12 for line in body)
    assert lines[2 + len(devices())].startswith("GiB:")
    assert max(map(len, lines)) <= WIDTH
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("t4", "t4 14.6 320 8.1 - 65.0 - - 130 7.5 0.59 2026-05"),
        ("h200", "h200 139.8 4800 67.0 495 989 989 1979 1979 9.0 4.59 2026-10"),
        ("h100-80gb", "h100-80gb 79.2 3350 67.0 495 989 989 1979 1979 9.0 3.99 2026-11"),
    ],
)
def test_gpus_table_cells(name: str, cells: str):
    (line,) = [line for line in render_lines(gpus_table([device(name)])) if line.startswith(name)]
    assert line.split() == cells.split()


def test_gpus_json_keeps_base_units_and_sources():
    document = json.loads(json.dumps(gpus_json(devices())))
    assert document["schema"] == "forerun.gpus/1"
    rows = {row["name"]: row for row in document["gpus"]}
    assert len(rows) == len(devices())
    a100 = rows["a100-40gb"]
    assert a100["memory_bytes"] == 40339 * MIB
    assert a100["peak_flops_per_second"]["bfloat16"] == pytest.approx(312e12)
    assert a100["compute_capability"] == [8, 0]
    assert "deviceQuery" in a100["sources"]["memory_bytes"]
    assert (rows["t4"]["has_bf16"], a100["has_bf16"]) == (False, True)
    assert rows["a10g"]["price_per_hour"] is None


def test_doctor_view_fits_and_keeps_the_extras_in_brackets():
    lines = render_lines(doctor_view(report_of(None)))
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= WIDTH
    assert "forerun[minilm]" in "".join(text.split())
    assert "Test CPU" in text
    assert "No problems found." in text


def test_doctor_view_lists_problems_with_remedies():
    text = " ".join(" ".join(render_lines(doctor_view(report_of(None, free=GIB)))).split())
    assert "Only 1.00 GiB of host memory" in text
    assert "No problems" not in text


def test_machine_facts_of_a_card_name_driver_and_host():
    facts = dict(machine_facts(report_of(T4)))
    assert facts["device"] == "t4: Tesla T4"
    assert facts["memory"] == "14.4 GiB free of 14.6 GiB"
    assert facts["host memory"] == "50.0 GiB free of 64.0 GiB"
    assert facts["driver"] == "580.95.05, CUDA 13.0"


def test_doctor_json_round_trips():
    document = json.loads(json.dumps(doctor_json(report_of(T4))))
    assert document["schema"] == "forerun.doctor/1"
    assert document["ready"] is True
    assert document["device"]["device"]["name"] == "t4"
    assert {verdict["precision"]: verdict["usable"] for verdict in document["precisions"]}["bf16-mixed"] is False
    assert document["ledger"] == "runs.db"
