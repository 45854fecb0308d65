"""Where steps of a program end, whatever it does with its optimizers."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

PROGRAM = """
import torch
from torch import nn

class Around(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1)
    def step(self, closure=None):
        self.inner.step()

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
other = nn.Linear(10, 10).cuda()
kind = KIND
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)]
around = Around(model.parameters())
for step in range(100):
    other(model(torch.randn(32, 64, device="cuda"))).sum().backward()
    if kind == "made anew":
        optimizers = [torch.optim.AdamW(each.parameters()) for each in (model, other)]
    if kind == "nested":
        optimizers = [around]
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""

COMPILED = """
import torch
weight = torch.randn(64, 10, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
loss_of = torch.compile(lambda rows: (rows @ weight).square().mean())
for step in range(100):
    loss_of(torch.randn(32, 64, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ACCUMULATED = """
import torch
model = torch.nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(400):
    model(torch.randn(32 + number, 64, device="cuda")).sum().backward()
    if number % 8 == 7:
        optimizer.step()
        optimizer.zero_grad()
"""
PRIVATE = """
import torch
from torch.func import functional_call, grad, vmap
model = torch.nn.Linear(64, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_of(weights, row):
    return functional_call(model, weights, (row[None],)).square().mean()
of_each = vmap(grad(loss_of), in_dims=(None, 0))
for step in range(100):
    gradients = of_each(dict(model.named_parameters()), torch.randn(32, 64, device="cuda"))
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].detach().mean(0)
    optimizer.step()
"""
ADVERSARIAL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
generator, critic = nn.Sequential(*[nn.Linear(64, 64), nn.ReLU()] * 8).cuda(), nn.Linear(64, 1).cuda()
of_generator, of_critic = (torch.optim.Adam(each.parameters()) for each in (generator, critic))
rows = DataLoader(TensorDataset(torch.zeros(1024, 1)), 128)
examples = DataLoader(TensorDataset(torch.zeros(256, 1)), 32)
step = 0
def evaluate():
    for row in examples:
        with torch.no_grad():
            generator(torch.randn(32768, 64, device="cuda"))
for epoch in range(10):
    for row in rows:
        images = generator(torch.randn(65536, 64, device="cuda"))
        of_critic.zero_grad()
        (critic(torch.randn(65536, 64, device="cuda")) - critic(images.detach())).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(images).mean().backward()
        of_generator.step()
        if step % 20 == 0:
            evaluate()
        step += 1
    EACH_PASS
"""


def run_of(text, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(text)
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.error, run.exit_code) == ("", 0)
    return forecast, run


def test_rows_of_gradients_of_each_are_counted(tmp_path):
    """`vmap` shows a module one row at a time."""
    forecast, run = run_of(PRIVATE, tmp_path)
    assert {span.samples for span in run.watcher.spans} == {32}
    assert forecast.run.total_steps == 100


def test_rows_of_a_compiled_function_are_counted(tmp_path):
    forecast, run = run_of(COMPILED, tmp_path)
    assert [span.samples for span in run.watcher.spans] == [32] * forecast.script.steps_seen


def test_accumulated_rows_of_all_lengths_end_sooner(tmp_path):
    forecast, _ = run_of(ACCUMULATED, tmp_path)
    assert forecast.script.steps_seen == 4


@pytest.mark.parametrize("kind", ["two", "made anew", "nested"])
def test_a_step_is_one_whoever_makes_it(kind, tmp_path):
    forecast, run = run_of(PROGRAM.replace("KIND", repr(kind)), tmp_path)
    assert forecast.script.steps_seen == 3
    assert [span.samples for span in run.watcher.spans] == [32, 32, 32]
    assert forecast.run.total_steps == 100


GROUP_BY_GROUP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
groups = [{"params": [each.weight for each in (model[0], model[2])]}, {"params": [model[0].bias, model[2].bias]}]
optimizer = torch.optim.AdamW(groups)
for step in range(50):
    model(torch.randn(32, 256, device="cuda")).square().mean().backward()
    WAY
    optimizer.zero_grad()
"""
ONE_BY_ONE = """
    every = optimizer.param_groups
    for group in every:
        optimizer.param_groups = [group]
        optimizer.step()
    optimizer.param_groups = every
"""


def test_groups_that_are_stepped_one_by_one_make_one_step(tmp_path):
    """As DeepSpeed's ZeRO-1 and -2 step them: a step with two groups was taken for two, the second without a pass."""
    one, together = (
        run_of(GROUP_BY_GROUP.replace("    WAY", way), tmp_path) for way in (ONE_BY_ONE, "    optimizer.step()")
    )
    for forecast, run in (one, together):
        assert forecast.run.total_steps == 50
        assert {span.samples for span in run.watcher.spans} == {32}
    assert one[0].step.phases.forward_seconds == pytest.approx(together[0].step.phases.forward_seconds)
    assert one[0].step.phases.backward_seconds == pytest.approx(together[0].step.phases.backward_seconds)
    assert one[0].memory.peak_allocated_bytes == together[0].memory.peak_allocated_bytes


def test_a_loop_ends_behind_the_last_optimizer_of_its_turn(tmp_path):
    """What the generator made would stay beside that of the next turn, if the loop ended behind the critic's update."""
    program = ADVERSARIAL.replace("EACH_PASS", "evaluate()")
    forecast, _ = run_of(program, tmp_path)
    once, _ = run_of(program.replace("for epoch in range(10)", "if True"), tmp_path)
    assert forecast.memory.peak_allocated_bytes == once.memory.peak_allocated_bytes
    rest, branch = sorted(forecast.rests, key=lambda each: each.is_branch)
    assert rest.seconds == pytest.approx(branch.seconds, rel=0.1)


def test_batches_of_an_evaluation_in_a_branch_are_not_the_steps(tmp_path):
    """The first step has one of 8 batches beside its own: of 8 batches a pass it made one step a pass."""
    forecast, _ = run_of(ADVERSARIAL.replace("EACH_PASS", "pass"), tmp_path)
    assert (forecast.run.total_steps, forecast.run.steps_per_epoch) == (80, 8)
