"""One process of a causal language model's training: `torchrun … layout_driver.py FOLDER SETTINGS-JSON STEPS`.

Settings are those that differ from the driver's own. Rank 0 writes weights and prints losses and gradient norms as JSON.
"""

import json
import os
import sys
from pathlib import Path

import torch

from forerun.data.token_data import TokenData, TokenSample
from forerun.own.scoring import held_out_data
from forerun.own.token_scores import score_tokens
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.heads import generic_workload
from forerun.step.parallel import of_all_ranks, whole
from forerun.train.loop import Training, seed_everything
from forerun.train.ranks import join_group, rank

GLOBAL_MICRO_BATCHES = 4


def training(folder, changes, steps):
    settings = settings_from({
        "name": "a", "workload": "causal-lm",
        "model": {"name": changes.get("model", "tiny-llama"), "config": changes.get("config", {})},
        "batch": {"micro_batch_size": 2, "sequence_length": 32, "padding": changes.get("padding", "bucketed")},
        "optimizer": {"learning_rate": 1e-3, "max_gradient_norm": 0.5}, "schedule": {"epochs": 9, "max_steps": steps},
        "compile": changes.get("compile", "none"), "compile_unit": "blocks" if "compile" in changes else "model",
        "activation_checkpointing": changes.get("recomputed", "none"),
        "cross_entropy": changes.get("cross_entropy", "full"),
        "checkpoints": {"every_steps": 3 if changes.get("is_scored") else 2, "keep_last": 10, "sharded": changes.get("sharded", False)},
        "parallel": changes.get("parallel", {}),
        **({"cluster": {"gpus_per_node": changes["gpus_per_node"]}} if "gpus_per_node" in changes else {}),
        "adapter": changes.get("adapter", {}), "precision": changes.get("precision", "fp32"),
        **({"float8": {"recipe": changes["float8"]}, "precision": "bf16-mixed"} if "float8" in changes else {}),
    })  # fmt: skip
    accumulation = GLOBAL_MICRO_BATCHES // settings.parallel.data_ranks
    batch = settings.batch.model_copy(update={"gradient_accumulation_steps": accumulation})
    settings = settings.model_copy(update={"batch": batch})
    as_trained = settings.parallel.model_copy(update={"engine": "pytorch"})  # the engine's own parts run as well
    join_group(settings.model_copy(update={"parallel": as_trained}), "cpu")
    generator = torch.Generator().manual_seed(5)
    samples = [
        TokenSample(torch.randint(3, 60, (3 + 7 * number % 30,), generator=generator).tolist()) for number in range(21)
    ]
    seed_everything(0)
    step = build_step(settings, generic_workload("causal-lm"), "cpu", pretrained=False)
    held_out = held_out_data(settings, samples[:5], 0)

    def evaluate(step, number):
        return score_tokens(step, held_out).metrics()

    own = evaluate if changes.get("is_scored") else None
    return Training(step, TokenData(settings, samples), Path(folder), evaluate=own)


def main(folder, text, steps):
    torch.set_num_threads(1)
    run = training(folder, json.loads(text), int(steps))
    reports = list(run.steps())
    own = {name: whole(p.detach()) for name, p in run.step.model.named_parameters()}
    weights = {name: weight for stage in of_all_ranks(own) for name, weight in stage.items()}
    local = sum(getattr(p, "_local_tensor", p).numel() for p in run.step.model.parameters())
    if rank() == 0:
        torch.save(weights, Path(folder) / "weights.pt")
        losses, norms = [report.loss for report in reports], [report.gradient_norm for report in reports]
        print(
            json.dumps(
                {
                    "losses": losses,
                    "norms": norms,
                    "first": run.resumed_from,
                    "local": local,
                    "scores": [scores["loss"] for _, scores in run.evaluations],
                }
            ),
            flush=True,
        )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        os._exit(0)  # gloo's threads may end the process otherwise while it is torn down


if __name__ == "__main__":
    main(*sys.argv[1:])
