"""A rank on own data: `torchrun … own_rank_driver.py FOLDER RUN.YAML SETTING=VALUE…` trains, stops, resumes, prints losses."""

import json
import os
import sys
import warnings
from pathlib import Path

import torch

from forerun.hardware.detect import detect
from forerun.runs.registry import open_experiment
from forerun.runs.run import start_training
from forerun.settings.load import load_settings
from forerun.train.ranks import join_group, rank

STOP = 3


def main(folder, file, *changes):
    """Losses of an uninterrupted run, of one that stops after STOP steps, and of what is left of that."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    settings = load_settings(Path(file), changes)
    join_group(settings, "cpu")
    experiment, device = open_experiment(settings), detect().device

    def training(name):
        return start_training(experiment, device, Path(folder) / name)

    whole = [report.loss for report in training("whole").steps()]
    first = []
    for report in training("parts").steps():
        first.append(report.loss)
        if report.step == STOP:
            break
    last = training("parts")
    rest = [report.loss for report in last.steps()]
    if rank() == 0:
        print(json.dumps({"whole": whole, "first": first, "rest": rest, "from": last.resumed_from}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


if __name__ == "__main__":
    main(*sys.argv[1:])
