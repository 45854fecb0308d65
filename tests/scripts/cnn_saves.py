"""A network with BatchNorm that writes a log, a checkpoint and an existing file; stops after four steps."""

import json
import os
from pathlib import Path

import torch
from torch import nn

net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
folder = Path("out")
folder.mkdir(exist_ok=True)
images, labels = torch.randn(4, 8, 3, 32, 32), torch.randint(0, 4, (4, 8))
for step in range(4):
    loss = nn.functional.cross_entropy(net(images[step].cuda()), labels[step].cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open(folder / "log.jsonl", "a") as file:
        file.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
    torch.save(net.state_dict(), folder / "last.pt")
    assert (folder / "last.pt").exists()
    assert len((folder / "log.jsonl").read_text().splitlines()) == step + 1
    assert net[1].num_batches_tracked.item() == step + 1
Path("notes.txt").write_text("changed by the program")
os.remove("data.txt")
assert not os.path.exists("data.txt")
assert sorted(os.listdir("out")) == ["last.pt", "log.jsonl"]
