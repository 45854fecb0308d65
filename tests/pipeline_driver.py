"""One process of a pipeline's steps: `torchrun … pipeline_driver.py FOLDER PARALLEL-JSON`; prints losses and norms.

Each rank writes the weights that it holds. All ranks train on the same rows.
"""

import json
import os
import sys
from pathlib import Path

import torch

from forerun.settings.load import settings_from
from forerun.step.build import bind_step, prepare_model
from forerun.step.heads import generic_workload
from forerun.step.parallel import mesh_of_ranks, whole
from forerun.step.sharding import shard
from forerun.step.training_step import StepObserver
from forerun.train.loop import seed_everything
from forerun.train.ranks import join_group, rank

MICRO_BATCHES, STEPS = 4, 3


def main(folder, text):
    torch.set_num_threads(1)
    settings = settings_from({
        "name": "a", "workload": "causal-lm",
        "model": {"name": "tiny-llama", "config": {"num_hidden_layers": 4, "tie_word_embeddings": False}},
        "batch": {"micro_batch_size": 2, "sequence_length": 32, "padding": "fixed",
                  "gradient_accumulation_steps": MICRO_BATCHES},
        "precision": "fp32", "optimizer": {"learning_rate": 1e-3, "max_gradient_norm": 0.5},
        "parallel": json.loads(text),
    })  # fmt: skip
    join_group(settings, "cpu")
    seed_everything(0)
    workload = generic_workload("causal-lm")
    model, mesh = prepare_model(settings, workload, pretrained=False), mesh_of_ranks(settings, "cpu")
    if mesh is not None:
        shard(model, settings, mesh)
    step = bind_step(settings, workload, model, "cpu", mesh=mesh)
    generator = torch.Generator().manual_seed(5)
    results = []
    for _ in range(STEPS):
        rows = [torch.randint(3, 60, (2, 32), generator=generator) for _ in range(MICRO_BATCHES)]
        result = step.run([{"input_ids": ids, "labels": ids.clone()} for ids in rows], StepObserver())
        results.append([float(result.loss), float(result.gradient_norm)])
    weights = {name: whole(p.detach()) for name, p in step.model.named_parameters()}
    torch.save(weights, Path(folder) / f"weights-{rank()}.pt")
    if rank() == 0:
        print(json.dumps(results), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


if __name__ == "__main__":
    main(*sys.argv[1:])
