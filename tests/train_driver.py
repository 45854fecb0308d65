"""One process of a run over several: `torchrun … train_driver.py FOLDER KIND WORLD STEPS [die RANK STEP] [pairs] [sharded]`.

Rank 0 prints the weights' hash and the losses as JSON. With `die`, that rank kills itself after that step, once.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from forerun.data.token_data import TokenData, TokenSample
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.parallel import whole
from forerun.train.loop import Training, seed_everything
from forerun.train.ranks import join_group, rank

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def training(folder, kind, world, steps, workload="sequence-classification", sharded=False):
    settings = settings_from({
        "name": "a", "workload": workload, "model": {"name": "tiny-bert", "config": NO_DROPOUT},
        "batch": {"micro_batch_size": 4, "sequence_length": 64, "padding": "bucketed",
                  "gradient_accumulation_steps": 4 // world},
        "optimizer": {"learning_rate": 1e-3, "max_gradient_norm": 0.5}, "schedule": {"epochs": 9, "max_steps": steps},
        "checkpoints": {"every_steps": 2, "keep_last": 10, "sharded": sharded}, "parallel": {"kind": kind, "world_size": world},
    })  # fmt: skip
    join_group(settings, "cpu")
    generator = torch.Generator().manual_seed(5)
    samples = []
    for number in range(42):  # 11 micro-batches: the last step of an epoch has three for four places
        ids = torch.randint(3, 60, (3 + 7 * number % 60,), generator=generator).tolist()
        samples.append(TokenSample(ids, ids[::-1] if workload == "pairs" else number % 2))
    seed_everything(0)
    step = build_step(settings, generic_workload(workload), "cpu", pretrained=False)
    return Training(step, TokenData(settings, samples), Path(folder))


def main(folder, kind, world, steps, *more):
    torch.set_num_threads(1)
    workload = "pairs" if "pairs" in more else "sequence-classification"
    run = training(folder, kind, int(world), int(steps), workload, "sharded" in more)
    losses, marker = [], Path(folder) / "died"
    for report in run.steps():
        losses.append(report.loss)
        if "die" in more and rank() == int(more[1]) and report.step == int(more[2]) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    weights = {name: whole(p.detach()) for name, p in run.step.model.named_parameters()}
    if rank() == 0:
        torch.save(weights, Path(folder) / "weights.pt")
        print(json.dumps({"losses": losses, "first": run.resumed_from}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


if __name__ == "__main__":
    main(*sys.argv[1:])
