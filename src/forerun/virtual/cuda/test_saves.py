"""What a program saves it can load again, wherever the file went, without device memory for what only lies on a disk."""

import pytest

from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.virtual.cuda.launchers import parse_command

PROGRAM = """
import io, os, shutil
from pathlib import Path
import torch
from torch import nn

net = nn.Sequential(nn.Linear(1024, 1024), nn.BatchNorm1d(1024)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
before = torch.cuda.memory_allocated()
state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "mask": torch.tensor([1, 0, 2])}
kind = KIND
if kind == "renamed":
    torch.save(state, "best.tmp")
    os.replace("best.tmp", "best.pt")
elif kind == "buffer":
    buffer = io.BytesIO()
    torch.save(state, buffer)
    Path("best.pt").write_bytes(buffer.getvalue())
elif kind == "copied":
    torch.save(state, Path("last.pt"))
    shutil.copy("last.pt", "best.pt")
else:
    with open("best.pt", "wb") as file:
        torch.save(state, file)
assert torch.cuda.memory_allocated() == before
if kind == "open":
    with open("best.pt", "rb") as file:
        loaded = torch.load(file, map_location="cpu")
else:
    loaded = torch.load("best.pt", map_location="cpu", weights_only=True)
assert torch.cuda.memory_allocated() == before
assert (loaded["epoch"], loaded["mask"].tolist()) == (3, [1, 0, 2])
assert {str(each.device) for each in loaded["model"].values()} == {"cpu"}
net.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
assert int(net[1].num_batches_tracked) == 3
again = torch.load("best.pt")
assert again["model"]["0.weight"].is_cuda and torch.cuda.memory_allocated() > before
"""


@pytest.mark.parametrize("kind", ["renamed", "buffer", "copied", "open"])
def test_a_program_reads_what_it_saved(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("KIND", repr(kind)))
    command = ["python", str(script)]
    _, run = forecast_program(parse_command(command), command, [device("t4")], most_steps=9)
    assert (run.error, run.exit_code) == ("", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


TENSOR_FILES = """
import torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

net = nn.Sequential(nn.Linear(1024, 1024), nn.BatchNorm1d(1024)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
before = torch.cuda.memory_allocated()
save_file({**net.state_dict(), "order": torch.tensor([3, 1, 2])}, "net.safetensors", metadata={"step": "3"})
assert torch.cuda.memory_allocated() == before
with safe_open("net.safetensors", framework="pt", device="cpu") as file:
    assert file.metadata() == {"step": "3"}
    assert file.get_slice("0.weight").get_shape() == [1024, 1024]
    assert file.get_tensor("order").tolist() == [3, 1, 2]
    assert int(file.get_tensor("1.num_batches_tracked")) == 3
assert torch.cuda.memory_allocated() == before
loaded = load_file("net.safetensors", device="cuda:0")
assert loaded.pop("order").is_cuda and torch.cuda.memory_allocated() >= before + 2**22
net.load_state_dict(loaded)
assert {k: v.shape for k, v in load(save(net.state_dict())).items()} == {k: v.shape for k, v in loaded.items()}
save_model(net, "whole.safetensors")
assert load_model(net, "whole.safetensors") == (set(), [])

config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=99)
BertForSequenceClassification(config).cuda().save_pretrained("tiny")
again = BertForSequenceClassification.from_pretrained("tiny").cuda()
assert again.classifier.weight.is_cuda
"""


def test_a_program_reads_the_safetensors_that_it_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TENSOR_FILES)
    command = ["python", str(script)]
    _, run = forecast_program(parse_command(command), command, [device("t4")], most_steps=9)
    assert (run.error, run.exit_code) == ("", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
