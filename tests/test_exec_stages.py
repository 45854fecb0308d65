"""Stages of a loop, and work between the turns of short ones."""

import pytest
from tests.exec_runs import forecast

STAGES = """
import torch
from torch import nn
backbone, head = nn.Linear(512, 4096).cuda(), nn.Linear(4096, 8).cuda()
model = nn.Sequential(backbone, nn.ReLU(), head)
backbone.requires_grad_(False)
opt = torch.optim.AdamW(head.parameters())
THAW = 4
for epoch in range(10):
    {change}
    for batch in range(20):
        model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
        opt.step()
        opt.zero_grad()
    with torch.no_grad():
        [model(torch.randn(4096, 512, device="cuda")) for turn in range(30)]

"""


def test_a_backbone_that_thaws_in_a_later_epoch_is_a_stage_of_its_own(tmp_path):
    thaw = ("if epoch == THAW:", "    backbone.requires_grad_(True)", "    opt = torch.optim.AdamW(model.parameters())")
    change = "\n    ".join(thaw)
    document, _ = forecast(tmp_path, STAGES.format(change=change), head="")
    frozen, _ = forecast(tmp_path, STAGES.format(change="pass"), head="")
    (first,), (evaluation, *_) = document.earlier_loops, document.rests
    assert (first.steps, first.rests[0].times, evaluation.times) == (80, 4, 6)
    assert first.step_seconds == pytest.approx(frozen.step.seconds.expected, rel=0.01)
    assert document.step.seconds.expected > 1.5 * first.step_seconds
    assert document.run.total_steps == frozen.run.total_steps == 200
    assert document.memory.peak_allocated_bytes > frozen.memory.peak_allocated_bytes + 3 * 512 * 4096 * 4
    (text,) = (each for each in document.warnings if "80 steps" in each)
    assert text.startswith("The program trains in 2 stages: ")
    assert "until turn 5 of the loop at" in text


def test_stages_whose_steps_are_the_same_are_one(tmp_path):
    change = "if epoch >= THAW:\n        opt.param_groups[0]['lr'] = 0.1"
    document, _ = forecast(tmp_path, STAGES.format(change=change), head="")
    assert document.earlier_loops == []
    assert document.run.total_steps == 200
    assert [rest.times for rest in document.rests if not rest.is_last] == [10]


def test_work_between_short_loops_is_no_part_of_their_steps(tmp_path):
    """Two updates on each batch of rollouts: steps that hold the rollouts are not those that repeat."""
    document, run = forecast(
        tmp_path,
        """
        for iteration in range(50):
            with torch.no_grad():
                for turn in range(60):
                    action = model(torch.randn(1, 64, device="cuda")).argmax().item()
            for epoch in range(2):
                update()
            if (iteration + 1) % 10 == 0:
                torch.save(model.state_dict(), "model.pt")
        """,
    )
    assert (document.run.total_steps, document.run.checkpoints_written) == (100, 5)
    rollouts = next(rest for rest in document.rests if not rest.is_branch)
    assert rollouts.times == 50
    assert rollouts.seconds > 5 * document.step.seconds.expected
    assert len(run.watcher.spans) == 3


def test_turns_before_the_first_step_have_no_part_in_the_run(tmp_path):
    """Turns that fill a memory make none."""
    document, _ = forecast(
        tmp_path,
        """
        memory = []
        for turn in range(1000):
            memory.append(model(torch.randn(1, 64, device="cuda")).argmax().item())
            if turn >= 100:
                update()
        """,
    )
    assert (document.run.total_steps, document.earlier_loops) == (900, [])


def test_averages_of_normalisation_that_are_made_anew_are_one_pass_over_the_training_rows(tmp_path, monkeypatch):
    """A pass that is cut, as it takes long here, and what follows it is reached."""
    monkeypatch.setattr("forerun.virtual.cuda.loop_rests.MOST_SECONDS", 0.1)
    body = """
    rows = torch.utils.data.TensorDataset(torch.randn(64_000, 64))
    loader = torch.utils.data.DataLoader(rows, batch_size=64)
    for epoch in range(3):
        for (batch,) in loader:
            update()
    with torch.no_grad():
        for (batch,) in loader:
            model(batch.cuda())
    torch.save(model.state_dict(), "model.pt")
    """
    document, run = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written) == (3000, 1)
    (last,) = (rest for rest in run.watcher.between.rests if rest.is_last)
    assert any(each.share < 0.5 and last.begin <= each.begin for each in run.watcher.between.cuts)


def test_a_default_device_that_is_the_card_leaves_copies_on_the_host(tmp_path):
    body = """
    torch.set_default_device("cuda")
    for step in range(20):
        update()
        with torch.no_grad():
            assert model(torch.randn(200_000, 64)).cpu().numpy().shape == (200_000, 8)
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 20


def test_a_model_that_each_turn_of_the_only_loop_saves_counts_as_often(tmp_path):
    """Epochs of one batch, as a graph's, whose best model is kept: the score is not known, so at most so often."""
    body = """
    best = 0
    for epoch in range(40):
        update()
        score = model(torch.randn(8, 64, device="cuda")).mean().item()
        if score > best:
            best = score
            torch.save(model.state_dict(), "best.pt")
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.checkpoints_written == 40
    assert document.run.checkpoint_bytes < 1.1 * 4 * (64 * 256 + 256 + 256 * 8 + 8) + 4096


def test_a_stage_of_the_last_turn_ends_as_any_loop(tmp_path):
    """What only that turn does is no part of the others, and nothing behind it leaves the process."""
    body = """
    import os
    for epoch in range(10):
        for batch in range(50):
            update()
        if epoch == 9:
            scores = [model(torch.randn(4096, 64, device="cuda")).sum().item() for turn in range(200)]
    torch.save(model.state_dict(), "model.pt")
    os.system("true")
    """
    document, run = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written, document.earlier_loops) == (500, 1, [])
    assert document.run.phases.evaluation_seconds < 10 * document.step.seconds.expected
    assert run.watcher.between.end_of_run.ended_by


GROWING = """
    from tqdm import tqdm, trange

    def train(rows):
        for batch in range(20):
            update(rows)

    schedule = [(16, 2), (64, 2), (1024, 2)]
    sizes = [16] * 4 + [64] * 4 + [1024] * 4
"""


@pytest.mark.parametrize(
    ("loop", "stages"),
    [
        ("bar = trange(12)\n    for epoch in bar:\n        rows = 16 if epoch < 4 else 64 if epoch < 8 else 1024", 3),
        ("for epoch in tqdm(range(12)):\n        rows = 16 if epoch < 4 else 64 if epoch < 8 else 1024", 3),
        ("for epoch, rows in enumerate(sizes):\n        pass", 3),
        ("for epoch, rows in tqdm(enumerate(sizes, 1)):\n        pass", 3),
        ("for rows in sizes:\n        pass", 3),
        ("for seed in range(3):\n        rows = 1024", 1),
        ("for epoch, (rows, count) in enumerate(schedule):\n        pass", 3),
    ],
)
def test_stages_of_loops_over_lists_and_with_enumerate(tmp_path, loop, stages):
    document, _ = forecast(tmp_path, GROWING + f"\n    {loop}\n        train(rows)\n")
    shorter, _ = forecast(tmp_path, GROWING + "\n    train(1024)\n")
    turns = 12 if stages == 3 and "schedule" not in loop else 3
    assert (document.run.total_steps, len(document.earlier_loops)) == (20 * turns, stages - 1)
    assert document.memory.peak_allocated_bytes == pytest.approx(shorter.memory.peak_allocated_bytes, rel=0.02)
    assert document.step.seconds.expected == pytest.approx(shorter.step.seconds.expected, rel=0.02)


def test_batches_between_the_stages_of_a_loop_over_them_are_not_made(tmp_path):
    body = """
    rows = torch.utils.data.TensorDataset(torch.randn(6_400, 64))
    loader = torch.utils.data.DataLoader(rows, batch_size=64)
    for index, (batch,) in enumerate(loader):
        if index >= 60:
            more = torch.randn(4096, 64, device="cuda")
            model(more).square().mean().backward()
        update(64)
    torch.save(model.state_dict(), "model.pt")
    """
    document, _ = forecast(tmp_path, body)
    assert (document.run.total_steps, document.run.checkpoints_written) == (100, 1)
    assert [each.steps for each in document.earlier_loops] == [60]
    assert document.step.seconds.expected > 1.2 * document.earlier_loops[0].step_seconds


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for rate, epochs in [(1e-2, 10), (1e-3, 5), (1e-4, 2)]:\n        for _ in range(epochs):\n            update()\n", 17),
        (
            "for phase in [{'count': 10, 'rows': 8}, {'count': 20, 'rows': 64}]:\n"
            "        for _ in range(phase['count']):\n            update(phase['rows'])\n", 30,
        ),
        (
            "from types import SimpleNamespace as Phase\n"
            "    for phase in [Phase(count=10, rows=8), Phase(count=20, rows=64)]:\n        done = 0\n"
            "        while done < phase.count:\n            update(phase.rows)\n            done += 1\n", 30,
        ),
        (
            "phases = {'short': dict(count=10, rows=8), 'long': dict(count=40, rows=64)}\n"
            "    for name, phase in phases.items():\n"
            "        for _ in range(phase['count']):\n            update(phase['rows'])\n", 50,
        ),
    ],
)  # fmt: skip
def test_each_phase_has_its_own_number_of_steps(tmp_path, loop, steps):
    document, _ = forecast(tmp_path, f"    {loop}")
    assert document.run.total_steps == steps


def test_what_a_function_that_trains_returns_is_there_for_the_next(tmp_path):
    """A teacher, what it says of other rows, and its student."""
    document, _ = forecast(
        tmp_path,
        """
        def fit(width, rows, epochs):
            network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 8)).cuda()
            optimizer = torch.optim.SGD(network.parameters(), 0.1)
            for _ in range(epochs):
                for part in rows.split(32):
                    network(part.cuda()).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
            return network

        teacher = fit(4096, torch.randn(320, 64), 4)
        with torch.no_grad():
            said = torch.cat([teacher(torch.randn(4096, 64, device="cuda")).cpu() for _ in range(200)])
        student = fit(256, torch.randn(640, 64), 3)
        torch.save(student.state_dict(), "student.pt")
        """,
    )
    assert [loop.steps for loop in document.earlier_loops] == [40]
    assert document.run.total_steps == 40 + 60
    assert document.run.checkpoints_written == 1
    assert document.run.phases.startup_seconds > 200 * 2 * 4096 * 4096 * (64 + 8) / 35.6e12


@pytest.mark.medium
def test_two_trainers_have_their_own_evaluations_and_checkpoints(tmp_path):
    document, _ = forecast(
        tmp_path,
        """
        from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
        rows = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": row % 2} for row in range(64)]
        bert = BertForSequenceClassification(
            BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=99)
        )
        def arguments(epochs):
            return TrainingArguments(
                "out", num_train_epochs=epochs, per_device_train_batch_size=8, per_device_eval_batch_size=8,
                eval_strategy="epoch", save_strategy="epoch", report_to=[],
            )
        Trainer(bert, arguments(2), train_dataset=rows, eval_dataset=rows).train()
        second = Trainer(bert, arguments(3), train_dataset=rows, eval_dataset=rows[:32])
        second.train()
        """,
        head="import torch\n",
    )
    first = document.earlier_loops[0]
    assert (first.steps, document.run.total_steps) == (2 * 8, 2 * 8 + 3 * 8)
    assert (first.checkpoints, document.run.checkpoints_written) == (2, 5)
    batch = first.evaluation_seconds / (2 * 8)
    assert document.run.phases.evaluation_seconds == pytest.approx(batch * (2 * 8 + 3 * 4), rel=0.1)
