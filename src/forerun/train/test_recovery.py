"""Out of memory costs a retry: a run with faults at random places ends with the weights of the run without."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.data.token_data import TokenData, TokenSample
from forerun.errors import OutOfMemory
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.train.loop import Training, seed_everything
from forerun.train.recovery import in_pieces, is_out_of_memory, padded_tokens

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def training(folder, workload="sequence-classification", padding="bucketed", accumulation=1):
    content = {
        "name": "a", "workload": workload, "model": {"name": "tiny-bert", "config": NO_DROPOUT},
        "batch": {"micro_batch_size": 8, "sequence_length": 64, "padding": padding,
                  "gradient_accumulation_steps": accumulation},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "max_gradient_norm": 1.0},
        "schedule": {"epochs": 1, "max_steps": 6},
    }  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    samples = []
    for number in range(48):
        ids = torch.randint(3, 60, (3 + 7 * number % 60,), generator=generator).tolist()
        target = {"sequence-classification": number % 2, "pairs": ids[::-1]}.get(workload, ids)
        samples.append(TokenSample(ids, target))
    seed_everything(0)
    step = build_step(settings_from(content), generic_workload(workload), "cpu", pretrained=False)
    return Training(step, TokenData(step.settings, samples), folder)


class Faulty:
    """A workload that runs out of memory at the calls of `places`, and whenever a batch has more than `room` tokens."""

    def __init__(self, inner, places=(), room=None):
        self.inner, self.places, self.room, self.calls, self.faults = inner, set(places), room, 0, 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def loss(self, model, batch):
        self.calls += 1
        terms = self.inner.loss(model, batch)
        if self.calls in self.places or (self.room is not None and padded_tokens(batch) > self.room):
            self.faults += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (injected)")
        return terms


def weights(run):
    return [p.detach().clone() for p in run.step.model.parameters()]


class Unharmed(tuple):
    """Losses and weights; hypothesis prints its arguments."""

    def __repr__(self):
        return "a run without faults"


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory):
    run = training(tmp_path_factory.mktemp("whole"))
    losses = [report.loss for report in run.steps()]
    return Unharmed((losses, weights(run)))


@pytest.mark.medium
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 6), min_size=1, max_size=3))
def test_random_faults_change_nothing(tmp_path_factory, unharmed, places):
    """Tolerance: fp32 sums over other pieces differ in the last bits, and AdamW divides small gradients by their own
    size, so 2e-4 absolute after 6 updates of 1e-3. Each fault halves what fits, and three leave one sample of eight."""
    run = training(tmp_path_factory.mktemp("faulty"))
    run.step.workload = Faulty(run.step.workload, places)
    reports = list(run.steps())
    assert run.step.workload.faults >= 1
    assert sum(report.out_of_memory for report in reports) == run.step.workload.faults
    assert [r.loss for r in reports] == pytest.approx(unharmed[0], rel=1e-3)
    assert [r.samples for r in reports] == [8] * 6, "the global batch stays"
    for one, other in zip(weights(run), unharmed[1], strict=True):
        assert torch.allclose(one, other, atol=2e-4)


def test_what_did_not_fit_is_cut_ahead_from_then_on(tmp_path, unharmed):
    run = training(tmp_path)
    run.step.workload = Faulty(run.step.workload, room=200)
    reports = list(run.steps())
    assert run.recovery.too_large is not None
    assert run.recovery.too_large > 200
    later = [report.out_of_memory for report in reports[3:]]
    assert sum(later) <= 1, "it has learned what fits"
    assert [r.loss for r in reports] == pytest.approx(unharmed[0], rel=1e-3)
    assert not any(report.is_warm for report in reports if report.out_of_memory)


@pytest.mark.parametrize(("workload", "padding"), [("sequence-classification", "packed"), ("masked-lm", "packed")])
def test_packed_rows_are_cut_too(tmp_path, workload, padding):
    whole = [r.loss for r in training(tmp_path / "whole", workload, padding).steps()]
    run = training(tmp_path / "faulty", workload, padding)
    run.step.workload = Faulty(run.step.workload, room=200)
    assert [r.loss for r in run.steps()] == pytest.approx(whole, rel=1e-3)
    assert run.step.workload.faults > 0


def test_contrast_still_spans_the_step(tmp_path):
    whole = [r.loss for r in training(tmp_path / "whole", "pairs").steps()]
    run = training(tmp_path / "faulty", "pairs")
    workload, calls = run.step.workload, []
    original = workload.loss

    def once(model, batch):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("injected")
        return original(model, batch)

    workload.loss = once
    try:
        losses = [r.loss for r in run.steps()]
    finally:
        del workload.loss
    assert losses == pytest.approx(whole, rel=1e-3)


def test_one_sample_that_does_not_fit_is_said(tmp_path):
    run = training(tmp_path)
    run.step.workload = Faulty(run.step.workload, room=0)
    with pytest.raises(OutOfMemory, match=r"single sample.*activation_checkpointing"):
        list(run.steps())


def test_the_update_is_not_replayed(tmp_path):
    run = training(tmp_path)

    def full():
        raise torch.OutOfMemoryError("injected")

    run.step.optimizer.step = full
    with pytest.raises(OutOfMemory, match="optimizer's update"):
        list(run.steps())


def test_other_errors_pass(tmp_path):
    run = training(tmp_path)
    run.step.workload = Faulty(run.step.workload)

    def wrong():
        raise RuntimeError("shape mismatch")

    run.step.optimizer.step = wrong
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(run.steps())


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("x"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            True,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, is_one):
    assert is_out_of_memory(error) is is_one


def test_scoring_in_pieces_keeps_the_order():
    batch = {"input_ids": torch.arange(10).reshape(5, 2)}

    def score(part):
        if len(part["input_ids"]) > 2:
            raise torch.OutOfMemoryError("injected")
        return part["input_ids"][:, 0]

    assert torch.cat(in_pieces(score, batch)).tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(OutOfMemory, match="single sample"):
        in_pieces(lambda part: (_ for _ in ()).throw(torch.OutOfMemoryError("x")), batch)
