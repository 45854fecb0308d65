"""The training engine: exact resume, damaged checkpoints, interruption, evaluation that changes nothing, parity."""

import os
import random
import shutil
import signal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import CheckpointDamaged, InvalidSettings
from forerun.settings.load import settings_from
from forerun.settings.schema import ScheduleSettings
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.step.workload import LossSum
from forerun.train import checkpoint, checkpoint_files
from forerun.train.interrupt import Interrupted
from forerun.train.measure import measured_step, run_measuring_allocations
from forerun.train.schedule import Schedule
from kill_driver import SAMPLES, TinyWorkload, run, text_training, tiny_training, training_of, weights_hash

TOTAL = 28  # 50 samples in steps of 2 x 4, 7 steps an epoch, 4 epochs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    training = tiny_training(tmp_path_factory.mktemp("whole"))
    reports = run(training)
    return weights_hash(training.step.model), reports


def test_a_run_is_as_long_as_the_schedule_says(whole):
    _, reports = whole
    assert [r.step for r in reports] == list(range(1, TOTAL + 1))
    assert [r.samples for r in reports[:7]] == [8, 8, 8, 8, 8, 8, 2], "the last partial accumulation is flushed"
    assert reports[-1].epoch == 4
    assert sum(r.samples for r in reports) == 4 * SAMPLES


@pytest.mark.parametrize("stop", [1, 3, 6, 7, 8, 14, 20, 27])
def test_stopped_anywhere_and_resumed_it_ends_with_the_same_weights(tmp_path, whole, stop):
    every = {"checkpoints": {"every_steps": 3, "keep_last": 2}}
    run(tiny_training(tmp_path, **every), stop_after=stop)
    resumed = tiny_training(tmp_path, **every)
    reports = run(resumed)
    assert reports[0].step == (stop - 1) // 3 * 3 + 1, "a step's checkpoint is written once the next is asked for"
    assert weights_hash(resumed.step.model) == whole[0]


def test_first_steps_are_not_warm(whole):
    _, reports = whole
    assert [r.step for r in reports if not r.is_warm][:4] == [1, 2, 8, 9], "start, thaw of the encoder"


def test_steps_whose_memory_is_measured_are_not_warm(tmp_path, monkeypatch):
    training = tiny_training(tmp_path)
    monkeypatch.setattr(training, "_heaviest_steps", lambda: {3})
    assert [r.step for r in run(training) if not r.is_warm][:3] == [1, 2, 4]


def test_frozen_encoder_does_not_move_and_then_does(tmp_path):
    training = tiny_training(tmp_path)
    start = [p.detach().clone() for p in training.step.model.encoder.parameters()]
    steps = training.steps()
    for _ in range(7):
        next(steps)
    assert all(torch.equal(a, b) for a, b in zip(start, training.step.model.encoder.parameters(), strict=True))
    next(steps)
    assert not all(torch.equal(a, b) for a, b in zip(start, training.step.model.encoder.parameters(), strict=True))


@pytest.mark.parametrize(
    ("workload", "sections"),
    [
        ("causal-lm", {"model": {"name": "tiny-gpt2"}}),  # its output layer is its embedding
        ("causal-lm", {"model": {"name": "tiny-llama"}, "adapter": {"kind": "lora"}}),
        ("pairs", {"model": {"name": "tiny-bert"}}),
    ],
)
def test_a_freeze_schedule_that_leaves_nothing_to_train_is_refused(workload, sections):
    content = {"name": "f", "workload": workload, "schedule": {"frozen_encoder_epochs": 1},
               "batch": {"sequence_length": 32}, **sections}  # fmt: skip
    step = build_step(settings_from(content), generic_workload(workload), "cpu", pretrained=False)
    with pytest.raises(InvalidSettings, match=r"frozen_encoder_epochs: needs a head"):
        step.freeze_encoder(True)


def test_evaluation_changes_nothing(tmp_path, whole):
    training = tiny_training(tmp_path)
    training.evaluate = lambda step, number: {
        "noise": float(torch.rand(()) + step.model(torch.zeros(2, 8, dtype=torch.long)).sum())
    }
    run(training)
    assert [number for number, _ in training.evaluations] == [7, 14, 21, 28]
    assert weights_hash(training.step.model) == whole[0]


@pytest.mark.parametrize(
    ("schedule", "steps"), [({"epochs": 9, "max_steps": 5}, 5), ({"epochs": 0.5}, 4), ({"epochs": 1.5}, 11)]
)
def test_length(tmp_path, schedule, steps):
    assert len(run(tiny_training(tmp_path, schedule=schedule))) == steps


def test_interrupt_saves_and_resumes_exactly(tmp_path, whole):
    training = tiny_training(tmp_path)

    def interrupt_fifth():
        for report in training.steps():
            if report.step == 5:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as stop:
        interrupt_fifth()
    assert stop.value.step == 5
    assert stop.value.checkpoint.name == "step-00000005"
    resumed = tiny_training(tmp_path)
    assert run(resumed)[0].step == 6
    assert weights_hash(resumed.step.model) == whole[0]


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def interrupt_twice():
        for _ in tiny_training(tmp_path).steps():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_checkpoint_is_skipped(tmp_path_factory, data):
    """Any byte of any file of the newest checkpoint flipped, or the file cut anywhere: the one before is taken."""
    folder = tmp_path_factory.mktemp("torn")
    run(tiny_training(folder, schedule={"max_steps": 6}))
    newest = checkpoint_files.checkpoints(folder)[-1]
    file = data.draw(st.sampled_from(sorted(newest.iterdir())))
    content = bytearray(file.read_bytes())
    position = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(content))
    if data.draw(st.booleans()):
        content = content[:position]
    else:
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(bytes(content))
    step = tiny_training(folder, schedule={"max_steps": 6}).step
    with pytest.warns(checkpoint.DamagedCheckpointWarning, match=newest.name):
        assert checkpoint.load_newest(folder, step)["step"] == 3
    with pytest.raises(CheckpointDamaged):
        checkpoint.load_checkpoint(newest, step)


@pytest.mark.parametrize(
    "crash_after", [checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.GENERATORS, checkpoint_files.MANIFEST]
)
def test_a_crash_inside_a_save_leaves_the_one_before(tmp_path, crash_after):
    training = tiny_training(tmp_path, schedule={"max_steps": 3})
    run(training)

    def crash(name):
        if name == crash_after:
            raise MemoryError("power cut")

    with pytest.raises(MemoryError):
        checkpoint.save_checkpoint(tmp_path, training.step, {"step": 9}, after_file=crash)
    assert [p.name for p in checkpoint_files.checkpoints(tmp_path)] == ["step-00000003"]
    assert checkpoint.load_newest(tmp_path, training.step)["step"] == 3
    checkpoint_files.prune_checkpoints(tmp_path, 2, tmp_path / "step-00000003")
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000003"]


def test_other_settings_are_refused(tmp_path):
    run(tiny_training(tmp_path, schedule={"max_steps": 3}))
    other = tiny_training(tmp_path, schedule={"max_steps": 4})
    with pytest.raises(InvalidSettings, match=other.settings.resumable_hash):
        run(other)


def test_generators_and_optimizer_come_back_bit_for_bit(tmp_path):
    training = tiny_training(tmp_path, schedule={"max_steps": 3, "epochs": 4, "frozen_encoder_epochs": 1})
    run(training)
    values = random.random(), np.random.rand(), torch.rand(1).item()
    fresh = tiny_training(tmp_path, schedule={"max_steps": 3, "epochs": 4, "frozen_encoder_epochs": 1})
    checkpoint.load_newest(tmp_path, fresh.step)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == values
    states, others = (s.optimizer.state_dict()["state"] for s in (training.step, fresh.step))
    assert states.keys() == others.keys()  # each parameter's; their order says nothing
    for index, one in states.items():
        assert all(torch.equal(one[name], others[index][name]) for name in one)
    assert len(fresh.step.optimizer.state) == 2, "the frozen encoder has no state"


def test_old_checkpoints_are_pruned(tmp_path):
    run(tiny_training(tmp_path, checkpoints={"every_steps": 1, "keep_last": 3}, schedule={"max_steps": 6}))
    assert [p.name for p in checkpoint_files.checkpoints(tmp_path)] == [f"step-0000000{n}" for n in (4, 5, 6)]


def test_a_damaged_checkpoint_of_a_later_step_does_not_crowd_out_the_good_ones(tmp_path):
    """Of those that `keep_last` keeps, it would stay the newest until the run reaches its step again."""
    every = {"checkpoints": {"every_steps": 3, "keep_last": 1}}
    run(tiny_training(tmp_path, **every), stop_after=10)
    (newest,) = checkpoint_files.checkpoints(tmp_path)
    (newest / checkpoint.MODEL).write_bytes(b"cut")
    with pytest.warns(checkpoint.DamagedCheckpointWarning):
        run(tiny_training(tmp_path, **every), stop_after=7)
    assert newest.name == "step-00000009"
    assert [path.name for path in checkpoint_files.checkpoints(tmp_path)] == ["step-00000006"]
    assert run(tiny_training(tmp_path, **every))[0].step == 7


@pytest.mark.parametrize("stop", [4, 8])
def test_adapters_under_a_freeze_schedule_resume_exactly(tmp_path, stop):
    """Seven steps of the head alone, then adapters and head; until 2026-11-22 a checkpoint of the first seven was
    taken for damaged, because frozen adapters were left out of it."""
    sections = {
        "adapter": {"kind": "lora"}, "schedule": {"epochs": 2, "frozen_encoder_epochs": 1},
        "checkpoints": {"every_steps": 3, "keep_last": 2},
    }  # fmt: skip
    expected = text_training(tmp_path / "whole", "bucketed", 0, **sections)
    run(expected)
    run(text_training(tmp_path / "stopped", "bucketed", 0, **sections), stop_after=stop)
    resumed = text_training(tmp_path / "stopped", "bucketed", 0, **sections)
    assert run(resumed)[0].step == (stop - 1) // 3 * 3 + 1
    assert weights_hash(resumed.step.model) == weights_hash(expected.step.model)


@given(st.integers(1, 50), st.floats(0.1, 5), st.integers(0, 60), st.sampled_from(["linear", "cosine", "constant"]))
def test_learning_rate_stays_in_range(per_epoch, epochs, warmup, decay):
    schedule = Schedule(ScheduleSettings(epochs=epochs, warmup_steps=warmup, decay=decay), per_epoch)
    factors = [schedule.factor(step) for step in range(schedule.total_steps)]
    assert all(0 < f <= 1 for f in factors)
    climbing = factors[: min(warmup, len(factors))]
    assert climbing == sorted(climbing)
    falling = factors[min(warmup, len(factors)) :]
    assert falling == sorted(falling, reverse=True)


@given(st.integers(1, 30), st.integers(1, 4), st.sampled_from([0.25, 0.5, 1, 2]))
def test_evaluations_are_due_once_an_interval(per_epoch, epochs, every):
    schedule = Schedule(ScheduleSettings(epochs=epochs), per_epoch)
    due = sum(schedule.evaluates_after(step, every) for step in range(schedule.total_steps))
    assert due == min(int(epochs / every + 1e-9), due if every * per_epoch < 1 else int(epochs / every + 1e-9))


def test_measured_peak_of_a_linear_step_is_what_paper_says(tmp_path):
    """Weights W (256 x 256) with two moments, input and output (64 x 256), and W's gradient; scalars are below 4 KiB."""

    class Linear(TinyWorkload):
        def build_model(self, settings, *, pretrained):
            return torch.nn.Linear(256, 256, bias=False)

        def loss(self, model, batch):
            return LossSum(model(batch["x"]).sum())

        def count(self, batch):
            return 1.0

        def encoder(self, model):
            return None

    step = build_step(
        settings_from({"name": "l", "workload": "w", "model": {"name": "m"}}), Linear(), "cpu", pretrained=False
    )
    batch = {"x": torch.rand(64, 256)}
    step.run([batch], StepObserver())
    _, peak = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    weight, inputs = 4 * 256 * 256, 4 * 64 * 256
    least = 3 * weight + inputs + weight  # alive before, and the gradient; the output has died by then
    assert least <= peak <= least + inputs + 4096


def test_measured_step_is_the_mean_of_the_warm_ones(whole):
    reports = whole[1]
    warm = [r.step_seconds for r in reports if r.is_warm]
    assert measured_step(reports).seconds == pytest.approx(sum(warm) / len(warm))


def test_details_are_means_over_micro_steps(tmp_path):
    training = tiny_training(tmp_path)
    training.step.workload.loss = lambda model, batch: LossSum(
        model(batch["ids"]).sum(), {"size": torch.tensor(float(len(batch["labels"])))}
    )
    batches = [{"ids": torch.zeros(n, 8, dtype=torch.long), "labels": torch.zeros(n, dtype=torch.long)} for n in (2, 4)]
    assert training.step.run(batches, StepObserver()).details["size"].item() == 3


def test_a_run_with_every_checkpoint_gone_starts_again(tmp_path, whole):
    run(tiny_training(tmp_path), stop_after=5)
    shutil.rmtree(tmp_path)
    again = tiny_training(tmp_path)
    assert run(again)[0].step == 1
    assert weights_hash(again.step.model) == whole[0]


def test_evidence_is_recorded(tmp_path):
    training = tiny_training(tmp_path)
    reports = run(training)
    evidence = training.measurement("cpu", reports, {}).evidence
    assert evidence.padded_tokens_per_step == sum(r.padded_tokens for r in reports) / len(reports)
    assert evidence.compiled_graphs == 0
    assert evidence.clock_share is None
    assert 0 <= evidence.other_processes_share <= 1
    assert 0 <= evidence.stolen_share <= 1


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", ["adamw-8bit", "paged-adamw-8bit", "lion"])
def test_optimizers_of_bitsandbytes_resume_exactly(tmp_path, name):
    """Until 2026-11-22 none in 8 bits could be saved: their parameters share tables, which safetensors refuses."""
    pytest.importorskip("bitsandbytes")
    sections = {
        "optimizer": {"name": name, "learning_rate": 1e-3}, "checkpoints": {"every_steps": 3, "keep_last": 2},
    }  # fmt: skip
    expected = text_training(tmp_path / "whole", "bucketed", 0, **sections)
    run(expected)
    run(text_training(tmp_path / "stopped", "bucketed", 0, **sections), stop_after=8)
    resumed = text_training(tmp_path / "stopped", "bucketed", 0, **sections)
    assert run(resumed)[0].step == 7
    assert weights_hash(resumed.step.model) == weights_hash(expected.step.model)


@pytest.mark.parametrize("kind", ["background", "workers"])
def test_who_saves_and_who_collates_changes_no_weight(tmp_path, whole, kind):
    training = training_of(tmp_path, kind)
    reports = run(training)
    assert weights_hash(training.step.model) == whole[0]
    assert [r.loss for r in reports] == [r.loss for r in whole[1]]


@pytest.mark.parametrize(("first", "then"), [("plain", "workers"), ("workers", "background"), ("background", "plain")])
def test_a_run_goes_on_with_other_workers_and_another_way_to_save(tmp_path, whole, first, then):
    before = training_of(tmp_path, first)
    run(before, stop_after=10)
    before.saver.settle()
    after = training_of(tmp_path, then)
    assert run(after)[0].step == 10
    assert weights_hash(after.step.model) == whole[0]
