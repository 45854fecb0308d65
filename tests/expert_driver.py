"""One of two processes over which a small mixture of each family is dealt; rank 0 prints what came out as JSON.

For each family: the loss over both rows in one model, the sum of the losses of the ranks, and how far gradients lie
apart, of their size.
"""

import copy

import torch
import torch.distributed as dist
from tests.rank_results import print_and_end
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.errors import ForerunError
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.parallel import mesh_of_ranks, whole
from forerun.step.sharding import shard
from forerun.train.ranks import join_group, rank

LENGTH, RANKS = 32, 2
SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97, "pad_token_id": 0, "head_dim": 8,
    "bos_token_id": 1, "eos_token_id": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "shared_expert_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 8, "tie_word_embeddings": False,
}  # fmt: skip
ONE_SIDED = "mixtral, one-sided"
"""Every row goes to the experts of the first rank, and none to those of the other."""
FAMILIES = (
    "mixtral", ONE_SIDED, "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "glm4_moe", "granitemoe", "llama"
)  # fmt: skip


def settings():
    return settings_from({
        "name": "a", "workload": "causal-lm", "model": {"name": "tiny-llama"},
        "parallel": {"shard": RANKS, "expert": RANKS},
        "batch": {"micro_batch_size": 1, "sequence_length": LENGTH},
    })  # fmt: skip


def _first_experts(_module, _inputs, output):
    logits, weights, chosen = output
    return logits, weights, torch.arange(chosen.shape[1]).expand_as(chosen)


def compared(family):
    torch.manual_seed(0)
    own = {} if family not in ("deepseek_v2", "deepseek_v3") else {"num_key_value_heads": 4, "head_dim": 4}
    kind = family.partition(",")[0]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **own})).train()
    for layer in model.model.layers if family == ONE_SIDED else ():
        layer.mlp.gate.register_forward_hook(_first_experts)
    workload, dealt = generic_workload("causal-lm"), copy.deepcopy(model)
    ids = torch.randint(3, 97, (RANKS, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = workload.loss(model, {"input_ids": ids, "labels": ids}).sum
    expected.backward()
    try:
        shard(dealt, settings(), mesh_of_ranks(settings(), "cpu"))
    except ForerunError as error:
        return str(error)
    row = ids[rank() : rank() + 1]
    part = workload.loss(dealt, {"input_ids": row, "labels": row}).sum
    part.backward()
    loss = part.detach().clone()
    dist.all_reduce(loss)
    error = 0.0
    for (name, one), (_, other) in zip(model.named_parameters(), dealt.named_parameters(), strict=True):
        if one.grad is None or not one.grad.norm() > 0:
            continue
        summed = RANKS * whole(other.grad)  # FSDP averages over ranks
        error = max(error, float((summed - one.grad).norm() / one.grad.norm()))
        assert summed.shape == one.grad.shape, name
    return {"whole_loss": expected.item(), "loss": loss.item(), "gradient_error": error}


def main():
    torch.set_num_threads(1)
    join_group(settings(), "cpu")
    print_and_end({family: compared(family) for family in FAMILIES})


if __name__ == "__main__":
    main()
