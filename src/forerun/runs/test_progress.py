from forerun.records import Range
from forerun.runs.progress import progress_note
from forerun.runs.test_eta import report

LEFT = Range(optimistic=60.0, expected=90.0, conservative=120.0)
GIBIBYTE = 2**30


def test_a_line_of_progress_has_loss_pace_memory_and_the_time_left():
    note = progress_note(report(3, 0.5), LEFT, 3 * GIBIBYTE)
    assert note == "loss 1.0000  lr 1.00e-03  2 tokens/s  3.00 GiB resident  left 60.0 s to 2.00 min"


def test_on_a_gpu_the_memory_is_the_allocators_peak():
    step = report(3, 0.5).model_copy(update={"peak_allocated_bytes": 2 * GIBIBYTE})
    assert "peak 2.00 GiB" in progress_note(step, LEFT, GIBIBYTE)
    assert "left" not in progress_note(step, Range(optimistic=0, expected=0, conservative=0), GIBIBYTE)
