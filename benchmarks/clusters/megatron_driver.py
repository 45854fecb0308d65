"""One GPT of Megatron-Core on this rank: its own layers, schedules, gradient buffers and optimizer, three steps.

    torchrun megatron_driver.py '{"hidden": 512, …}'      under `forerun exec`; prints MEMORY {json} after each step

The arguments are those of `megatron_rows.py`. Layers are megatron.core's local ones, since Transformer Engine's need a
GPU to be imported. Kernels that need it are stood in for by ones that read, write and keep the same bytes: fused
causal softmax, FusedAdam, flash attention (PyTorch's). Where the source ran Transformer Engine, its cuBLAS workspace is
held, and the scores of attention are not in Megatron's lasting buffer, as its attention does not use that.
"""

import json
import math
import os
import sys
import types
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

STEPS = 3


class CausalSoftmax:
    """Megatron's extension `scaled_upper_triang_masked_softmax_cuda` in memory and passes: one kernel each way."""

    @staticmethod
    def forward(scores: Tensor, scale: Tensor) -> Tensor:
        """Probabilities in the dtype of the scores."""
        return torch.softmax(scores, -1)

    @staticmethod
    def backward(gradient: Tensor, probabilities: Tensor, scale: Tensor) -> Tensor:
        """Gradient of the scores, written over that of the probabilities as the extension does."""
        return torch.ops.aten._softmax_backward_data.out(
            gradient, probabilities, -1, probabilities.dtype, grad_input=gradient
        )


def stand_in_kernels() -> None:
    """Give Megatron the kernels that need its CUDA extensions."""
    module = types.ModuleType("scaled_upper_triang_masked_softmax_cuda")
    module.forward, module.backward = CausalSoftmax.forward, CausalSoftmax.backward
    sys.modules[module.__name__] = module
    general = types.ModuleType("scaled_masked_softmax_cuda")
    general.get_batch_per_block = lambda *sizes: 1
    sys.modules[general.__name__] = general
    import megatron.core.optimizer as optimizers
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # 0.16.1 reads the name where it could not be imported
    optimizers.Adam = partial(torch.optim.AdamW, fused=True)


WORKSPACE_BYTES = {True: 33_554_432, False: 4_194_304}
"""By whether the capability is 9 or more: `get_cublas_workspace_size_bytes` (NVIDIA/TransformerEngine 0004dbd0,
`transformer_engine/pytorch/module/base.py`)."""


def engine_memory() -> Tensor:
    """What Transformer Engine has on the device besides its layers; the caller keeps it."""
    from megatron.core import parallel_state as ranks

    buffer = ranks.get_global_memory_buffer()
    buffer.get_tensor = lambda shape, dtype, name, mem_alloc_context=None: torch.empty(
        shape, dtype=dtype, device=torch.cuda.current_device()
    )
    is_hopper = torch.cuda.get_device_capability()[0] >= 9
    return torch.empty(WORKSPACE_BYTES[is_hopper], dtype=torch.uint8, device="cuda")


class FlashAttention(nn.Module):
    """Attention by PyTorch's flash kernel where the source ran flash-attn's; (S, B, H, D) as Megatron has it."""

    def __init__(self, config, *args, **kwargs):
        super().__init__()
        self.dropout = config.attention_dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args, **kwargs) -> Tensor:
        """Attended values, (S, B, H * D)."""
        heads = [each.permute(1, 2, 0, 3) for each in (query, key, value)]
        is_grouped = query.shape[2] != key.shape[2]
        out = functional.scaled_dot_product_attention(
            *heads, dropout_p=self.dropout, is_causal=True, enable_gqa=is_grouped
        )
        return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)


def layer_config(a: dict):
    """Megatron's TransformerConfig of the arguments."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = {}
    if a["experts"]:
        experts = {
            "num_moe_experts": a["experts"], "moe_router_topk": a["topk"],
            "moe_router_load_balancing_type": a["balancing"], "moe_token_dispatcher_type": a["dispatcher"],
            "moe_ffn_hidden_size": a["ffn"], "expert_model_parallel_size": a["ep"],
            "expert_tensor_parallel_size": a["etp"],
        }  # fmt: skip
    return TransformerConfig(
        num_layers=a["layers"], hidden_size=a["hidden"], num_attention_heads=a["heads"],
        num_query_groups=a["kv_heads"], ffn_hidden_size=a["ffn"], tensor_model_parallel_size=a["tp"],
        pipeline_model_parallel_size=a["pp"], virtual_pipeline_model_parallel_size=a["vp"] if a["vp"] > 1 else None,
        sequence_parallel=a["sequence_parallel"], bf16=a["precision"] == "bf16", fp16=a["precision"] == "fp16",
        params_dtype=dtype_of(a), pipeline_dtype=dtype_of(a), gated_linear_unit=a["swiglu"],
        activation_func=functional.silu if a["swiglu"] else functional.gelu, add_bias_linear=a["bias"],
        bias_activation_fusion=a["fused_activation"], bias_dropout_fusion=True, masked_softmax_fusion=True,
        hidden_dropout=a["hidden_dropout"], attention_dropout=a["attention_dropout"],
        attention_softmax_in_fp32=False, gradient_accumulation_fusion=False, deterministic_mode=False,
        normalization=a["normalization"], calculate_per_token_loss=a["per_token_loss"],
        num_layers_in_first_pipeline_stage=a["first_layers"], num_layers_in_last_pipeline_stage=a["last_layers"],
        account_for_embedding_in_pipeline_split=a["embedding_counts"],
        account_for_loss_in_pipeline_split=a["embedding_counts"],
        batch_p2p_comm=not (a["vp"] > 1 and a["overlap_p2p"]), overlap_p2p_comm=a["vp"] > 1 and a["overlap_p2p"],
        microbatch_group_size_per_vp_stage=a["group_size"] or a["pp"], use_cpu_initialization=False,
        **experts,
    )  # fmt: skip


def dtype_of(a: dict) -> torch.dtype:
    """Dtype of weights."""
    return torch.bfloat16 if a["precision"] == "bf16" else torch.float16


def layer_spec(a: dict):
    """Megatron's local layer, with flash attention where it was used."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    spec = get_gpt_layer_local_spec(
        num_experts=a["experts"] or None, moe_grouped_gemm=False, normalization=a["normalization"]
    )
    if a["flash"]:
        spec.submodules.self_attention.submodules.core_attention = FlashAttention
    return spec


def model_chunks(a: dict, config) -> list:
    """Model chunks of this rank behind Megatron's gradient buffers."""
    from megatron.core import parallel_state as ranks
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.module import Float16Module

    chunks = []
    for stage in range(max(1, a["vp"])):
        virtual = stage if a["vp"] > 1 else None
        model = GPTModel(
            config=config, transformer_layer_spec=layer_spec(a), vocab_size=a["vocab"],
            max_sequence_length=a["positions"],
            pre_process=ranks.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual),
            post_process=ranks.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual),
            share_embeddings_and_output_weights=not a["untied"], position_embedding_type=a["position_embedding"],
            vp_stage=virtual,
        )  # fmt: skip
        chunks.append(Float16Module(config, model.cuda()))
    buckets = DistributedDataParallelConfig(
        grad_reduce_in_fp32=a["precision"] == "bf16", overlap_grad_reduce=a["overlap_reduce"],
        overlap_param_gather=a["overlap_gather"], use_distributed_optimizer=a["distributed_optimizer"],
        average_in_collective=a["average_in_collective"],
    )  # fmt: skip
    return [
        DistributedDataParallel(config, buckets, chunk, disable_bucketing=number > 0)
        for number, chunk in enumerate(chunks)
    ]


def optimizer_of(a: dict, chunks: list):
    """Megatron's mixed-precision Adam."""
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam", lr=1e-4, weight_decay=0.01, clip_grad=1.0, bf16=a["precision"] == "bf16",
        fp16=a["precision"] == "fp16", params_dtype=dtype_of(a),
        use_distributed_optimizer=a["distributed_optimizer"], overlap_param_gather=a["overlap_gather"],
        loss_scale=1.0 if a["precision"] == "fp16" else None,
    )  # fmt: skip
    return get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)


def batch_of(a: dict) -> dict[str, Tensor]:
    """What pretrain_gpt.py has on the device for a micro-batch."""
    size = (a["micro_batch"], a["length"])
    tokens = torch.randint(0, a["vocab"], size).cuda()
    return {
        "tokens": tokens, "labels": tokens.clone(), "loss_mask": torch.ones(size).cuda(),
        "position_ids": torch.arange(a["length"]).repeat(a["micro_batch"], 1).cuda(),
        "attention_mask": torch.ones(a["micro_batch"], 1, a["length"], a["length"], dtype=torch.bool).cuda(),
    }  # fmt: skip


def masked_loss(mask: Tensor, output: Tensor):
    """Sum of losses and number of tokens, as pretrain_gpt.py hands them on."""
    losses = output.view(-1).float()
    mask = mask.view(-1).float()
    total, count = torch.sum(losses * mask), mask.sum().to(torch.int)
    return total, count, {"lm loss": torch.cat([total.detach().view(1), count.view(1)])}


def mean_loss(mask: Tensor, output: Tensor):
    """Mean loss of a micro-batch."""
    total, count, shown = masked_loss(mask, output)
    return total / count, shown


def main(a: dict) -> None:
    """Three steps; memory after each."""
    stand_in_kernels()
    from megatron.core import parallel_state as ranks
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    ranks.initialize_model_parallel(
        a["tp"], a["pp"], a["vp"] if a["vp"] > 1 else None, expert_model_parallel_size=a["ep"],
        expert_tensor_parallel_size=a["etp"] or None, create_gloo_process_groups=False,
    )  # fmt: skip
    model_parallel_cuda_manual_seed(1234)
    workspace = engine_memory() if a["engine"] else None
    data_ranks = ranks.get_data_parallel_world_size()
    init_num_microbatches_calculator(0, None, a["global_batch"], a["micro_batch"], data_ranks)
    config = layer_config(a)
    chunks = model_chunks(a, config)
    optimizer = optimizer_of(a, chunks)
    config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
    if a["overlap_reduce"]:
        config.no_sync_func = [chunk.no_sync for chunk in chunks] if len(chunks) > 1 else chunks[0].no_sync
    schedule = get_forward_backward_func()

    def forward_step(batches, model):
        batch = next(batches)
        out = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
        return out, partial(masked_loss if a["per_token_loss"] else mean_loss, batch["loss_mask"])

    for _ in range(STEPS):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        batches = [iter(lambda: batch_of(a), None) for _ in chunks]
        schedule(
            forward_step_func=forward_step, data_iterator=batches if len(chunks) > 1 else batches[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=math.ceil(a["global_batch"] / a["micro_batch"] / data_ranks),
            seq_length=a["length"], micro_batch_size=a["micro_batch"], forward_only=False,
        )  # fmt: skip
        optimizer.step()
        peak, between = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        print("MEMORY", json.dumps({"peak": peak, "between": between}), file=sys.stderr, flush=True)
    del workspace


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
