"""The same layout in the words of torchtitan (TOML) and Megatron-LM (arguments), for causal language models.

torchtitan 0.2.2 (`torchtitan/config/job_config.py`, read) has sequence parallelism wherever layers are split.
Megatron-FSDP shards as FSDP2 does; its flags are those of Megatron-LM's own guide (megatron_fsdp, read 2026-11-23).
Not the same there: kernels, the order of exchanges, what is recomputed where `selective`; so memory and time differ.
"""

from typing import Any

from forerun.errors import InvalidSettings
from forerun.models.build import config_of
from forerun.settings.devices import ParallelSettings
from forerun.settings.schema import Settings

TITAN_FLAVORS: dict[tuple[Any, ...], tuple[str, str]] = {
    ("llama", 4096, 32, 32, 8): ("llama3", "8B"), ("llama", 8192, 80, 64, 8): ("llama3", "70B"),
    ("llama", 16384, 126, 128, 8): ("llama3", "405B"), ("qwen3", 4096, 36, 32, 8): ("qwen3", "8B"),
}  # fmt: skip
"""Type, width, blocks, heads and key-value heads → torchtitan's name and flavor (its models' `__init__.py`, 0.2.2)."""
TITAN_SCHEDULES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zero-bubble": "ZBVZeroBubble",
}  # fmt: skip
"""Schedules as `torch.distributed.pipelining` calls them (`get_schedule_class`, 2.13)."""
UNCLIPPED = 1e6
"""torchtitan always clips; no norm of gradients comes near this."""
RECOMPUTED = {"none": "none", "blocks": "full", "selective": "selective"}


def torchtitan_settings(settings: Settings) -> str:
    """A configuration file of torchtitan with the layout of `settings`.

    Raises:
        InvalidSettings: a model that it has no flavor of, or weights that are not kept in fp32 beside bf16 products.
    """
    config = _text_config(settings, "torchtitan")
    names = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    flavor_of = TITAN_FLAVORS.get(tuple(getattr(config, name, None) for name in names))
    if flavor_of is None:
        flavors = ", ".join(" ".join(flavor) for flavor in TITAN_FLAVORS.values())
        raise InvalidSettings(f"--script torchtitan: flavors that are known: {flavors}; found {settings.model.name}.")
    _require_bf16(settings, "torchtitan")
    _require_titans_loop(settings)
    model, flavor = flavor_of
    parallel, batch, optimizer = settings.parallel, settings.batch, settings.optimizer
    shard = parallel.data_ranks // parallel.replicate if parallel.kind == "fsdp" else 1
    at_once = 1 if parallel.pipeline == 1 else batch.gradient_accumulation_steps
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": settings.name},
        "model": {
            "name": model, "flavor": flavor, "hf_assets_path": f"./assets/hf/{settings.model.name}",
            **({"converters": ["quantize.linear.float8"]} if settings.float8.recipe != "none" else {}),
        },
        "optimizer": {
            "name": "AdamW", "lr": optimizer.learning_rate, "weight_decay": optimizer.weight_decay,
            "implementation": "fused" if optimizer.implementation == "auto" else optimizer.implementation,
        },
        "lr_scheduler": {"warmup_steps": settings.schedule.warmup_steps},
        "training": {
            "local_batch_size": batch.micro_batch_size * at_once,
            "global_batch_size": settings.global_batch_size, "seq_len": batch.sequence_length,
            "max_norm": optimizer.max_gradient_norm or UNCLIPPED,
            **({"steps": settings.schedule.max_steps} if settings.schedule.max_steps is not None else {}),
            "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": parallel.data_ranks // shard,
            "data_parallel_shard_degree": shard,
            "tensor_parallel_degree": parallel.tensor,
            **({"enable_async_tensor_parallel": True} if parallel.async_tensor else {}),
            **_titan_pipeline(settings),
            "context_parallel_degree": parallel.context,
            **({"expert_parallel_degree": parallel.expert} if parallel.expert > 1 else {}),
            **({"fsdp_reshard_after_forward": "never"} if parallel.keeps_gathered and parallel.pipeline == 1 else {}),
        },
        "activation_checkpoint": {"mode": RECOMPUTED[settings.activation_checkpointing], "selective_ac_option": "op"},
        "checkpoint": {
            "enable": True, "interval": settings.checkpoints.every_steps,
            "keep_latest_k": settings.checkpoints.keep_last, "async_mode": "async_with_pinned_mem",
        },
    }  # fmt: skip
    if settings.compile != "none":
        with_loss = ["loss"] if settings.compile_unit == "blocks-and-loss" else []
        sections["compile"] = {"enable": True, "components": ["model", *with_loss]}
    if settings.float8.recipe != "none":
        sections["quantize.linear.float8"] = _titan_float8(settings)
    return "".join(_toml_section(name, values) for name, values in sections.items())


def _require_titans_loop(settings: Settings) -> None:
    """Refuse what torchtitan's loop does in another way.

    Raises:
        InvalidSettings: gradients that are sent once a step, exchanges in parts beside eager products, or another
            engine.
    """
    parallel, batch = settings.parallel, settings.batch
    if parallel.engine != "pytorch":
        raise InvalidSettings(
            f"--script torchtitan: runs PyTorch's own layouts; found parallel.engine={parallel.engine!r}. Set it to "
            f"pytorch, or write --script {parallel.engine}."
        )
    if parallel.zero == 1 and parallel.pipeline == 1 and batch.gradient_accumulation_steps > 1:
        raise InvalidSettings(
            "--script torchtitan: its loop sends gradients after each micro-batch; found parallel.zero=1 with "
            f"batch.gradient_accumulation_steps={batch.gradient_accumulation_steps}. Set parallel.zero to 2."
        )
    if parallel.async_tensor and settings.compile == "none":
        raise InvalidSettings(
            "--script torchtitan: its asynchronous tensor parallelism is a pass of compiled blocks; found "
            "compile='none' with parallel.async_tensor=true. Set compile to default."
        )


def _titan_float8(settings: Settings) -> dict[str, Any]:
    """Words of `Float8Linear`, which takes no gathers in float8 beside a named recipe; without one it is tensorwise."""
    own = settings.float8
    if own.skip:
        raise InvalidSettings(
            f"--script torchtitan: its layers have other names; found float8.skip={own.skip}. Leave it out, and name "
            f"layers in filter_fqns of what is written."
        )
    return {
        **({"recipe_name": own.recipe} if own.recipe != "tensorwise" else {}), "filter_fqns": ["output"],
        "enable_fsdp_float8_all_gather": own.all_gather, "precompute_float8_dynamic_scale_for_fsdp": own.all_gather,
    }  # fmt: skip


def _titan_pipeline(settings: Settings) -> dict[str, Any]:
    """Words of a pipeline: there a local batch is all that goes through it in a step."""
    parallel = settings.parallel
    if parallel.pipeline == 1:
        return {"pipeline_parallel_degree": 1}
    return {
        "pipeline_parallel_degree": parallel.pipeline,
        "pipeline_parallel_schedule": TITAN_SCHEDULES[parallel.schedule],
        "pipeline_parallel_microbatch_size": settings.batch.micro_batch_size,
    }


def megatron_arguments(settings: Settings) -> str:
    """Arguments of Megatron-LM's `pretrain_gpt.py` with the layout of `settings`, a line each.

    Raises:
        InvalidSettings: a model that is not built like LLaMA, or weights that are not kept in fp32 beside bf16
            products.
    """
    config = _text_config(settings, "megatron")
    if getattr(config, "model_type", "") not in ("llama", "mistral"):
        raise InvalidSettings(
            f"--script megatron: models built like LLaMA; found {settings.model.name} of type {config.model_type}."
        )
    _require_bf16(settings, "megatron")
    batch, optimizer = settings.batch, settings.optimizer
    rope = getattr(config, "rope_theta", None) or (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    tied = [] if config.tie_word_embeddings else ["--untie-embeddings-and-output-weights"]
    lines = [
        f"--num-layers {config.num_hidden_layers}", f"--hidden-size {config.hidden_size}",
        f"--ffn-hidden-size {config.intermediate_size}", f"--num-attention-heads {config.num_attention_heads}",
        f"--group-query-attention --num-query-groups {config.num_key_value_heads}",
        "--swiglu --normalization RMSNorm --disable-bias-linear", *tied,
        "--position-embedding-type rope", *([f"--rotary-base {int(rope)}"] if rope else []),
        f"--seq-length {batch.sequence_length}", f"--max-position-embeddings {batch.sequence_length}",
        f"--micro-batch-size {batch.micro_batch_size}", f"--global-batch-size {settings.global_batch_size}",
        *_megatron_layout(settings),
        *{"none": [], "selective": ["--recompute-granularity selective"],
          "blocks": ["--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"],
          }[settings.activation_checkpointing],
        "--bf16", f"--lr {optimizer.learning_rate:g}", f"--weight-decay {optimizer.weight_decay:g}",
        f"--lr-warmup-iters {settings.schedule.warmup_steps}", f"--save-interval {settings.checkpoints.every_steps}",
        *([f"--clip-grad {optimizer.max_gradient_norm:g}"] if optimizer.max_gradient_norm else ["--clip-grad 0"]),
        *([f"--train-iters {settings.schedule.max_steps}"] if settings.schedule.max_steps else []),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _megatron_layout(settings: Settings) -> list[str]:
    parallel = settings.parallel
    lines = [
        f"--tensor-model-parallel-size {parallel.tensor}", f"--pipeline-model-parallel-size {parallel.pipeline}",
        *([f"--context-parallel-size {parallel.context}"] if parallel.context > 1 else []),
        *([f"--expert-model-parallel-size {parallel.expert}"] if parallel.expert > 1 else []),
        *(["--expert-tensor-parallel-size 1"] if parallel.expert > 1 and parallel.tensor > 1 else []),
    ]  # fmt: skip
    if parallel.schedule not in ("1f1b", "interleaved"):
        raise InvalidSettings(
            f"--script megatron: has the schedules 1f1b and interleaved; found parallel.schedule={parallel.schedule!r}."
        )
    if settings.float8.recipe not in ("none", "tensorwise") or settings.float8.skip:
        raise InvalidSettings(
            f"--script megatron: has the recipe tensorwise, for all layers; found float8.recipe="
            f"{settings.float8.recipe!r}, float8.skip={settings.float8.skip}. Set them to tensorwise and []."
        )
    if settings.float8.recipe == "tensorwise":
        lines.append("--fp8-format hybrid --fp8-recipe tensorwise")
    if parallel.virtual_stages > 1:
        lines.append(f"--num-virtual-stages-per-pipeline-rank {parallel.virtual_stages}")
    if parallel.sequence_parallel:
        lines.append("--sequence-parallel")
    if parallel.async_tensor:
        lines.append("--tp-comm-overlap")
    if parallel.engine == "megatron":  # what its forecast is of, and its own default is not
        lines.append("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
        if parallel.expert > 1:
            lines.append("--moe-grouped-gemm --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep")
            lines.append("--moe-permute-fusion")
        if parallel.expert_overlap:
            lines.append("--overlap-moe-expert-parallel-comm")
    if parallel.kind != "fsdp":
        return lines
    if parallel.zero == 1 or parallel.pipeline > 1:
        return [*lines, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", *_copies(parallel)]
    strategy = "optim_grads" if parallel.zero == 2 else "optim_grads_params"
    lines += [
        f"--use-megatron-fsdp --data-parallel-sharding-strategy {strategy}",
        "--no-gradient-accumulation-fusion --use-distributed-optimizer --ckpt-format fsdp_dtensor",
    ]
    if parallel.replicate > 1:
        lines += [*_copies(parallel), "--outer-dp-sharding-strategy no_shard"]
    return lines


def _copies(parallel: ParallelSettings) -> list[str]:
    return [f"--num-distributed-optimizer-instances {parallel.replicate}"] if parallel.replicate > 1 else []


def _text_config(settings: Settings, tool: str) -> Any:
    if settings.workload != "causal-lm" or settings.adapter.kind != "none" or settings.quantization != "none":
        raise InvalidSettings(
            f"--script {tool}: trains whole causal language models; found workload={settings.workload!r}, "
            f"adapter.kind={settings.adapter.kind!r}, quantization={settings.quantization!r}."
        )
    return config_of(settings)


def _require_bf16(settings: Settings, tool: str) -> None:
    is_wide = settings.model.dtype in ("auto", "float32")
    if settings.precision != "bf16-mixed" or not is_wide or settings.optimizer.name != "adamw":
        raise InvalidSettings(
            f"--script {tool}: written for bf16 products over fp32 weights with AdamW; found precision="
            f"{settings.precision!r}, model.dtype={settings.model.dtype!r}, optimizer.name={settings.optimizer.name!r}."
        )


def _toml_section(name: str, values: dict[str, Any]) -> str:
    return f"\n[{name}]\n" + "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
