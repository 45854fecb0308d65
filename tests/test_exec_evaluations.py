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
    monkeypatch.setattr(loop_rests, "MOST_STEP_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests.RestWatch, "ends_program", lambda _: False)
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
    monkeypatch.setattr(loop_rests, "MOST_STEP_SECONDS", 0.0)
    document, _ = forecast(
        tmp_path, evaluated, head=f"{HEAD}{evaluate.replace('    model', '    with torch.no_grad(): model')}"
    )
    (text,) = [text for text in document.warnings if "and was ended" in text]
    lines = {text.partition(" does at ")[2].partition(" ")[0], document.rests[-1].line}
    assert len(lines) == 1


SAMPLED = """
from torch.utils.data import DataLoader
rows = DataLoader(torch.zeros(64, 64), 8)

@torch.no_grad()
def sample(count=8, turns=40):
    x = torch.randn(count, 64, device="cuda")
    for i in reversed(range(turns)):
        x = x - model(x).sum(1, keepdim=True)
    return x

for epoch in range(6):
    for batch in range(50):
        update()
    EVALUATION
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    "evaluation",
    [
        "sample()",
        "for view in range(5): sample()",
        "for batch in rows: sample(len(batch))",
        "sample(turns=4); sample()",
        "if epoch % 2 == 0: sample()",
        "for turn in range(40):\n        with torch.no_grad(): model(torch.randn(8, 64, device='cuda'))",
    ],
)
def test_a_sampler_that_takes_long_here_counts_by_the_turns_that_ran(tmp_path, monkeypatch, evaluation):
    """Its first turns stand for all, and the checkpoint behind it is written."""
    body = SAMPLED.replace("EVALUATION", evaluation)
    whole, run = forecast(tmp_path, body)
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests, "MOST_STEP_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests.RestWatch, "ends_program", lambda _: False)
    cut, shorter = forecast(tmp_path, body)
    assert len(shorter.session.recorder.trace.ops) < 0.7 * len(run.session.recorder.trace.ops)
    assert cut.run.checkpoints_written == whole.run.checkpoints_written == 6
    assert cut.run.phases.evaluation_seconds == pytest.approx(whole.run.phases.evaluation_seconds, rel=0.15)
    assert cut.step.seconds.expected == pytest.approx(whole.step.seconds.expected, rel=0.02)


def test_a_sampler_in_every_other_step_is_run_in_full(tmp_path, monkeypatch):
    """What warm steps have is in their mean; only the first step's may be ended early."""
    body = SAMPLED.replace("        update()\n", "        update()\n        if batch % 2 == 0: sample()\n")
    body = body.replace("    EVALUATION\n", "")
    whole, _ = forecast(tmp_path, body)
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests, "MOST_STEP_SECONDS", 0.0)
    monkeypatch.setattr(loop_rests.RestWatch, "ends_program", lambda _: False)
    cut, _ = forecast(tmp_path, body)
    assert cut.run.seconds.expected == pytest.approx(whole.run.seconds.expected, rel=0.02)


def test_a_step_that_takes_long_here_is_no_long_evaluation(tmp_path, monkeypatch):
    """What is told every so many steps is followed by a step, which has its own time."""
    body = """
    import time
    for step in range(40):
        began = time.process_time()
        while time.process_time() < began + 0.2:
            pass
        loss = update()
        if step % 10 == 0:
            print(loss.item())
    torch.save(model.state_dict(), "model.pt")
    """
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", 0.1)
    document, _ = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written) == (40, 1)
    assert "and was ended" not in str(document.warnings)


HOOKED = """
class Trainer:
    def __init__(self):
        self.hooks, self.step = [], 0
    def run(self):
        while True:
            update()
            for hook in self.hooks:
                hook(self)
            self.step += 1
            if self.step >= 2000:
                break

best = 0

def after_step(trainer):
    global best
    if trainer.step % 500 == BEGIN:
        with torch.no_grad():
            rows = torch.zeros(4096, 64, device="cuda")
            score = sum((model(rows).argmax(-1) == 1).sum().item() for batch in range(20))
        if score > best:
            best = score
            torch.save(model.state_dict(), "best.pt")

trainer = Trainer()
trainer.hooks.append(after_step)
trainer.run()
"""


@pytest.mark.parametrize("begin", [0, 499])
def test_a_hook_that_evaluates_by_a_counter_is_no_part_of_the_step(tmp_path, begin):
    """minGPT's callbacks: due at once where the counter begins at 0, in no step that is seen where it does not."""
    plain, _ = forecast(tmp_path, "for step in range(2000):\n    update()\n")
    document, _ = forecast(tmp_path, HOOKED.replace("BEGIN", str(begin)))
    assert document.run.total_steps == 2000
    assert document.step.seconds.expected == pytest.approx(plain.step.seconds.expected, rel=0.1)
    (rest,) = document.rests
    assert (rest.times, rest.is_branch) == (4, True)
    assert rest.seconds > 2 * document.step.seconds.expected
    assert document.run.checkpoints_written == 4  # whatever the score is


def test_a_best_that_is_kept_at_any_step_is_told(tmp_path):
    """Nobody can know how often a loss is the lowest so far."""
    body = """
    best = float("inf")
    for step in range(300):
        loss = update()
        if loss.item() < best:
            best = loss.item()
            torch.save(model.state_dict(), "best.pt")
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.checkpoints_written == 300
    assert "train.py:18 keeps the best so far" in str(document.warnings)


FLAGGED = """
def divisible_by(a, b):
    return a % b == 0

step = 0
while step < 700:
    update()
    step += 1
    CONDITION
        for view in range(20):
            model(torch.zeros(4096, 64, device="cuda"))
        torch.save(model.state_dict(), "milestone.pt")
"""


@pytest.mark.parametrize(
    "condition", ["if step != 0 and divisible_by(step, 100):", "is_due = step % 100 == 0; \n    if is_due:"]
)
def test_a_condition_may_be_a_function_or_a_flag(tmp_path, condition):
    document, _ = forecast(tmp_path, FLAGGED.replace("CONDITION", condition))
    assert (document.run.total_steps, document.run.checkpoints_written) == (700, 7)
    assert [(rest.times, rest.is_branch) for rest in document.rests] == [(7, True)]


CRITICS = """
critic = nn.Linear(8, 1).cuda()
second = torch.optim.AdamW(critic.parameters())

def generate():
    second.zero_grad()
    critic(model(torch.randn(4096, 64, device="cuda"))).mean().backward()
    second.step()

for turn in range(200):
    for batch in range(5):
        update()
    generate()
    with torch.no_grad():
        for view in range(VIEWS):
            model(torch.zeros(4096, 64, device="cuda"))
"""


@pytest.mark.parametrize("views", [0, 50])
def test_another_networks_update_behind_an_inner_loop_is_training(tmp_path, views):
    """A generator's, behind those of its critic."""
    document, _ = forecast(tmp_path, CRITICS.replace("VIEWS", str(views)))
    (rest,) = document.rests
    phases, step = document.run.phases, document.step.seconds.expected
    assert (document.run.total_steps, rest.times) == (1000, 200)
    assert 0 < rest.training_seconds <= rest.seconds
    assert phases.training_seconds == pytest.approx(1000 * step + 200 * rest.training_seconds)
    assert phases.evaluation_seconds == pytest.approx(200 * (rest.seconds - rest.training_seconds))
    assert (phases.evaluation_seconds > 0.1 * phases.training_seconds) is (views > 0)


PATIENT = """
best, waits = 0.0, 0
for epoch in range(4):
    for batch in range(500):
        update()
        if (epoch * 500 + batch) % 100 == 99:
            for view in range(20):
                if view > 9:
                    break
                score = model(torch.zeros(4096, 64, device="cuda")).argmax(-1).float().mean().item() - 1
            if score > best:
                best, waits = score, 0
                torch.save(model.state_dict(), "best.pt")
            else:
                waits += 1
                if waits > 5:
                    break
"""


def test_an_evaluation_that_may_end_the_loop_is_in_the_run(tmp_path):
    document, _ = forecast(tmp_path, PATIENT)
    assert (document.run.total_steps, document.run.checkpoints_written) == (2000, 20)
    assert [rest.times for rest in document.rests if rest.is_branch] == [20]


def test_a_checkpoint_at_a_counter_of_zero_is_in_the_run(tmp_path):
    """It is written within a step that is like the next one: saving takes no work of the device."""
    body = "for step in range(2000):\n    update()\n    if step % 500 == 0:\n        torch.save(model.state_dict(), 'x.pt')\n"
    document, _ = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written) == (2000, 4)


def test_what_follows_a_continue_is_done_in_some_turns(tmp_path):
    body = """
    for epoch in range(500):
        update()
        if epoch % 10 != 0:
            continue
        with torch.no_grad():
            for view in range(20):
                model(torch.zeros(4096, 64, device="cuda"))
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 500
    assert [(rest.times, rest.is_branch) for rest in document.rests] == [(50, True)]
