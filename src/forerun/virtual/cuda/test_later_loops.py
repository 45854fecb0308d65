"""Where a script goes on after a training loop was stopped, and what is forecast of several."""

import ast
import linecache

import pytest
from torch.optim import Optimizer

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda import steps
from forerun.virtual.cuda.later_loops import compiled, functions_that_train, names_for, trains, trains_by
from forerun.virtual.cuda.launchers import parse_command


class Stopped(BaseException):
    """Stands for the end of a loop whose steps repeat."""


HEAD = """
did = []
def train(what):
    for step in range(9):
        loss(what).backward()
def once():
    train("once")
"""


def did(script: str, library: str = "") -> list[str]:
    """What a script begins to train when each training is stopped at once."""

    class Loss:
        def __init__(self, what):
            names["did"].append(what)

        def backward(self):
            raise Stopped

    class Trainer(Loss):
        def __init__(self, what):
            self.what = what

        def train(self):
            names["did"].append(self.what)
            raise Stopped

    text = HEAD + script
    linecache.cache["train.py"] = (len(text), None, text.splitlines(keepends=True), "train.py")
    code, following = compiled(text, "train.py")
    names = {"loss": Loss, "Trainer": Trainer, **names_for(following, Stopped, lambda: True)}
    try:
        exec(code, names)
    except Stopped:
        names["did"].append("stopped")
    return names["did"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("train(1); train(2)", [1, 2, "stopped"]),
        ("train(1)\nprint()\nloss(2)", [1, "stopped"]),  # an evaluation, say
        ("train(1)\nif True:\n  with open('/dev/null'):\n    once()", [1, "once", "stopped"]),
        ("for epoch in range(3):\n  train(epoch)\n  loss('critic').backward()", [0, "stopped"]),
        ("for epoch in range(3):\n  train(epoch)\nfor epoch in range(3):\n  train(epoch + 10)", [0, 10, "stopped"]),
        ("def main():\n  train(1)\n  train(2)\nmain()", [1, 2, "stopped"]),
        ("def main():\n  train(1)\nmain()\nmain()", [1, 1, "stopped"]),
        ("class Task:\n  def run(self):\n    train(1)\n    self.more()\n  def more(self):\n    train(2)\nTask().run()",
         [1, 2, "stopped"]),
        ("trainer = Trainer(1)\ntrainer.train()\nother_trainer = Trainer(2)\nother_trainer.train()", [1, 2, "stopped"]),
        ("head = Trainer(1)\nhead.train()\nTrainer(2).train()", [1, 2, "stopped"]),
        ("train(1)\nscaler = StandardScaler().fit(did)\nmodel.train()", [1, "stopped"]),
        ("def batch():\n  train(1)\n  train(2)\nfor row in range(3):\n  batch()", [1, "stopped"]),
        ("def batch():\n  train(1)\n  train(2)\nwhile True:\n  batch()\nonce()", [1, "once", "stopped"]),
        ("class Agent:\n  def learn(self, what):\n    train(what)\nagent = Agent()\nagent.learn(1); agent.learn(2)",
         [1, 2, "stopped"]),
        ("trainer = Trainer(1)\nresult = trainer.train()\ndid.append('saved')", [1, "stopped"]),
        ("try:\n  train(1)\nfinally:\n  did.append('closed')\ntrain(2)", [1, "closed", 2, "stopped"]),
        ("if did:\n  train(1)\nelse:\n  train(2)\ndid.append('evaluated')", [2, "stopped"]),
    ],
)  # fmt: skip
def test_the_script_goes_on_where_more_training_follows(script, expected):
    assert did(script) == expected


@pytest.mark.parametrize(
    ("call", "is_training"),
    [("agent.learn", True), ("learn", True), ("agent.act", False), ("bar.update", False), ("model.train", False)],
)
def test_methods_of_the_scripts_classes_train_where_no_others_have_their_names(call, is_training):
    assert trains_by(call, {"learn", "update", "train"}) is is_training


@pytest.mark.parametrize(
    ("line", "is_training"),
    [
        ("norm = loss_scaler(loss, optimizer, parameters=model.parameters())", True),
        ("self.scaler(total_loss, self.opt)", True),
        ("logger(loss, optimizer)", False),
        ("criterion(loss, targets)", False),
        ("loss_scaler(loss)", False),
    ],
)
def test_what_is_given_a_loss_and_its_optimizer_trains(line, is_training):
    """MAE's and timm's scaler: nothing else in the script says `backward`."""
    assert trains(ast.parse(f"for batch in loader:\n    {line}").body, set()) == is_training


def test_a_loop_that_may_not_end_stops_the_script():
    code, following = compiled("train(1)\ntrain(2)", "train.py")
    assert len(following) == 1

    def train(_):
        raise Stopped

    with pytest.raises(Stopped):
        exec(code, {"train": train, **names_for(following, Stopped, lambda: False)})


def test_lines_of_errors_are_those_of_the_script():
    code, following = compiled("def train(x):\n  x.backward()\n\ntrain(1)\ntrain(2)\n", "train.py")
    with pytest.raises(AttributeError) as error:
        exec(code, names_for(following, Stopped, lambda: True))
    assert [entry.lineno + 1 for entry in error.traceback[-2:]] == [4, 2]


def test_what_must_come_first_stays_first():
    """A docstring, and what is imported from the future, whatever trains below."""
    source = """'''What it is.'''\nfrom __future__ import annotations\nloss.backward()\nloss.backward()\n"""
    code, following = compiled(source, "train.py")
    assert len(following) == 1
    assert code.co_consts[0] == "What it is."


TWICE = """
import torch
body, head = torch.nn.Linear(512, 512).cuda(), torch.nn.Linear(512, 10).cuda()
losses = []
def run(parameters, steps):
    optimizer = torch.optim.AdamW(parameters)
    for step in range(steps):
        loss = head(body(torch.randn(8, 512, device="cuda"))).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return steps
body.requires_grad_(False)
HEAD
body.requires_grad_(True)
AFTER
run([*head.parameters(), *body.parameters()], 50)
print("not reached")
"""


def forecast_of(head, after, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TWICE.replace("HEAD", head).replace("AFTER", after))
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    return forecast, run


@pytest.mark.parametrize("count", [2, 100])
def test_memory_is_that_of_the_largest_loop_and_the_run_is_all_of_them(tmp_path, count):
    """Whether the first loop ends by itself after two steps, or is stopped."""
    forecast, run = forecast_of(f"run(head.parameters(), {count})", "", tmp_path)
    assert (run.exit_code, forecast.run.total_steps) == (0, count + 50)
    assert forecast.parameters.trainable == forecast.parameters.total
    assert forecast.memory.breakdown.optimizer_state_bytes > 8 * 512 * 512
    (earlier,) = forecast.earlier_loops
    assert earlier.steps == count
    if count > 2:  # the second of two makes the optimizer's state
        assert 0 < earlier.step_seconds < forecast.step.seconds.expected
    assert any("trains 2 times" in text for text in forecast.warnings)


@pytest.mark.medium
def test_an_optimizer_where_an_earlier_one_was_is_another_one(tmp_path, monkeypatch):
    """CPython gives the identity of what is gone to what is made next; here to every optimizer."""
    monkeypatch.setattr(steps, "id", lambda each: 0 if isinstance(each, Optimizer) else id(each), raising=False)
    forecast, run = forecast_of("run(head.parameters(), 2)", "", tmp_path)
    assert (run.exit_code, forecast.run.total_steps) == (0, 52)


def test_what_a_stopped_loop_did_not_leave_behind_is_no_fault_of_the_script(tmp_path):
    forecast, run = forecast_of("run(head.parameters(), 100)", "print(losses[99])", tmp_path)
    assert (run.exit_code, forecast.run.total_steps, forecast.earlier_loops) == (0, 100, [])
    assert any("was not reached (IndexError" in text for text in forecast.warnings)


def test_what_a_function_returns_is_there_for_the_next_training(tmp_path):
    forecast, run = forecast_of("count = run(head.parameters(), 100)", "print(count + 1)", tmp_path)
    assert (run.exit_code, forecast.run.total_steps) == (0, 150)
    assert not any("was not reached" in text for text in forecast.warnings)


def test_a_module_goes_on_too(tmp_path, monkeypatch):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "sizes.py").write_text("STEPS = 100")
    body = TWICE.replace("HEAD", "run(head.parameters(), STEPS)").replace("AFTER", "")
    (tmp_path / "pack" / "__main__.py").write_text(f"from .sizes import STEPS\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["python", "-m", "pack"]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.exit_code, forecast.run.total_steps) == (0, 150)


OBJECTS = """
class Runner:
    def fit(self):
        loss.backward()
class Scaler:
    def fit(self):
        return self
runner, scaler = Runner(), Scaler()
self.runner = Runner(1)
scaler = Scaler()
model = pack.Runner()
def main():
    model.fit()
"""


@pytest.mark.parametrize(
    ("call", "is_training"),
    [
        ("Runner(2).fit", True), ("self.runner.fit", True), ("model.fit", True), ("main", True),
        ("scaler.fit", False), ("Scaler().fit", False), ("other.fit", False),
    ],
)  # fmt: skip
def test_methods_of_own_classes_train_though_others_are_called_so(call, is_training):
    assert trains_by(call, functions_that_train(ast.parse(OBJECTS))) == is_training
