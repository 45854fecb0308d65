"""One of two processes that share the sequences of a small model of each family; rank 0 prints what came out as JSON.

For each family: the loss over whole rows and over this rank's pieces, and how far gradients lie apart, of their size.
"""

import torch
import torch.distributed as dist
from tests.rank_results import print_and_end
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.errors import NotSupported
from forerun.settings.load import settings_from
from forerun.step.context_parallel import SHARED, share_sequences
from forerun.step.heads import generic_workload
from forerun.train.ranks import join_group

LENGTH = 32
SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "pad_token_id": 0, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = {
    "llama": {}, "mistral": {}, "olmo2": {}, "phi3": {}, "qwen2": {}, "qwen3": {}, "smollm3": {}, "gemma": {},
    "granite": {}, "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0}, "cohere": {}, "glm4": {},
    "mixtral": {"num_local_experts": 4}, "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2},
    "gpt_neox": {"hidden_dropout": 0.0, "attention_dropout": 0.0}, "gemma2": {}, "gpt_neo": {},
}  # fmt: skip


def settings():
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "parallel": {"context": 2},
        "batch": {"micro_batch_size": 2, "sequence_length": LENGTH},
    })  # fmt: skip


def compared(family, fields):
    torch.manual_seed(0)
    sizes = {**SIZES, **fields}
    if family == "gpt_neo":
        sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).train()
    workload = generic_workload("causal-lm")
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids.clone()}
    whole = workload.loss(model, batch).sum
    whole.backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    try:
        share_sequences(model, settings(), "cpu")
    except NotSupported as error:
        return str(error)
    with getattr(model, SHARED).during_step(model, None):
        part = workload.loss(model, batch).sum
        part.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for tensor in (*gradients, loss := part.detach().clone()):
        dist.all_reduce(tensor)
    error = max(float((a - b).norm() / b.norm()) for a, b in zip(gradients, expected, strict=True) if b.norm() > 0)
    return {"whole_loss": float(whole), "loss": float(loss), "gradient_error": error}


def main():
    torch.set_num_threads(1)
    join_group(settings(), "cpu")
    print_and_end({family: compared(family, fields) for family, fields in FAMILIES.items()})


if __name__ == "__main__":
    main()
