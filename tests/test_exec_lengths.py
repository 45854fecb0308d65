"""How long a script's whole run is: its own loops and counters, who calls them, and replays of a captured step."""

import sys
import textwrap

import pytest
from tests.exec_runs import forecast

PACKAGE = """
from torch.utils.data import DataLoader, TensorDataset
import torch

class Net:
    def __init__(self, update, epochs, callbacks=()):
        self.update, self.epochs, self.callbacks = update, epochs, callbacks

    def fit_loop(self, rows):
        for _ in range(self.epochs):
            {loop}
                for callback in [print, len]:
                    if callback is len:
                        self.update()

    def batches(self):
        yield from range(9)
"""


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
        ("rows = 0\nwhile rows < 320:\n    rows += 32\n    update()", 10),
        ("rows = 0\nwhile rows < 321:\n    rows += 32\n    update()", 11),
        ("rows = 0\nwhile rows <= 320:\n    rows += 32\n    update()", 11),
        ("rows = 0\nwhile True:\n    rows += 32\n    update()\n    if rows >= 319:\n        break", 10),
        ("rows = 0\nwhile True:\n    rows += 32\n    if rows > 320:\n        break\n    update()", 10),
        ("rows = 0\nwhile True:\n    if rows >= 320:\n        break\n    rows += 32\n    update()", 10),
        ("import os\nwhile not os.path.exists('stop'):\n    update()", None),
    ],
)
def test_while_loops_with_a_counter_have_a_length(tmp_path, loop, steps):
    document, _ = forecast(tmp_path, loop)
    if steps is None:
        assert document.script.length_known_from is None
    else:
        assert document.run.total_steps == steps


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        ("for batch in DataLoader(TensorDataset(rows), 32):", 7 * 4),
        ("loader = DataLoader(TensorDataset(rows), 32)\n            for batch in loader:", 7 * 4),
        (
            "parts = {1}\n            for batch in DataLoader(TensorDataset(rows), 32):\n              for part in parts:",
            28,
        ),
        ("for batch in self.batches():", None),  # nobody can ask a generator
        ("while torch.rand(1) < 2:", None),
    ],
)
def test_loops_of_a_package_that_trains(tmp_path, monkeypatch, loop, steps):
    """Those over epochs and batches count, as in skorch; those over what it calls do not."""
    folder = tmp_path / "site-packages" / "netfit"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE.replace("{loop}", loop))
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "netfit", raising=False)
    body = "from netfit import Net\nfor fold in range(2):\n    Net(update, 7).fit_loop(torch.randn(128, 64))"
    document, _ = forecast(tmp_path, body)
    if steps is None:
        assert document.script.length_known_from is None
    else:
        assert document.run.total_steps == 2 * steps


@pytest.mark.parametrize("end", ["data.size(0) - 1", "data.shape[0] - 1", 'sizes["rows"]'])
def test_ranges_are_counted_when_they_begin(tmp_path, end):
    """As language models are trained on stretches of one long row."""
    body = f"""
    data, sizes = torch.randn(2000, 64).cuda(), {{"rows": 1999, "epochs": 3}}
    for epoch in range(sizes["epochs"]):
        for batch, i in enumerate(range(0, {end}, 70)):
            model(data[i:i + 70]).mean().backward()
            optimizer.step()
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 3 * 29


def test_a_pipeline_of_scikit_learn_fits_once(tmp_path):
    body = """
    from sklearn.base import BaseEstimator
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    class Net(BaseEstimator):
        def fit(self, rows, labels):
            for epoch in range(30):
                update()
            return self

    make_pipeline(StandardScaler(), Net()).fit(torch.randn(32, 8).numpy(), [0, 1] * 16)
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 30


def test_a_loop_as_long_as_there_are_batches_is_a_pass_of_its_loader(tmp_path):
    """A prefetcher on a stream of its own, as NVIDIA's examples have it."""
    body = """
    from torch.utils.data import DataLoader, TensorDataset
    loader = DataLoader(TensorDataset(torch.randn(320, 64)), 32, pin_memory=True, num_workers=2)
    stream = torch.cuda.Stream()

    def fetch(batches):
        with torch.cuda.stream(stream):
            (batch,) = next(batches, (None,))
            return None if batch is None else batch.cuda(non_blocking=True)

    for epoch in range(6):
        batches = iter(loader)
        batch = fetch(batches)
        while batch is not None:
            torch.cuda.current_stream().wait_stream(stream)
            update()
            batch = fetch(batches)
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 60


def test_a_package_that_starts_the_program_is_no_loop(tmp_path, monkeypatch):
    """python-fire calls the program's function from a loop of its own."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "starter.py").write_text("def start(main):\n    while True:\n        return main()\n")
    monkeypatch.syspath_prepend(str(folder))
    body = """
    import starter
    def main():
        for batch in range(30):
            update()
    starter.start(main)
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 30


def test_a_captured_step_is_one_with_each_replay(tmp_path):
    body = """
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    rows, side = torch.randn(32, 64, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(rows).square().mean().backward()
        optimizer.step()
    batches = [torch.randn(32, 64, device="cuda") for _ in range(20)]
    for epoch in range(30):
        for batch, _ in zip(batches, range(100)):
            rows.copy_(batch)
            graph.replay()
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 3 + 30 * 20
    assert document.step.phases.backward_seconds > 0
    assert document.step.samples_per_second == pytest.approx(32 / document.step.seconds.expected)


def test_a_counter_of_turns_ends_a_loop_without_a_length(tmp_path):
    body = """
    import itertools
    for epoch in itertools.count():
        for batch in range(10):
            update()
        if epoch >= 5:
            break
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 60


def test_a_generator_has_the_length_of_its_first_whole_pass(tmp_path):
    body = """
    def batches():
        for rows in (32, 40, 48, 56):
            yield rows
    for epoch in range(25):
        for rows in batches():
            update(rows)
    """
    document, _ = forecast(tmp_path, body)
    assert document.run.total_steps == 100


TRAINER = """
class Bar:
    def __init__(self, iterable, total):
        self.iterable, self.total = iterable, total

    def __iter__(self):
        yield from self.iterable

class Trainer:
    stop, epochs = False, 12

    def train(self, model, optimizer, loader, validate):
        epoch, tries, whole_passes = 0, 0, 0
        while True:
            bar = Bar(enumerate(loader), len(loader))
            for number, (batch,) in bar:
                optimizer.zero_grad()
                try:
                    model(batch.cuda()).mean().backward()
                except MemoryError:
                    tries += 1
                    break
                optimizer.step()
                if self.stop:
                    break
            else:
                whole_passes += 1
            if whole_passes <= epoch:
                raise AssertionError("a loop that ends has run its else")
            last = epoch + 1 >= self.epochs
            validate()
            self.stop |= last
            if self.stop:
                break
            epoch += 1
"""


def test_a_package_that_brings_its_loop_has_its_length_and_its_validation(tmp_path, monkeypatch):
    """As ultralytics writes it: endless, left by a flag, under a progress bar of its own."""
    folder = tmp_path / "site-packages" / "detectors"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(TRAINER)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "detectors", raising=False)
    body = """
    from detectors import Trainer
    from torch.utils.data import DataLoader, TensorDataset

    def validate():
        with torch.no_grad():
            for batch in range(9):
                model(torch.randn(4096, 64, device="cuda"))

    Trainer().train(model, optimizer, DataLoader(TensorDataset(torch.randn(320, 64)), 32), validate)
    """
    document, run = forecast(tmp_path, body)
    assert (document.run.total_steps, run.failed_rest) == (120, "")
    (rest,) = document.rests
    assert (rest.times, rest.seconds > 0) == (12, True)
    assert document.run.phases.evaluation_seconds == pytest.approx(12 * rest.seconds)


ACCUMULATES = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = torch.utils.data.DataLoader(torch.zeros(220, 64), 20)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(10):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            optimizer.step()
            optimizer.zero_grad()
"""


def test_accelerate_makes_a_step_of_what_is_left_of_a_loader(tmp_path):
    """Eleven batches in steps of four are three; a loop of one's own that counts to four makes two."""
    document, _ = forecast(tmp_path, "", head=ACCUMULATES)
    assert (document.run.total_steps, document.run.steps_per_epoch) == (30, 3)
