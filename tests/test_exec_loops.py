"""How long a script's whole run is: its own loops, what it does between them, and who calls them."""

import textwrap

import pytest

from forerun.errors import InvalidSettings
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

HEAD = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())

def update(rows=32):
    loss = nn.functional.cross_entropy(model(torch.randn(rows, 64, device="cuda")), torch.arange(rows).cuda() % 8)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""


def forecast(tmp_path, body, ranks=None, head=HEAD, **options):
    """The forecast of a script and its run."""
    path = tmp_path / "train.py"
    path.write_text(head + textwrap.dedent(body))
    command = ["python", str(path)]
    forecasts, run = forecast_program(parse_command(command, ranks), command, [device("rtx-3090")], **options)
    assert run.exit_code == 0, run.error
    return forecasts[0], run


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


def test_what_each_loop_does_counts_as_often_as_it_ends(tmp_path):
    """Rollouts before several epochs over them, as in PPO, and mini-batches that a call returns."""
    document, run = forecast(
        tmp_path,
        """
        for iteration in range(5):
            with torch.no_grad():
                for turn in range(40):
                    action = model(torch.randn(1, 64, device="cuda")).argmax().item()
            for epoch in range(4):
                for rows in torch.randperm(96).split(32):
                    update()
        """,
    )
    assert document.run.total_steps == 5 * 4 * 3
    epochs, rollouts = document.rests
    assert (epochs.times, rollouts.times) == (20, 5)
    assert rollouts.seconds > 5 * document.step.seconds.expected
    assert epochs.seconds < 0.1 * document.step.seconds.expected
    assert len(run.watcher.spans) == 3


def test_a_step_that_is_larger_than_the_steps_before_is_seen_behind_the_loop(tmp_path):
    """Memory of an evaluation that keeps its gradients counts, and so does running out of it."""
    body = """
    for epoch in range(3):
        for batch in range(50):
            update()
        outputs = [model(torch.randn({rows}, 64, device="cuda")) for turn in range(4)]
    """
    small, _ = forecast(tmp_path, body.format(rows=32))
    large, _ = forecast(tmp_path, body.format(rows=65_536))
    kept_bytes = 4 * 65_536 * (64 + 256 + 8) * 4
    assert large.memory.peak_allocated_bytes - small.memory.peak_allocated_bytes > 0.9 * kept_bytes


def test_a_failure_behind_a_loop_that_was_ended_early_is_told_and_loses_nothing(tmp_path):
    document, run = forecast(
        tmp_path,
        """
        losses = []
        for epoch in range(3):
            for batch in range(50):
                losses.append(update().item())
            print(losses[49])
        """,
    )
    assert document.run.total_steps == 150
    assert any("run once and failed here (IndexError" in text for text in document.warnings)
    assert run.failed_rest.startswith("IndexError")


def test_folds_and_searches_are_counted(tmp_path):
    """Optimizers of later folds are others; a comprehension and a search call what trains."""
    pytest.importorskip("optuna")
    document, _ = forecast(
        tmp_path,
        """
        import optuna
        from sklearn.model_selection import KFold

        def fold(rows):
            model = nn.Linear(64, 8).cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            for epoch in range(2):
                for batch in range(10):
                    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            return loss.item()

        def objective(trial):
            folds = KFold(3, shuffle=True, random_state=0)
            return sum([fold(len(train)) for train, _ in folds.split(list(range(60)))])

        optuna.create_study().optimize(objective, n_trials=5)
        """,
    )
    assert document.run.total_steps == 2 * 10 * 3 * 5
    assert document.earlier_loops == []
    assert "optuna's trials" in document.script.length_known_from


def test_two_looks_at_one_batch_are_no_accumulation(tmp_path):
    """SAM's steps have two backward passes from one line, and gradients are cleared between them; the inner update
    stands outside of the loop, in a method."""
    document, _ = forecast(
        tmp_path,
        """
        class Sharpness:
            def step(self):
                optimizer.step()

        sharpness = Sharpness()
        for batch in range(40):
            for look in range(2):
                optimizer.zero_grad(); model(torch.randn(32, 64, device="cuda")).square().mean().backward()
            sharpness.step()
        """,
    )
    assert document.run.total_steps == 40
    assert "accumulation-not-divided" not in [each.kind for each in document.findings]


def test_functions_of_torch_func_see_a_module(tmp_path):
    document, _ = forecast(
        tmp_path,
        """
        from torch.func import functional_call, grad, vmap

        weights = dict(model.named_parameters())

        def loss_of(weights, row):
            return functional_call(model, weights, (row,)).square().mean()

        def adapted(row):
            slopes = grad(loss_of)(weights, row)
            return loss_of({name: each - 0.1 * slopes[name] for name, each in weights.items()}, row)

        for batch in range(20):
            optimizer.zero_grad()
            vmap(adapted)(torch.randn(16, 4, 64, device="cuda")).mean().backward()
            optimizer.step()
        """,
    )
    assert document.run.total_steps == 20
    assert document.parameters.trainable == 64 * 256 + 256 + 256 * 8 + 8


SPAWNS = """
import torch
from torch import distributed, multiprocessing, nn

def work(rank, ranks):
    distributed.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in range(30):
        model(torch.randn(8, 256).to(rank)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    multiprocessing.spawn(work, args=(RANKS,), nprocs=RANKS)
"""


def test_ranks_that_a_script_spawns(tmp_path):
    """The script's own processes are ranks of the job; one of them runs here."""
    counted = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    document, _ = forecast(tmp_path, "", ranks=4, head=counted)
    assert (document.world_size, document.run.total_steps) == (4, 30)
    assert [(each.name, each.ranks) for each in document.collectives][:1] == [("allreduce_", 4)]
    with pytest.raises(InvalidSettings, match=r"it starts 4, and the machine has 1\. .*--nproc-per-node 4"):
        forecast(tmp_path, "", head=SPAWNS.replace("RANKS", "4"))


@pytest.mark.parametrize("options", ["find_unused_parameters=True", "static_graph=True"])
def test_ddp_looks_for_unused_parameters(tmp_path, options):
    """Its reducer pins a map of what was used on the host, copies it to the card and reduces it."""
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    plain, _ = forecast(tmp_path, "", ranks=4, head=script)
    document, _ = forecast(
        tmp_path, "", ranks=4, head=script.replace("device_ids=[rank]", f"device_ids=[rank], {options}")
    )
    reduced, plain_reduced = (
        sum(each.bytes for each in every.collectives if each.name == "allreduce_") for every in (document, plain)
    )
    assert plain_reduced == (256 * 256 + 256) * 4
    assert 0 <= reduced - plain_reduced < 1000
    assert document.run.total_steps == 30
    assert document.memory.peak_allocated_bytes == pytest.approx(plain.memory.peak_allocated_bytes, rel=0.02)


HOOK = """
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
"""
NORM = "nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)))"


def test_a_communication_hook_of_the_program_reduces_in_place_of_ddp(tmp_path):
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()")
    plain, _ = forecast(tmp_path, "", ranks=4, head=script)
    hooked = script.replace("    optimizer =", HOOK + "    optimizer =", 1)
    document, _ = forecast(tmp_path, "", ranks=4, head=hooked)
    (reduced,), (plain_reduced,) = document.collectives, plain.collectives
    assert (reduced.name, reduced.bytes) == ("allreduce_", plain_reduced.bytes // 2)
    with pytest.raises(AssertionError, match="can only be called once"):
        forecast(tmp_path, "", ranks=4, head=script.replace("    optimizer =", 2 * HOOK + "    optimizer =", 1))


def test_batch_norm_over_ranks(tmp_path):
    """Statistics of all ranks are gathered forward and reduced backward, for each channel."""
    script = SPAWNS.replace("RANKS", "torch.cuda.device_count()").replace("nn.Linear(256, 256)", NORM)
    document, _ = forecast(tmp_path, "", ranks=4, head=script)
    gathered = [each.bytes for each in document.collectives if "allgather" in each.name]
    assert gathered in ([(2 * 256 + 1) * 4], [4 * (2 * 256 + 1) * 4])  # mean, deviation and count of each rank
    assert document.parameters.trainable == 256 * 256 + 3 * 256


SHARDS = """
import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("nccl")
model = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256)).to("cuda")
for layer in (*model, model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for batch in range(30):
        model(torch.randn(8, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"weights": weights, "state": state}, checkpoint_id=f"checkpoint-{epoch}")
"""


def test_a_checkpoint_of_several_ranks_is_saved_by_one(tmp_path, monkeypatch):
    """Its part of the weights and of both moments; nobody is there to give the other parts."""
    monkeypatch.chdir(tmp_path)
    document, run = forecast(tmp_path, "", ranks=4, head=SHARDS)
    assert run.failed_rest == ""
    assert document.run.checkpoints_written == 3
    parameters = 2 * 256 * 1024 + 1024 + 256
    assert document.run.checkpoint_bytes == pytest.approx(3 * parameters * 4 / 4, rel=0.01)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_card_that_the_machine_does_not_have(tmp_path):
    """One card: as CUDA refuses it. Two: what is on the second is counted on the first, and listed."""
    body = """
    second = torch.ones(8).to("cuda:1")
    for batch in range(9):
        update()
    """
    with pytest.raises(AssertionError, match="invalid device ordinal"):
        forecast(tmp_path, body)
    document, _ = forecast(tmp_path, body, ranks=2)
    assert "a tensor on cuda:1" in [each.what for each in document.assumed]


def test_data_parallel_is_the_first_cards_share(tmp_path):
    body = """
    wrapped = nn.DataParallel(nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 8)).cuda())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for batch in range(9):
        outputs = wrapped(torch.randn(4096, 64))
        assert outputs.shape == (4096, 8)
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    one, _ = forecast(tmp_path, body)
    two, _ = forecast(tmp_path, body, ranks=2)
    hidden_bytes = 4096 * 4096 * 4
    saved = one.memory.peak_allocated_bytes - two.memory.peak_allocated_bytes
    assert hidden_bytes <= saved <= 2 * hidden_bytes  # of two to three matrices of hidden units each card holds a half
    assert two.step.phases.forward_seconds < 0.7 * one.step.phases.forward_seconds
    assert any("nn.DataParallel over 2 cards" in each.what for each in two.assumed)


def test_loops_of_the_programs_own_modules(tmp_path):
    """A training loop that the script imports, with a loss scaler whose step the end of the loop interrupts."""
    (tmp_path / "training_engine.py").write_text(
        textwrap.dedent(
            """
            import torch

            def fit(model, optimizer, epochs):
                scaler = torch.amp.GradScaler("cuda")
                for epoch in range(epochs):
                    for batch in range(20):
                        with torch.autocast("cuda", dtype=torch.float16):
                            loss = model(torch.randn(32, 64, device="cuda")).square().mean()
                        optimizer.zero_grad()
                        scaler.scale(loss).backward()
                        scaler.unscale_(optimizer)
                        scaler.step(optimizer)
                        scaler.update()
                    with torch.no_grad():
                        model(torch.randn(65_536, 64, device="cuda"))
            """
        )
    )
    document, run = forecast(tmp_path, "from training_engine import fit\nfit(model, optimizer, 6)")
    assert (document.run.total_steps, run.failed_rest) == (120, "")
    (rest,) = document.rests
    assert (rest.line, rest.times) == ("training_engine.py:7", 6)
    assert rest.seconds > 0
    assert not list(tmp_path.rglob("*.pyc"))  # what is compiled for this run is not for others


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("count = 0\nwhile count < 40:\n    update()\n    count += 1", 40),
        ("count, most = 0, 40\nwhile True:\n    update()\n    count += 1\n    if count > most:\n        break", 41),
        ("rows = 0\nwhile rows <= 320:\n    update()\n    rows += 32", 11),
        ("import time\nstart = time.time()\nwhile time.time() - start < 60:\n    update()", None),
    ],
)
def test_while_loops_with_a_counter_have_a_length(tmp_path, loop, steps):
    document, _ = forecast(tmp_path, loop)
    if steps is None:
        assert document.script.length_known_from is None
    else:
        assert document.run.total_steps == steps


def test_gradients_are_cleared_where_the_program_does_so_behind_its_update(tmp_path):
    """A loop that is ended inside of its update has not cleared them; the next step must not hold them."""
    body = """
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range({epochs}):
        for batch in range(40):
            model(torch.randn(16384, 2048, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    once, _ = forecast(tmp_path, body.format(epochs=1).replace("for epoch in range(1):", "if True:"))
    thrice, _ = forecast(tmp_path, body.format(epochs=3))
    assert thrice.run.total_steps == 3 * once.run.total_steps
    assert thrice.memory.peak_allocated_bytes == once.memory.peak_allocated_bytes
    assert thrice.memory.peak_reserved_bytes == once.memory.peak_reserved_bytes


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
