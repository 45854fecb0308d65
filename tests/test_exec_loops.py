"""What a script does in its loops beside its steps, and between them."""

import pytest
from tests.exec_runs import HEAD, forecast
from torch.utils.data import DataLoader


def test_what_each_loop_does_counts_as_often_as_it_ends(tmp_path):
    """Rollouts before several epochs over them, as in PPO, and mini-batches that a call returns."""
    document, run = forecast(
        tmp_path,
        """
        for iteration in range(5):
            with torch.no_grad():
                for turn in range(60):
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
    assert any(f"run once and failed here ({run.failed_at}: IndexError" in text for text in document.warnings)
    assert run.failed_rest.startswith("IndexError")


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


def test_workers_that_a_library_starts_itself_are_left_out(tmp_path):
    """fastai makes PyTorch's iterator for several workers; afterwards workers start as before."""
    body = """
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter
    loader = DataLoader(TensorDataset(torch.randn(320, 64)), 32)
    loader.num_workers, loader.prefetch_factor = 2, 2
    for (batch,) in _MultiProcessingDataLoaderIter(loader):
        assert batch.shape == (32, 64) and loader.num_workers == 2
        update()
    """
    document, _ = forecast(tmp_path, body)
    assert document.script.steps_seen >= 3
    assert [len(batch) for batch in DataLoader(range(8), 4, num_workers=1)] == [4, 4]


def test_gradients_that_a_closure_makes_are_no_missing_ones(tmp_path):
    body = """
    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(32, 64, device="cuda")).square().mean()
        loss.backward()
        return loss
    for batch in range(30):
        optimizer.step(closure)
    """
    document, _ = forecast(tmp_path, body)
    assert "no-gradient" not in [finding.kind for finding in document.findings]
    assert document.memory.breakdown.gradient_bytes > 0


def test_an_optimizer_of_ones_own_has_the_parameters_that_were_moved(tmp_path):
    """Parameters stay the same objects when a model moves: fastai's optimizers are made before that."""
    body = """
    class Plain:
        def __init__(self, parameters):
            self.parameters = list(parameters)
        def step(self):
            with torch.no_grad():
                for parameter in self.parameters:
                    assert parameter.is_cuda and parameter.grad is not None
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 2048), nn.Linear(2048, 1024))  # small and large
    plain, before = Plain(model.parameters()), list(model.parameters())
    model = model.cuda()
    assert all(one is other for one, other in zip(before, model.parameters()))
    for batch in range(9):
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        plain.step()
    """
    document, _ = forecast(tmp_path, body)
    assert document.script.steps_seen >= 3


def test_float64_is_as_slow_as_the_card_has_it(tmp_path):
    body = """
    wide = nn.Linear(2048, 2048, dtype=TYPE, device="cuda")
    step = torch.optim.SGD(wide.parameters(), 0.1)
    for batch in range(5):
        wide(torch.randn(8192, 2048, dtype=TYPE, device="cuda")).sum().backward()
        step.step()
        step.zero_grad()
    """
    single, double = (
        forecast(tmp_path, body.replace("TYPE", f"torch.{name}"))[0].step.seconds.expected
        for name in ("float32", "float64")
    )
    assert 30 < double / single < 64


def test_samples_are_those_of_a_batch_by_name_and_of_no_loss(tmp_path):
    body = """
    class Named(nn.Module):
        def forward(self, batch):
            return {"logits": model(batch["rows"])}
    class Loss(nn.Module):
        def forward(self, outputs):
            return outputs["logits"].square().mean()
    named, loss = Named(), Loss()
    for turn in range(9):
        loss(named({"rows": torch.randn(48, 64, device="cuda")})).backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    document, _ = forecast(tmp_path, body)
    assert document.step.samples_per_second == pytest.approx(48 / document.step.seconds.expected)


def test_a_loop_that_ends_by_what_nobody_can_know_is_told(tmp_path):
    """Conjugate gradients, as gpytorch solves with: to the last turn, since no tolerance is known to be reached."""
    body = """
    def solved(matrix, rest):
        for turn in range(100):
            rest = rest - 0.01 * matrix @ rest
            if bool(rest.norm() < 1e-3):
                break
        return rest

    for step in range(50):
        scores = model(torch.randn(64, 64, device="cuda"))
        loss = sum(torch.distributions.Categorical(logits=row).entropy() for row in scores[:30]).mean()
        (loss + solved(torch.randn(64, 64, device="cuda"), torch.randn(64, device="cuda")).sum()).backward()
        optimizer.step()
        if bool(loss < 1e-3):
            break
    """
    document, _ = forecast(tmp_path, body)
    (text,) = [text for text in document.warnings if "truth value" in text]
    assert "asks 100 times a step" in text
    assert "gets no" in text


def test_parameters_that_are_no_leaves_are_nothing_to_warn_of(tmp_path, recwarn):
    """A model whose weights are computed, as that of an inner loop of meta-learning; a card's program says nothing."""
    body = """
    class Fast(nn.Module):
        def __init__(self, weights):
            super().__init__()
            self.weights = weights

        def parameters(self, recurse=True):
            return iter(self.weights)

        def forward(self, rows):
            return torch.func.functional_call(model, dict(zip(dict(model.named_parameters()), self.weights)), (rows,))

    for step in range(20):
        fast = Fast([each * 2 for each in model.parameters()])
        optimizer.zero_grad()
        fast(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 20
    assert [str(each.message) for each in recwarn if "leaf" in str(each.message)] == []


def test_one_step_with_a_closure_behind_a_loop_is_in_the_run(tmp_path):
    """As networks for differential equations are refined: Adam first, then all of L-BFGS in one call."""
    body = """
    def closure():
        refining.zero_grad()
        loss = model(torch.randn(4096, 64, device="cuda")).square().mean()
        loss.backward()
        return loss

    for step in range(50):
        update()
    refining = torch.optim.LBFGS(model.parameters(), max_iter=20)
    refining.step(closure)
    """
    document, _ = forecast(tmp_path, body)
    (adam,) = document.earlier_loops
    assert (adam.steps, document.run.total_steps) == (50, 51)
    assert document.step.seconds.expected > 5 * adam.step_seconds
    assert document.run.seconds.expected == pytest.approx(
        50 * adam.step_seconds + document.step.seconds.expected, rel=0.05
    )


def test_a_loop_inside_a_step_converges_and_says_what_a_turn_is_worth(tmp_path, capsys):
    """Balanced routing as Megatron-Core's Sinkhorn has it: the step is that of ten turns, each of which is named."""
    document, program = forecast(
        tmp_path,
        """
        from forerun.current_work import current_work
        print(current_work())
        def route(cost, tolerance=1e-4):
            rows, columns, error = torch.ones(512).cuda(), torch.ones(64).cuda(), 1e9
            while error > tolerance:
                before = columns
                rows = 1 / (cost @ columns)
                columns = 1 / (rows @ cost)
                error = (columns - before).abs().mean()
            return rows[:, None] * cost * columns
        for step in range(40):
            with torch.no_grad():
                route(torch.rand(512, 64).cuda())
            update()
        """,
    )
    assert "running train.py on the virtual GPU" in capsys.readouterr().out
    warning = next(each for each in document.warnings if "10 turns are assumed" in each)
    assert warning.startswith(f"train.py:{len(HEAD.splitlines()) + 6} ends a loop by a value that nobody can know")
    trace, steps = program.session.recorder.trace, len(program.watcher.spans)
    products = sum(trace.calls[op.call].name.startswith("aten.mv") for op in trace.ops)
    assert products == 10 * steps  # by columns; that by rows is one of matrices


@pytest.mark.parametrize(
    "batches",
    [
        "log_every(loader)",
        "enumerate(log_every(loader), start=1)",
        "loader_of(6)",
        "loaders['train']",
    ],
)
def test_loops_over_loaders_in_other_words(batches, tmp_path):
    """A logger around the loader, one that a call makes in each epoch, one of several."""
    document, _ = forecast(
        tmp_path,
        f"""
        from torch.utils.data import DataLoader, TensorDataset
        loader_of = lambda rows: DataLoader(TensorDataset(torch.zeros(rows * 32, 64)), batch_size=32)
        loader = loader_of(6)
        loaders = {{"train": loader, "val": loader_of(2)}}
        def log_every(values):
            for value in values:
                yield value
        for epoch in range(5):
            for batch in {batches}:
                update()
        """,
    )
    assert (document.run.total_steps, document.run.steps_per_epoch) == (30, 6)
