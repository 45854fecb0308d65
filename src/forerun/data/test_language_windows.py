import numpy as np

from forerun.data.language_windows import WindowData, held_out_batches, plan_of_windows, windows
from forerun.data.plan import BatchShape
from forerun.settings.schema import Settings

SETTINGS = Settings.model_validate(
    {"name": "w", "workload": "okadfa", "model": {"name": "okadfa-tiny"},
     "batch": {"micro_batch_size": 3, "gradient_accumulation_steps": 2, "sequence_length": 4}}
)  # fmt: skip
STREAM = np.arange(31, dtype=np.int32)


def test_every_token_is_predicted_once():
    rows = windows(STREAM, 4)
    assert rows.shape == (7, 5)
    assert rows[:, 1:].ravel().tolist() == list(range(1, 29))
    assert np.array_equal(rows[1:, 0], rows[:-1, -1])


def test_held_out_pads_the_last_window_and_counts_every_target():
    batches = list(held_out_batches(STREAM, 4, 3))
    assert [tuple(b["input_ids"].shape) for b in batches] == [(3, 4), (3, 4), (2, 4)]
    labels = [int(v) for b in batches for v in b["labels"].ravel()]
    assert labels == [*range(1, 31), -100, -100]
    assert all(int(b["input_ids"].min()) >= 0 for b in batches)


def test_an_epoch_has_every_window_once_in_an_order_of_seed_and_epoch():
    data = WindowData(SETTINGS, windows(STREAM, 4))
    steps = data.epoch_steps(0)
    assert [[len(b) for b in step] for step in steps] == [[3, 3], [1]]
    flat = [int(i) for step in steps for b in step for i in b]
    assert sorted(flat) == list(range(7))
    assert [int(i) for step in data.epoch_steps(1) for b in step for i in b] != flat
    assert [int(i) for step in data.epoch_steps(0) for b in step for i in b] == flat
    batch = data.collate(steps[0][0])
    assert (batch["labels"][:, :-1] == batch["input_ids"][:, 1:]).all()
    assert data.tokens([0, 1]) == (8, 8)


def test_the_plan_is_the_epoch():
    data = WindowData(SETTINGS, windows(STREAM, 4))
    plan = data.plan()
    assert dict(plan.shapes) == {BatchShape(3, 4): 2, BatchShape(1, 4): 1}
    assert plan.steps == len(data.epoch_steps(0)) == 2
    assert plan_of_windows(SETTINGS, 6, ("said",)).assumptions == ("said",)


def test_too_many_passes_are_said():
    long = SETTINGS.model_copy(update={"schedule": SETTINGS.schedule.model_copy(update={"epochs": 20})})
    assert "20.0 passes" in plan_of_windows(long, 12).assumptions[0]
    assert not plan_of_windows(SETTINGS, 12).assumptions
