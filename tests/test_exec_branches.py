"""What a script does in some turns of its loops only, and how often the run has it."""

import pytest
from tests.exec_runs import HEAD, forecast

EVALUATES = """
def evaluate(batches=20):
    with torch.no_grad():
        for batch in range(batches):
            model(torch.randn(4096, 64, device="cuda")).sum().item()
"""


@pytest.fixture(scope="module")
def evaluation_seconds(tmp_path_factory):
    """Of one evaluation, where it follows each epoch."""
    body = "for epoch in range(2):\n    for batch in range(9):\n        update()\n    evaluate()\n"
    document, _ = forecast(tmp_path_factory.mktemp("epochs"), body, head=HEAD + EVALUATES)
    return document.rests[0].seconds


@pytest.mark.parametrize(
    ("loop", "times"),
    [
        ("for step in range(1000):\n    if step % 50 == 0:\n        evaluate()\n    update()", 20),
        ("for step in range(1000):\n    update()\n    if (step + 1) % 50 == 0 and step > 10:\n        evaluate()", 20),
        (
            "plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nfor step in range(1000):\n    update()\n"
            "    if (step + 1) % 50 == 0:\n        evaluate()\n        plateau.step(1.0)",
            20,
        ),
        ("for step in range(1000):\n    update()\n    if not (step + 1) % args.every:\n        evaluate()", 20),
        (
            "seen = 0\nfor step in range(1000):\n    update()\n    seen += 32\n    if seen % 1600 == 0:\n        evaluate()",
            20,
        ),
        ("step = 0\nwhile step < 1000:\n    if step % 50 == 0:\n        evaluate()\n    update()\n    step += 1", 20),
        (
            "for epoch in range(12):\n    for batch in range(90):\n        update()\n    if epoch % 3 == 2:\n        evaluate()",
            4,
        ),
        (
            "for epoch in range(12):\n    for batch in range(90):\n        update()\n    if epoch > 8:\n        evaluate()",
            3,
        ),
        (
            "for epoch in range(12):\n    for batch in range(90):\n        update()\n    if epoch == 7:\n        evaluate()",
            1,
        ),
        ("for step in range(1000):\n    update()\n    if step + 1 >= 980:\n        evaluate()", 21),
        ("for step in range(1000):\n    update()\n    if step % 5000 == 4999:\n        evaluate()", None),
        ("for step in range(1000):\n    update()\n    if step % 50 == 49:\n        evaluate()\n        break", None),
    ],
)
def test_what_is_done_in_some_turns_is_in_the_run(tmp_path, evaluation_seconds, loop, times):
    """Evaluation inside of the loop over steps, and after some epochs, before its first turn comes."""
    head = HEAD + EVALUATES + "class args:\n    every = 50\n"
    document, run = forecast(tmp_path, loop + "\n", head=head)
    plain, _ = forecast(tmp_path, loop.replace("evaluate()", "pass") + "\n", head=head)
    rests = [rest for rest in document.rests if rest.is_branch]
    assert document.step.seconds.expected == pytest.approx(plain.step.seconds.expected, rel=0.02)
    assert document.run.total_steps == plain.run.total_steps
    if times is None:
        assert rests == []
    else:
        (rest,) = rests
        assert rest.times == times
        assert rest.seconds == pytest.approx(evaluation_seconds, rel=0.05)
        assert document.run.phases.evaluation_seconds == pytest.approx(times * rest.seconds, rel=0.05)
        assert any(rest.line in text for text in document.warnings)


def test_a_branch_that_trains_or_is_taken_in_each_step_is_a_part_of_steps(tmp_path):
    """Accumulation, a schedule and a line of the log are no additions, whatever their remainders are."""
    head = HEAD + EVALUATES
    accumulated = """
    for batch in range(400):
        loss = model(torch.randn(32, 64, device="cuda")).square().mean() / 4
        loss.backward()
        if (batch + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    """
    document, _ = forecast(tmp_path, accumulated, head=head)
    assert document.run.total_steps == 100
    assert document.rests == []
    often = "for step in range(1000):\n    if step % 2 == 0:\n        evaluate(2)\n    update()\n"
    document, _ = forecast(tmp_path, often, head=head)
    assert [rest for rest in document.rests if rest.is_branch] == []
    assert document.step.seconds.expected > 0


def test_a_checkpoint_every_some_steps_and_what_fails_in_a_forced_branch(tmp_path):
    saves = "for step in range(1000):\n    update()\n    if step % 100 == 99:\n        torch.save(model.state_dict(), f'{step}.pt')\n"
    document, run = forecast(tmp_path, saves)
    assert document.run.checkpoints_written == 10
    assert document.run.checkpoint_bytes == pytest.approx((64 * 256 + 256 + 256 * 8 + 8) * 4, rel=0.5)
    assert not list(tmp_path.glob("*.pt"))
    fails = "late = {}\nfor step in range(1000):\n    update()\n    if step % 100 == 99:\n        print(late['loss'])\n"
    document, run = forecast(tmp_path, fails)
    assert (run.exit_code, document.run.total_steps) == (0, 1000)
    assert "KeyError" in run.failed_rest
    (text,) = [text for text in document.warnings if "in some turns only" in text]
    assert f"({run.failed_branch}) was done once and failed ({run.failed_at}: KeyError" in text
    assert int(run.failed_at.rpartition(":")[2]) == int(run.failed_branch.rpartition(":")[2]) + 1


def test_samples_that_are_saved_are_no_checkpoints(tmp_path):
    body = """
    for step in range(1000):
        update()
        if step % 100 == 99:
            torch.save(model.state_dict(), f"{step}.pt")
        if step % 20 == 19:
            torch.save(torch.zeros(4), f"samples-{step}.pt")
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.checkpoints_written == 10
    checkpoints = 10 * document.run.checkpoint_bytes
    assert document.run.phases.checkpoint_seconds * 1e9 == pytest.approx(checkpoints, rel=0.2)


@pytest.mark.parametrize("total", [None, 500])
def test_evaluation_is_in_the_run_where_its_user_says_how_long_it_is(tmp_path, total):
    """By a file that says nothing of its length, nothing of what comes every so many steps is known."""
    body = "for step in iter(int, 1):\n    update()\n    if step % 50 == 49:\n        evaluate()\n"
    body = "step = 0\n" + body.replace("for step", "for _").replace("    update()", "    step += 1\n    update()")
    document, _ = forecast(tmp_path, body, head=HEAD + EVALUATES, total_steps=total)
    assert (document.run.phases.evaluation_seconds > 0) == (total is not None)
    assert any("evaluation" in text for text in document.not_modelled) == (total is None)


def test_a_while_loop_over_epochs_is_known_from_its_second_turn(tmp_path):
    """And what is saved in some of its turns is not saved in the others, too."""
    document, run = forecast(
        tmp_path,
        """
        epoch = waits = 0
        while epoch < 12 and waits < 3:
            for batch in range(25):
                update()
            if epoch % 4 == 3:
                torch.save(model.state_dict(), "model.pt")
            epoch += 1
        """,
    )
    assert document.run.total_steps == 12 * 25
    assert "at most" in document.script.length_known_from
    assert document.run.checkpoints_written == 3


CRITIC = """
generator = nn.Linear(64, 4096).cuda()
of_generator = torch.optim.Adam(generator.parameters())
for epoch in range(3):
    for i in range(100):
        update()
        if {condition}:
            of_generator.zero_grad()
            generator(torch.randn(512, 64, device="cuda")).sum().backward()
            of_generator.step()
"""


def test_a_branch_that_trains_is_in_the_step_by_its_share(tmp_path):
    """As the generator of a WGAN, after every fifth step of its critic."""
    steps = {}
    for condition in ("i % 5 == 0", "True", "False", "i % 40 == 0"):
        document, _ = forecast(tmp_path, CRITIC.format(condition=condition))
        assert document.run.total_steps == 300
        steps[condition] = document.step.seconds.expected
    often, always, never, seldom = steps.values()
    assert often == pytest.approx(never + (always - never) / 5, rel=0.05)
    assert seldom == pytest.approx(never, rel=0.3)
    (rest,) = [rest for rest in document.rests if rest.is_branch]  # too seldom to be in the step: beside it
    assert rest.times == 3 * 3
    assert rest.training_seconds == pytest.approx(always - never, rel=0.3)
    assert document.run.phases.training_seconds == pytest.approx(300 * seldom + 9 * rest.training_seconds, rel=0.01)


def test_an_outer_optimizer_that_steps_seldom_is_in_memory_and_run(tmp_path):
    """As that of DiLoCo, every 50 steps of the inner one."""
    body = """
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9)
    before = [each.detach().clone() for each in model.parameters()]
    for step in range(300):
        update()
        if (step + 1) % 50 == 0:
            for old, new in zip(before, model.parameters()):
                new.grad = old - new.data
                new.data.copy_(old)
            OUTER
            before = [each.detach().clone() for each in model.parameters()]
    """
    head = HEAD.replace("nn.Linear(64, 256)", "nn.Linear(64, 65536)").replace(
        "nn.Linear(256, 8)", "nn.Linear(65536, 8)"
    )
    document, _ = forecast(tmp_path, body.replace("OUTER", "outer.step()"), head=head)
    without, _ = forecast(tmp_path, body.replace("OUTER", "print()"), head=head)
    weights = (64 + 1 + 8) * 65536 * 4
    assert document.run.total_steps == 300
    assert [(rest.times, rest.is_branch) for rest in document.rests] == [(6, True)]
    assert document.memory.breakdown.optimizer_state_bytes == pytest.approx(3 * weights, rel=0.01)
    assert without.memory.breakdown.optimizer_state_bytes == pytest.approx(2 * weights, rel=0.01)
    assert document.step.seconds.expected == pytest.approx(without.step.seconds.expected, rel=0.02)


@pytest.mark.parametrize(
    ("condition", "times"),
    [("step % 50 == 49 and is_on", 0), ("step % 50 == 49 and step > 100", 4), ("step % 50 == 49", 6)],
)
def test_what_stands_beside_the_remainder_of_a_rare_update_counts(tmp_path, condition, times):
    body = f"""
    average, is_on = None if "is_on" in "{condition}" else torch.optim.swa_utils.AveragedModel(model), False
    for step in range(300):
        update()
        if {condition}:
            average.update_parameters(model)
            optimizer.zero_grad()
    """
    document, _ = forecast(tmp_path, body)
    assert [rest.times for rest in document.rests if rest.is_branch] == [times] * (times > 0)
    assert "failed" not in str(document.warnings)


def test_branches_that_train_are_seen_until_all_come_together(tmp_path):
    """Every second and every third step: six steps hold three and two of them."""
    body = """
    for i in range(300):
        update()
        if i % 2 == 0:
            model(torch.randn(4096, 64, device="cuda")).sum().backward()
        if i % 3 == 0:
            model(torch.randn(8192, 64, device="cuda")).sum().backward()
    """
    document, run = forecast(tmp_path, body)
    assert (document.run.total_steps, document.script.steps_seen) == (300, 8)
    assert len(run.watcher.spans) - run.watcher.warm_from == 6


def test_accumulation_by_a_remainder_is_no_branch_beside_the_steps(tmp_path):
    accumulated = """
    for i in range(400):
        model(torch.randn(64, 64, device="cuda")).mean().backward()
        if i % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
    """
    document, run = forecast(tmp_path, accumulated)
    assert document.run.total_steps == 50
    assert document.script.steps_seen <= 4


LAZY = """
opt = torch.optim.SGD(model.parameters(), 0.1)

def train(rows):
    opt.zero_grad()
    model(rows).square().mean().backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for turn in range(100):\n    train(rows)\n    if turn % 4 == 0:\n        train(rows)", 125),
        ("for epoch in range(3):\n    for n, (batch,) in enumerate(data):\n        train(batch.cuda())\n"
         "        if n % 5 == 0:\n            train(batch.cuda())", 3 * 48),
        ("for n, (batch,) in enumerate(data):\n    model(batch.cuda()).square().mean().backward()\n"
         "    if n % 2 == 1:\n        opt.step()\n        opt.zero_grad()\n    if n % 4 == 3:\n        train(rows)", 30),
        ("for turn in range(100):\n    train(rows)\n    if turn % 4 == 0:\n        other.step()", 100),
    ],
)  # fmt: skip
def test_steps_of_a_branch_are_steps_of_the_run(tmp_path, loop, steps):
    """A penalty every few turns, by the optimizer of the loop's own steps; another one's steps are none."""
    head = HEAD + LAZY + (
        "rows = torch.randn(32, 64, device='cuda')\nother = torch.optim.SGD(nn.Linear(4, 4).cuda().parameters(), 0.1)\n"
        "data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1280, 64)), batch_size=32)\n"
    )  # fmt: skip
    document, _ = forecast(tmp_path, loop + "\n", head=head)
    assert document.run.total_steps == steps
    seconds = document.run.phases.training_seconds
    assert seconds == pytest.approx(steps * document.step.seconds.expected, rel=0.01)


AGENT = """
class Agent:
    def learn(self):
        return update()
agent = Agent()
for frame in range(1, 2001):
    model(torch.randn(1, 64, device="cuda")).argmax(1).item()
    if frame > 200 and frame % 4 == 0:
        agent.learn()
    if frame % 400 == 0:
        evaluate()
"""


def test_a_loop_that_learns_in_some_of_its_turns_has_as_many_steps(tmp_path):
    """The first turns fill a memory, and count for nothing."""
    document, _ = forecast(tmp_path, AGENT, head=HEAD + EVALUATES)
    assert document.run.total_steps == 500
    assert [rest.times for rest in document.rests if rest.is_branch] == [5]
