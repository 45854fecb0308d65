"""A tiny run that a test kills: `kill_driver.py FOLDER [KIND] [slow]` trains or resumes, and prints its weights' hash.

KIND: `plain`; `background` saves from a thread; `workers` has two processes make the batches; `bucketed` and `packed` train a small
BERT on texts of many lengths.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.workload import LossSum
from forerun.train.loop import Training, seed_everything

SAMPLES = 50
SETTINGS = {
    "name": "kill", "workload": "tiny", "model": {"name": "tiny"}, "seed": 3,
    "optimizer": {"learning_rate": 1e-2, "max_gradient_norm": 1.0},
    "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "sequence_length": 8},
    "data": {"examples": SAMPLES},
    "schedule": {"epochs": 4, "warmup_steps": 3, "frozen_encoder_epochs": 1},
    "checkpoints": {"every_steps": 3, "keep_last": 2},
}  # fmt: skip


class TinyModel(nn.Module):
    """Embedding, dropout (so that random state matters), linear layers."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.encoder(ids).mean(1))


class TinyWorkload:
    """Classification of made-up sequences."""

    name = "tiny"

    def build_model(self, settings, *, pretrained):
        return TinyModel()

    def example_batch(self, settings, size, length):
        return {"ids": torch.zeros(size, length, dtype=torch.long), "labels": torch.zeros(size, dtype=torch.long)}

    def loss(self, model, batch):
        return LossSum(F.cross_entropy(model(batch["ids"]), batch["labels"], reduction="sum"))

    def count(self, batch):
        return float(len(batch["labels"]))

    def encoder(self, model):
        return model.encoder

    def learning_rate_scale(self, parameter_name):
        return 1.0


class TinyData:
    """Shuffled anew each epoch; the order is a function of the seed and the epoch."""

    def __init__(self, pause=0.0, size=4, accumulation=2):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 50, (SAMPLES, 8), generator=generator)
        self.labels = self.ids.sum(1) % 2
        self.pause, self.size, self.accumulation = pause, size, accumulation

    def epoch_steps(self, epoch):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()
        batches = [order[i : i + self.size] for i in range(0, SAMPLES, self.size)]
        return [batches[i : i + self.accumulation] for i in range(0, len(batches), self.accumulation)]

    def collate(self, indices):
        time.sleep(self.pause)
        return {"ids": self.ids[indices], "labels": self.labels[indices]}

    def tokens(self, indices):
        return 8 * len(indices), 8 * len(indices)


def run(training, stop_after=None):
    """The reports of a training until its end, or until a step."""
    reports = []
    for report in training.steps():
        reports.append(report)
        if report.step == stop_after:
            break
    return reports


def tiny_training(folder, pause=0.0, **sections):
    """A `Training` in `folder`; `sections` override settings."""
    settings = settings_from({**SETTINGS, **sections})
    seed_everything(settings.seed)
    step = build_step(settings, TinyWorkload(), "cpu", pretrained=False)
    return Training(step, TinyData(pause), Path(folder))


def text_training(folder, padding, pause, **sections):
    """Texts of many lengths, bucketed or packed; `sections` override settings."""
    from forerun.data.token_data import TokenData, TokenSample
    from forerun.step.heads import generic_workload

    settings = settings_from({
        **SETTINGS, "workload": "sequence-classification", "model": {"name": "tiny-bert"},
        "batch": {**SETTINGS["batch"], "sequence_length": 32, "padding": padding},
        "schedule": {"epochs": 2, "warmup_steps": 3}, "data": {"examples": SAMPLES, "workers": 2}, **sections,
    })  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    samples = [
        TokenSample(torch.randint(3, 60, (2 + 5 * n % 29,), generator=generator).tolist(), n % 2)
        for n in range(SAMPLES)
    ]
    seed_everything(settings.seed)
    step = build_step(settings, generic_workload("sequence-classification"), "cpu", pretrained=False)
    return Training(step, Pausing(TokenData(settings, samples), pause), Path(folder))


class Pausing:
    """Another's data, a little late."""

    def __init__(self, data, pause):
        self.data, self.pause = data, pause
        self.epoch_steps, self.tokens = data.epoch_steps, data.tokens

    def collate(self, indices):
        time.sleep(self.pause)
        return self.data.collate(indices)


KINDS = {
    "plain": {},
    "background": {"checkpoints": {"every_steps": 3, "keep_last": 2, "background": "always"}},
    "workers": {"data": {"examples": SAMPLES, "workers": 2}},
}


def training_of(folder, kind, pause=0.0):
    """The run of a kind."""
    return text_training(folder, kind, pause) if kind not in KINDS else tiny_training(folder, pause, **KINDS[kind])


def weights_hash(model):
    """Hash of all weights, bit for bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def main():
    """Train to the end and print the hash."""
    torch.set_num_threads(1)
    kind = next((word for word in sys.argv[2:] if word != "slow"), "plain")
    training = training_of(sys.argv[1], kind, pause=0.004 if "slow" in sys.argv else 0.0)
    for _ in training.steps():
        pass
    print(weights_hash(training.step.model))


if __name__ == "__main__":
    main()
