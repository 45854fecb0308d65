"""A run on own data that a test kills: `own_driver.py FOLDER KIND [slow]` trains or resumes, and prints its weights' hash."""

import hashlib
import sys
import time
import warnings
from pathlib import Path

import torch

from forerun.hardware.catalogue import device
from forerun.runs.registry import open_experiment
from forerun.runs.run import start_training
from own_sets import write_set


def training_of(folder, kind, **sections):
    """The `Training` of a kind of data in `folder`, and its experiment."""
    experiment = open_experiment(write_set(folder / "data", kind, **sections))
    return experiment, start_training(experiment, device("a100-40gb").model_copy(update={"kind": "cpu"}), folder)


def weights_hash(model):
    """Hash of all weights, bit for bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def main():
    """Train to the end and print the hash of the best model."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _, training = training_of(Path(sys.argv[1]), sys.argv[2])
    for _ in training.steps():
        time.sleep(0.02 if "slow" in sys.argv else 0.0)
    training.load_best()
    print(weights_hash(training.step.model))


if __name__ == "__main__":
    main()
