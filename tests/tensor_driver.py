"""One of two processes that split the layers of a small model of each family; rank 0 prints what came out as JSON.

For each family, with the sequence whole between split layers and cut: the loss of whole layers and of split ones, and
how far gradients lie apart, of their size.
"""

import torch
from tests.context_driver import SIZES
from tests.rank_results import print_and_end
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.parallel import whole
from forerun.step.tensor_parallel import split, split_loss
from forerun.train.ranks import join_group

LENGTH, VOCABULARY = 32, 96
FAMILIES = {
    "llama": {}, "phi3": {}, "olmo2": {}, "olmo3": {}, "glm": {}, "glm4": {}, "qwen3": {}, "cohere": {}, "gemma": {},
    "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def settings(sequence_parallel):
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"},
        "parallel": {"tensor": 2, "sequence_parallel": sequence_parallel},
        "batch": {"micro_batch_size": 2, "sequence_length": LENGTH},
    })  # fmt: skip


def compared(family, fields, sequence_parallel, mesh):
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": VOCABULARY, **fields}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).train()
    workload = generic_workload("causal-lm")
    ids = torch.randint(3, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids.clone()}
    loss = workload.loss(model, batch).sum
    loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    elements = sum(p.numel() for p in model.parameters())
    given = settings(sequence_parallel)
    split(model, given, mesh)
    with split_loss(given):
        other = workload.loss(model, batch).sum
        other.backward()
    found = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    error = max(float((found[name] - e).norm() / e.norm()) for name, e in expected.items() if e.norm() > 0)
    local = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.parameters())
    return {"whole_loss": float(loss), "loss": float(whole(other)), "gradient_error": error, "local": local / elements}


def main():
    torch.set_num_threads(1)
    join_group(settings(False), "cpu")
    mesh = init_device_mesh("cpu", (2,))
    print_and_end(
        {
            f"{family}{' cut' if is_cut else ''}": compared(family, fields, is_cut, mesh)
            for family, fields in FAMILIES.items()
            for is_cut in (False, True)
        }
    )


if __name__ == "__main__":
    main()
