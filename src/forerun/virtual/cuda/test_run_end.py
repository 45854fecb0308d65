"""What follows the last training loop of a program: evaluation, saving, and what a forecast must not do."""

import textwrap

import pytest

from forerun.forecasting.program import forecast_program
from forerun.forecasting.program_account import account_of
from forerun.hardware.catalogue import device
from forerun.virtual.cuda import loop_rests, run_end
from forerun.virtual.cuda.launchers import parse_command

HEAD = """
import os, socket, subprocess, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(512, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = DataLoader(TensorDataset(torch.randn(400, 512)), batch_size=4)
def update():
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
for step in range(100):
    update()
"""


def forecast_of(tmp_path, behind, head=HEAD):
    script = tmp_path / "train.py"
    script.write_text(head + textwrap.dedent(behind))
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert (run.exit_code, forecast.run.total_steps) == (0, 100), run.error
    return forecast, run


def test_evaluation_and_saving_are_in_the_run_once(tmp_path):
    forecast, run = forecast_of(
        tmp_path,
        """
        with torch.no_grad():
            for (batch,) in rows:
                model(batch.cuda())
        torch.save(model.state_dict(), "model.pt")
        """,
    )
    (rest,) = forecast.rests
    assert (rest.line, rest.times, rest.is_last, run.failed_rest) == ("train.py:13", 1, True, "")
    assert 512 * 256 * 4 < rest.saved_bytes < 512 * 257 * 4 + 4096
    assert forecast.run.checkpoints_written == 1
    assert forecast.run.phases.evaluation_seconds == rest.seconds > 0
    assert any(text.startswith("Behind its last loop, at train.py:13,") for text in forecast.warnings)


@pytest.mark.parametrize(
    "save",
    [
        "torch.jit.trace(model, row).save('model.pt')",
        "torch.jit.save(torch.jit.trace(model, row), 'model.pt')",
        "torch.onnx.export(model, row, 'model.onnx', dynamo=False)",
        "torch.onnx.export(model, (row,), dynamo=True).save('model.onnx')",
        "torch.save(model, 'model.pt')",
    ],
)
def test_a_whole_model_is_saved(save, tmp_path):
    behind = f"row = torch.ones(1, 512, device='cuda')\n{save}"
    forecast, run = forecast_of(tmp_path, behind)
    assert run.failed_rest == ""
    assert forecast.rests[0].saved_bytes > 512 * 256 * 4


def test_a_program_that_ends_with_its_loop_has_nothing_there(tmp_path):
    forecast, run = forecast_of(tmp_path, "print('done')")
    assert (forecast.rests, run.failed_rest) == ([], "")


def test_memory_that_only_the_end_needs_is_in_the_peak(tmp_path):
    """A run that breaks after its last step has cost everything."""
    much = "torch.empty({}, dtype=torch.uint8, device='cuda')"
    forecast, _ = forecast_of(tmp_path, f"scores = {much.format(8 * 2**30)}")
    assert forecast.memory.peak_allocated_bytes > 8 * 2**30
    assert forecast.memory.breakdown.other_bytes > 8 * 2**30
    assert any("peaks behind the last loop, at train.py:13, 8.00 GiB above" in text for text in forecast.warnings)
    script = tmp_path / "train.py"
    script.write_text(HEAD + f"scores = {much.format(20 * 2**30)}")
    command = ["python", str(script)]
    (forecast,), run = forecast_program(parse_command(command), command, [device("t4")])
    assert not forecast.fits
    assert run.out_of_memory is not None
    assert run.out_of_memory.line == "train.py:15"
    assert any("when all steps are made" in text for text in forecast.warnings)
    account = account_of(run, device("t4"), "python train.py")
    assert account.stop > account.steps[-1].end  # the page shows what ran out


@pytest.mark.parametrize(
    ("behind", "reason"),
    [
        ("os.system('echo no > left')", "starts another process"),
        ("subprocess.run(['touch', 'left'])", "starts another process"),
        ("try:\n  subprocess.Popen(['touch', 'left'])\nexcept Exception:\n  open('left', 'w')", "another process"),
        ("with socket.socket() as own: own.connect(('192.0.2.1', 9))", "connects to another machine"),
        ("time.sleep(60)", "takes more than 1 s here"),
        ("while True: pass", "takes more than 1 s here"),
    ],
)
def test_what_leaves_the_process_ends_it(behind, reason, tmp_path, monkeypatch):
    """A script may shut down the machine that it rents, or publish its weights."""
    monkeypatch.setattr(run_end, "MOST_SECONDS", 1.0)
    monkeypatch.chdir(tmp_path)
    forecast, run = forecast_of(tmp_path, f"{behind}\nraise SystemExit('reached')")
    assert reason in run.watcher.between.end_of_run.ended_by
    assert any("what follows train.py:13: it " in text and reason in text for text in forecast.not_modelled)
    assert not (tmp_path / "left").exists()


def test_this_machine_is_no_other_one(tmp_path):
    talks = """
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    with torch.no_grad():
        model(torch.randn(8, 512, device="cuda"))
    """
    forecast, run = forecast_of(tmp_path, talks)
    assert (run.watcher.between.end_of_run.ended_by, run.failed_rest) == ("", "")
    assert len(forecast.rests) == 1


def test_a_thread_beside_the_program_is_refused_alone(tmp_path):
    uploads = """
    import threading
    refused = []
    def upload():
        try:
            subprocess.run(["true"])
        except PermissionError as error:
            refused.append(error)
    thread = threading.Thread(target=upload)
    thread.start()
    thread.join()
    assert refused
    model(torch.randn(8, 512, device="cuda"))
    """
    forecast, run = forecast_of(tmp_path, uploads)
    assert (run.watcher.between.end_of_run.ended_by, run.failed_rest) == ("", "")
    assert len(forecast.rests) == 1


def test_nothing_is_guarded_behind_the_program(tmp_path):
    forecast_of(tmp_path, "import subprocess")
    import subprocess

    assert subprocess.run(["true"], check=False).returncode == 0


@pytest.mark.parametrize("ends", ["sys.exit('accuracy is too low')", "raise SystemExit(3)"])
def test_how_it_says_that_it_ends_is_no_failure_of_the_forecast(ends, tmp_path):
    """Weights that nothing has trained do not pass a script's own check."""
    forecast_of(tmp_path, ends)


def test_a_failure_there_is_told(tmp_path):
    forecast, run = forecast_of(tmp_path, "losses = {}\nprint(losses['last'])")
    assert "KeyError" in run.failed_rest
    assert any("train.py:16: KeyError" in text for text in forecast.warnings)


def test_a_long_evaluation_is_cut_and_what_follows_it_is_reached(tmp_path, monkeypatch):
    evaluated = """
    with torch.no_grad():
        for (batch,) in rows:
            model(batch.cuda())
    torch.save(model.state_dict(), "model.pt")
    """
    whole, _ = forecast_of(tmp_path, evaluated)
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(loop_rests, "ENDED_AFTER", -100.0)
    cut, run = forecast_of(tmp_path, evaluated)
    (rest,) = run.watcher.between.rests
    assert [each.share for each in run.watcher.between.cuts] == [0.01]
    assert cut.rests[0].saved_bytes == whole.rests[0].saved_bytes
    assert cut.rests[0].seconds == pytest.approx(whole.rests[0].seconds, rel=0.3)  # the first batch is not like others


def test_loaders_of_steps_are_not_cut(tmp_path, monkeypatch):
    """Two micro-batches a step, behind an evaluation that takes long."""
    monkeypatch.setattr(loop_rests, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(loop_rests, "ENDED_AFTER", -100.0)
    head = HEAD[: HEAD.index("for step")]
    trains = """
    for epoch in range(2):
        for turn, (batch,) in enumerate(rows):
            model(batch.cuda()).sum().backward()
            if turn % 2:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for (batch,) in DataLoader(rows.dataset, batch_size=100):
                model(batch.cuda())
    """
    forecast, run = forecast_of(tmp_path, trains, head)
    rest = run.watcher.between.rests[0]
    assert ([each.share for each in run.watcher.between.cuts], rest.has_step) == ([0.25], True)
    assert forecast.run.steps_per_epoch == 50


def test_a_trainers_result_is_there(tmp_path):
    transformers = pytest.importorskip("transformers")
    assert transformers.Trainer
    script = """
    from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments
    model = BertForMaskedLM(BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=100,
                                       intermediate_size=64))
    row = {"input_ids": torch.zeros(16, dtype=torch.long), "labels": torch.zeros(16, dtype=torch.long)}
    arguments = TrainingArguments("out", max_steps=100, report_to=[], save_steps=50)
    trainer = Trainer(model, arguments, train_dataset=[row] * 64, eval_dataset=[row] * 64)
    result = trainer.train()
    trainer.log_metrics("train", result.metrics)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    """
    forecast, run = forecast_of(tmp_path, script, "import torch\n")
    (rest,) = forecast.rests
    assert (rest.is_last, run.failed_rest) == (True, "")
    assert rest.seconds > 0
    assert forecast.run.checkpoints_written == 2 + 1  # of the trainer and of the script
    assert forecast.run.checkpoint_bytes > rest.saved_bytes > 0
