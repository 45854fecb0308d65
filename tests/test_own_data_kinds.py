"""The file that `forerun init` writes, changed as a user changes it: forecast, trained, stopped and resumed to one end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import forerun
from forerun.errors import NotSupported
from forerun.hardware.catalogue import device
from forerun.hardware.detect import detect
from forerun.runs.data_proposal import propose, yaml_text
from forerun.runs.registry import open_experiment
from forerun.runs.run import start_training
from forerun.settings.load import load_settings
from own_driver import weights_hash
from own_formats import FORMATS, write_format
from own_sets import write_set

DRIVER = Path(__file__).with_name("own_rank_driver.py")
LORA = ["adapter.kind=lora", "adapter.rank=4"]
KINDS = {
    "nf4": [*LORA, "quantization=nf4"],
    "nf4, prepared": [*LORA, "quantization=nf4-double", "kbit_preparation=true", "precision=fp32"],
    "int8": [*LORA, "quantization=int8"],
    "8-bit optimizer": ["optimizer.name=adamw-8bit"],
    "LoRA, 8-bit optimizer": [*LORA, "optimizer.name=adamw-8bit"],
    "frozen": ['model.freeze=["model.embed_tokens.*","model.layers.0.*"]'],
}
SHORT = [
    "batch.micro_batch_size=4", "batch.gradient_accumulation_steps=2", "batch.sequence_length=32", "schedule.max_steps=6", "checkpoints.every_steps=2",
    "evaluation.metric=null",
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")


@pytest.fixture(scope="module")
def run_yaml(tmp_path_factory):
    """The file of `forerun init` for chats and a tiny model; its forecast is asked for by each test."""
    return written_by_init(tmp_path_factory.mktemp("chats"), "chat")


@pytest.fixture(scope="module")
def kto_yaml(tmp_path_factory):
    """The same for answers with verdicts."""
    return written_by_init(tmp_path_factory.mktemp("kto"), "kto", rows=240)


def written_by_init(folder, kind, rows=80):
    """The file of `forerun init` for a small set of that kind."""
    write_set(folder, kind, rows=rows)

    def no_forecast(settings, card):
        raise NotSupported("not here")

    proposal = propose(str(folder / "rows.jsonl"), device("t4"), no_forecast, model="tiny-llama")
    path = folder / "run.yaml"
    path.write_text(yaml_text(proposal, "forerun init rows.jsonl"))
    return path


def training_in(folder, settings):
    experiment = open_experiment(settings)
    return start_training(experiment, detect().device, folder)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_forecast_trained_and_resumed(tmp_path, run_yaml, kind):
    settings = load_settings(run_yaml, [*SHORT, *KINDS[kind]])
    forecast = forerun.forecast(settings, gpu="t4")
    whole = training_in(tmp_path / "whole", settings)
    before = {name: p.detach().clone() for name, p in whole.step.model.named_parameters()}
    assert sum(p.numel() for p in whole.step.model.parameters() if p.requires_grad) == forecast.parameters.trainable
    reports = list(whole.steps())
    assert all(0 < report.loss < 10 for report in reports)
    for name, parameter in whole.step.model.named_parameters():
        assert torch.equal(parameter.detach(), before[name]) != parameter.requires_grad, name
    part = training_in(tmp_path / "part", settings)
    for report in part.steps():
        if report.step == 3:
            break
    last = training_in(tmp_path / "part", settings)
    assert [report.loss for report in last.steps()] == [report.loss for report in reports[2:]]
    assert weights_hash(last.step.model) == weights_hash(whole.step.model)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("file", ["run_yaml", "kto_yaml"])
def test_two_ranks_do_what_one_does(tmp_path, request, file, kind):
    """The model is scored before training and between epochs, which must leave nothing behind in gathered weights."""
    run_yaml = request.getfixturevalue(file)
    changes = [*SHORT, "precision=fp32", "optimizer.max_gradient_norm=0.5"]
    settings = load_settings(run_yaml, changes)
    alone = [report.loss for report in training_in(tmp_path / "alone", settings).steps()]
    spread = [
        *changes, f"parallel.kind={kind}", "parallel.world_size=2",
        f"batch.gradient_accumulation_steps={settings.batch.gradient_accumulation_steps // 2}",
    ]  # fmt: skip
    assert forerun.forecast(load_settings(run_yaml, spread), gpu="t4").world_size == 2
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [*command, str(DRIVER), str(tmp_path), str(run_yaml), *spread], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr[-3000:]
    (line,) = [text for text in result.stdout.splitlines() if text.startswith("{")]
    report = json.loads(line)
    assert report["whole"] == pytest.approx(alone, rel=1e-4)
    assert report["from"] == 2
    assert report["first"] + report["rest"][1:] == report["whole"]
    assert report["rest"][0] == report["whole"][2]


@pytest.mark.parametrize("name", [name for name, (*_, change, _) in FORMATS.items() if change is dict])
def test_the_same_rows_in_another_file_are_the_same_samples(tmp_path, name):
    if name in ("Parquet", "Arrow folder"):
        pytest.importorskip("datasets")  # brings pyarrow
    lines = open_experiment(write_set(tmp_path / "lines", FORMATS[name][0], rows=40))
    other = open_experiment(write_format(tmp_path / "other", name, rows=40))
    steps = lines.data.epoch_steps(0)
    assert [list(map(list, step)) for step in other.data.epoch_steps(0)] == [list(map(list, step)) for step in steps]
    for batch in steps[0]:
        batches = [experiment.data.collate(batch) for experiment in (lines, other)]
        assert all(torch.equal(batches[0][key], batches[1][key]) for key in batches[0])
