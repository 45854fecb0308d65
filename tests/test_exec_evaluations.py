"""Evaluations of a script between its steps: how often they are in its run, and what a long one costs here."""

import pytest
from tests.exec_runs import HEAD, forecast

from forerun.virtual.cuda import loop_rests


def test_evaluation_after_each_epoch_is_in_the_run(tmp_path):
    """The same loop with and without evaluation: the difference is what is evaluated, times the epochs."""
    plain = """
    def train():
        for batch in range(50):
            update()
    for epoch in range(7):
        train()
    """
    evaluated = (
        plain
        + """
        with torch.no_grad():
            for batch in range(9):
                accuracy = (model(torch.randn(4096, 64, device="cuda")).argmax(-1) == 0).float().mean().item()
        torch.save(model.state_dict(), "best.pt")
    """
    )
    without, _ = forecast(tmp_path, plain)
    document, _ = forecast(tmp_path, evaluated)
    assert document.run.total_steps == without.run.total_steps == 350
    assert document.step.seconds.expected == pytest.approx(without.step.seconds.expected, rel=0.02)
    assert without.run.phases.evaluation_seconds < 0.02 * without.run.phases.training_seconds
    (rest,) = document.rests
    assert (rest.line, rest.times) == (f"train.py:{len(HEAD.splitlines()) + 3}", 7)
    assert document.run.phases.evaluation_seconds == pytest.approx(7 * rest.seconds)
    assert rest.seconds > 9 * 4096 / 32 / 50 * without.step.phases.forward_seconds  # far more rows than a step has
    assert document.run.checkpoints_written == 7
    assert document.run.checkpoint_bytes == pytest.approx((64 * 256 + 256 + 256 * 8 + 8) * 4, rel=0.5)
    assert "evaluation and generation between steps" not in document.not_modelled
    assert not (tmp_path / "best.pt").exists()


CHECKPOINTED = """
rows = torch.utils.data.TensorDataset(torch.zeros(320, 64))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
for epoch in range(7):
    for batch in range(50):
        update()
    with torch.no_grad():
        for (batch,) in loader:
            for view in range(20):
                model(batch.cuda())
    torch.save(model.state_dict(), "best.pt")
"""


def test_the_program_goes_on_behind_a_long_evaluation(tmp_path, monkeypatch):
    """It is cut after one of its 40 batches here, and the checkpoint behind it is written."""
    whole, _ = forecast(tmp_path, CHECKPOINTED)
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests.RestWatch, "is_endless", False)
    cut, _ = forecast(tmp_path, CHECKPOINTED)
    assert cut.run.checkpoints_written == whole.run.checkpoints_written == 7
    assert cut.run.phases.evaluation_seconds == pytest.approx(whole.run.phases.evaluation_seconds, rel=0.1)
    assert cut.script.steps_seen == whole.script.steps_seen


@pytest.mark.parametrize("kind", ["each pass", "branch"])
def test_where_a_long_evaluation_without_a_loader_ended_the_program_is_told(tmp_path, monkeypatch, kind):
    evaluated = """
    for epoch in range(7):
        for batch in range(50):
            update()
            if batch % 20 == 19 and KIND:
                evaluate()
        if not KIND:
            evaluate()
    """.replace("KIND", str(kind == "branch"))
    evaluate = "def evaluate():\n    for view in range(20):\n        model(torch.zeros(8, 64, device='cuda'))\n"
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", 0.0)
    document, _ = forecast(
        tmp_path, evaluated, head=f"{HEAD}{evaluate.replace('    model', '    with torch.no_grad(): model')}"
    )
    (text,) = [text for text in document.warnings if "and was ended" in text]
    lines = {text.partition(" does at ")[2].partition(" ")[0], document.rests[-1].line}
    assert len(lines) == 1
