"""L-BFGS evaluates as often as it would in fact, with and without a line search."""

import pytest
import torch
from tests.exec_runs import forecast

import forerun


@pytest.mark.parametrize(
    ("search", "iterations", "evaluations"),
    [(None, 20, 20), (None, 8, 8), ("strong_wolfe", 4, 5), ("strong_wolfe", 20, 21)],
)
def test_all_iterations_are_made(search, iterations, evaluations):
    calls = []
    with forerun.virtual_cuda("a100-40gb") as gpu:
        weights = torch.randn(64, 8, device="cuda", requires_grad=True)
        optimizer = torch.optim.LBFGS([weights], max_iter=iterations, line_search_fn=search)

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = (weights - 3).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert (optimizer.param_groups[0]["tolerance_grad"], optimizer.param_groups[0]["tolerance_change"]) == (
            1e-7,
            1e-9,
        )
        assert len(optimizer.state[weights]["old_dirs"]) == iterations - 1
    assert len(calls) == evaluations
    assert any("line search" in line for line in gpu.assumed) == (search is not None)


def test_a_real_search_needs_about_as_many():
    """Of a function that is no parabola, on the host: no fewer than one for each iteration, no more than `max_eval`."""
    torch.manual_seed(0)
    weights, calls = torch.randn(64, requires_grad=True), []
    optimizer = torch.optim.LBFGS([weights], max_iter=8, line_search_fn="strong_wolfe")

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = (weights.square() + torch.sin(3 * weights)).sum() + weights.sum().square()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert 9 <= len(calls) <= 11


def test_one_call_that_is_the_whole_training_has_a_step_for_each_iteration(tmp_path):
    body = """
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50_000, max_eval=50_000, history_size=50,
                                  line_search_fn="strong_wolfe")
    rows = torch.randn(32, 64, device="cuda")

    def closure():
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.save(model.state_dict(), "model.pt")
    """
    document, run = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written) == (50_000, 1)
    assert len(run.watcher.spans) <= 5
    assert document.memory.peak_allocated_bytes > 2 * 50 * 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert {finding.kind for finding in document.findings} <= {"fp32-product"}
    assert any("it may converge before" in text for text in document.warnings)
