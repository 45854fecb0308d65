"""Runs as settings files: causal decoders under DDP, FSDP, and tensor, context, pipeline and expert parallelism.

Taken where the words of `docs/words.md` say what the source did, or the nearest thing to it: `differs` then says in
what. Megatron's distributed optimizer is `zero: 1`, its fused layers are asked as compiled blocks. Beside adapters it
gathers nothing but them, so that their frozen weights are asked as whole copies. Everything else is refused with the
word that is missing. Not covered: pipelines of more than `MOST_STAGES`.
"""

from typing import Any

from benchmarks.clusters.questions import (
    NETWORKS,
    Question,
    Refusal,
    checkpointing_of,
    gpu_of,
)
from benchmarks.clusters.rows import ClusterRun
from benchmarks.clusters.titan_rows import GATHERED, LOSS_COMPILED

MODELS = {
    "Llama-2-7B": "llama-2-7b", "Llama-2-13B": "llama-2-13b", "Llama-2-70B": "llama-2-70b", "Llama-3-8B": "llama-3-8b",
    "Llama-3.1-8B": "llama-3-8b", "Llama-3-70B": "llama-3-70b", "Llama-3.1-70B": "llama-3-70b",
    "Llama-3.1-405B": "llama-3.1-405b", "Qwen3-30B-A3B": "qwen3-30b-a3b", "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "DeepSeek-V3": "deepseek-r1",
}  # fmt: skip
"""Llama 3.1 has the shape of Llama 3: its positions are scaled, which costs nothing at this accuracy.
DeepSeek-R1 has that of DeepSeek-V3."""
CHECKPOINTING = {"none": "none", "full": "blocks", "op": "selective"}
SCHEDULES = {"": "1f1b", "1F1B": "1f1b", "interleaved 1F1B": "interleaved", "Interleaved 1F1B": "interleaved"}
ATTENTION = {"SDPA (flash)": "sdpa:flash", "flash-attention 2": "flash_attention_2"}
"""Where the source says; today's PyTorch takes cuDNN's on Hopper (`auto`), as Transformer Engine does."""
RACKS, RACK = ("gb200", "gb300"), 72
"""GPUs that NVLink joins in racks (NVL72), which the sources count as machines of four."""
UNKNOWN_FORMATS, BLOCKS = ("nv", "fp4"), ("mx", "finer", "block")
"""Products in four bits, and those with scales of blocks, by parts of their names."""
BRIDGE = "megatron-bridge performance summary"
LEAST_POSITIONS = 8192
"""Longer rows than these are given positions: Llama 3 has 8,192, Llama 2 half of that."""
MOST_STAGES = 64
"""Stages of a pipeline, times its parts, that one question traces."""
GRAPHS = ("FULL_CUDA_GRAPH", "MCORE_CUDA_GRAPH", "LAYER_CUDA_GRAPH")
"""Variables of MLPerf's configurations."""
RANK, ALPHA = 16, 32
"""Of every published LoRA of 70 billion weights: Megatron-Bridge's `llama3_70b_finetune_config` (recipes/llama/
llama3.py); of MLPerf's llama2_70b_lora the rank is stated, and which layers it tunes is assumed: the attention's."""
MLPERF_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def settings_question(run: ClusterRun) -> Question | Refusal:
    """The settings of a run, or the word that is missing."""
    missing = missing_word(run)
    if missing:
        return Refusal(f"settings: {missing}")
    gpu = gpu_of(run)
    micro, data, steps = run.whole("micro_batch"), run.whole("dp"), _steps(run)
    settings: dict[str, Any] = {
        "name": "published-run",
        "workload": "causal-lm",
        "model": {"name": _model(run), "config": _config(run), "attention": ATTENTION.get(run["attention"], "auto")},
        "precision": "bf16-mixed",
        "optimizer": {"name": "adamw", "implementation": "fused", "max_gradient_norm": 1.0},
        "batch": {
            "micro_batch_size": micro, "gradient_accumulation_steps": steps, "sequence_length": run.whole("seq_len"),
        },
        "data": {"examples": 100 * micro * steps * data},
        "activation_checkpointing": CHECKPOINTING[checkpointing_of(run) or "none"],
        "compile": ("reduce-overhead" if has_graphs(run) else "default") if _is_compiled(run) else "none",
        "parallel": _layout(run),
        "cluster": {
            "gpus_per_node": RACK if gpu in RACKS else run.whole("gpus_per_node", 8),
            "network": NETWORKS.get(run["network"], "auto"),
        },
    }  # fmt: skip
    if settings["compile"] != "none":
        settings["compile_unit"] = "blocks" if run["date"] < LOSS_COMPILED else "blocks-and-loss"
    if is_adapted(run):
        settings |= {"adapter": _adapter(run), "precision": "bf16-true"}
    if run["fp8"]:
        settings["float8"] = _float8(run)
    if "torchtitan" in run["family"]:  # its run_train.sh sets it
        settings["allocator"] = {"expandable_segments": True}
    if run.whole("cp") > 1 or run.whole("pp") > 1:
        settings["batch"]["padding"] = "fixed"
    return Question(
        "settings",
        gpu,
        settings,
        differences(run),
        asks_memory=_is_sharded(run) == ("FSDP" in run["sharding"]) or (_stage(run) == 1 and not _is_copied(run)),
    )


def has_graphs(run: ClusterRun) -> bool:
    """Whether the source says that Megatron-Core's step, or layers of it, are recorded as CUDA graphs."""
    named = str(run.arguments.get("cuda_graph_impl", "none")) != "none"
    by_variable = any(str(run.arguments.get(name)) in ("1", "True") for name in GRAPHS)
    is_own = _layout(run).get("engine") == "megatron"
    return is_own and (named or by_variable or "CUDA graph scopes" in run["notes"])


def hides_experts(run: ClusterRun) -> bool:
    """Whether the source says that rows go to experts beside the passes of another micro-batch."""
    return str(run.arguments.get("moe_a2a_overlap")) == "True" or "EP overlap on" in run["notes"]


def _float8(run: ClusterRun) -> dict[str, Any]:
    """Words of `float8`: a recipe where the source names one, gathers in float8 where it does."""
    recipe = next((each for each in ("rowwise_with_gw_hp", "rowwise") if each in run["fp8"]), "tensorwise")
    return {"recipe": recipe, "all_gather": GATHERED in run["fp8"] and _is_sharded(run)}


def is_adapted(run: ClusterRun) -> bool:
    """Whether adapters were trained."""
    return "LoRA" in run["task"] or "LoRA" in run["model"]


def _adapter(run: ClusterRun) -> dict[str, Any]:
    """Words of `adapter`."""
    targets = {"targets": MLPERF_TARGETS} if run["family"].startswith("mlperf") else {}
    return {"kind": "lora", "rank": RANK, "alpha": ALPHA, **targets}


def differences(run: ClusterRun) -> tuple[str, ...]:
    """What is asked in another way than the source did it."""
    is_tied = bool(run.arguments.get("tie_word_embeddings")) and run.whole("pp") > 1
    listed = [
        (not run["compile"] and not is_megatron(run), "compile not stated, taken as off"),
        (run["compile"] == "True" and not _is_compiled(run), "compiled blocks as eager ones"),
        (bool(run["fp8"]) and not _is_compiled(run), "casts to float8 as eager ones"),
        ("nanotron" in run["family"], "weights under autocast instead of bf16 beside fp32 copies"),
        (
            str(run.arguments.get("tp_linear_async_communication")) == "True",
            "gathers beside a rank's own part of a product as waited for",
        ),
        (is_tied, "tied embeddings of stages as two"),
        (bool(run["fp8"]) and is_megatron(run), "TransformerEngine's float8 as torchao's tensorwise, compiled blocks"),
        (bool(run["fp8"]) and not is_megatron(run), "torchao of 2026 instead of its year's"),
        (any(word in run["fp8"].lower() for word in BLOCKS), "scales of blocks as one scale for each tensor"),
        ("power limited" in run["gpu"], "a card with less power than the catalogue's"),
        (is_megatron(run) and _is_copied(run), "optimizer states of copies as shards"),
        (is_megatron(run), f"Megatron's fused layers as {'compiled' if _is_compiled(run) else 'eager'} blocks"),
        (is_megatron(run) and not run["activation_checkpointing"], "recomputation not stated, taken as none"),
        (is_adapted(run) and is_megatron(run), "Megatron's adapters, A split by its rank, as peft's"),
        (is_adapted(run) and run["family"].startswith("mlperf"), "layers with adapters assumed"),
        (is_adapted(run) and run["family"].startswith("mlperf"), "dropout of adapters as none"),
    ]
    return tuple(text for is_so, text in listed if is_so)


def hides_tensor_exchanges(run: ClusterRun) -> bool:
    """Whether exchanges of split layers went beside products: as its notes or arguments say, or the recipe that it ran.

    Megatron-Bridge's recipes of dense Llama 3 set `tp_comm_overlap` wherever layers are split, but for NVFP4
    (scripts/performance/configs/llama/llama3_llm_pretrain.py, 2a0d46e, read). `tp_linear_async_communication` is no
    such word: nanotron has only a rank's own part of a product beside the gather (tensor_parallel/functional.py, read).
    """
    if run["family"] == BRIDGE and "Llama-3" in run["model"] and not is_adapted(run):
        return True
    words = ("TP_COMM_OVERLAP", "tp-comm-overlap")
    return "async TP" in run["notes"] or any(str(run.arguments.get(word)) in ("True", "1") for word in words)


def _is_along_sequence(run: ClusterRun) -> bool:
    """Whether split layers have parts of the sequence between them: as stated, or as hidden exchanges need it.

    Megatron-Core refuses `--tp-comm-overlap` without it (megatron/training/arguments.py).
    """
    is_open = not run["sequence_parallel"] and is_megatron(run)
    return run["sequence_parallel"] in ("True", "1") or (is_open and hides_tensor_exchanges(run))


def is_megatron(run: ClusterRun) -> bool:
    """Whether Megatron-Core ran it, directly or below NeMo and Megatron-Bridge."""
    return "megatron" in run["family"] or run["family"].startswith(("nemo", "mlperf"))


def _steps(run: ClusterRun) -> int:
    """Micro-batches of a rank and step."""
    rows = run.whole("micro_batch") * run.whole("dp")
    return max(1, run.whole("global_batch", rows) // rows)


def _is_compiled(run: ClusterRun) -> bool:
    return _can_compile(run) and (run["compile"] == "True" or is_megatron(run))


def _can_compile(run: ClusterRun) -> bool:
    """Whether PyTorch compiles such blocks: those over split layers are not computed again as a whole."""
    return run.whole("tp") == 1 or checkpointing_of(run) != "full"


def _is_sharded(run: ClusterRun) -> bool:
    """Whether ranks are asked to share weights: as they do, or as the nearest to what settings have no word for."""
    is_split = any(run.whole(name) > 1 for name in ("tp", "pp", "cp"))
    return "FSDP" in run["sharding"] or run["sharding"].endswith("ZeRO-1") or is_megatron(run) or is_split


def _is_copied(run: ClusterRun) -> bool:
    """Whether ranks hold whole optimizer states."""
    return run["sharding"] in ("DDP", "DDP ZeRO-0") and run.whole("dp") > 1


def _stage(run: ClusterRun) -> int:
    """Stage of ZeRO by which ranks share weights and what belongs to them."""
    is_sharded_whole = "FSDP" in run["sharding"] or not (is_megatron(run) or run["sharding"].endswith("ZeRO-1"))
    return 3 if is_sharded_whole else 1


def _layout(run: ClusterRun) -> dict[str, Any]:
    tensor, pipeline, context = run.whole("tp"), run.whole("pp"), run.whole("cp")
    layout: dict[str, Any] = {"shard" if _is_sharded(run) else "data": run.whole("dp")}
    if _is_sharded(run) and _stage(run) == 1:
        layout["zero"] = 1
        if is_megatron(run):
            layout["engine"] = "megatron"
    if is_adapted(run) and is_megatron(run):
        layout = {"shard": 1, "replicate": run.whole("dp")}  # gathers nothing but adapters, as PyTorch's would
    if tensor > 1:
        layout |= {"tensor": tensor, "sequence_parallel": _is_along_sequence(run)}
        if layout["sequence_parallel"] and hides_tensor_exchanges(run):
            layout["async_tensor"] = True
    if context > 1:
        layout["context"] = context
    if run.whole("ep") > 1:
        layout["expert"] = run.whole("ep")
        if layout.get("engine") == "megatron" and hides_experts(run):
            layout["expert_overlap"] = True
    if pipeline > 1:
        layout |= {"pipeline": pipeline, "schedule": SCHEDULES[run["pp_schedule"]]}
        if layout["schedule"] == "interleaved":
            layout["virtual_stages"] = run.whole("vp")
    return layout


def _model(run: ClusterRun) -> str:
    return "llama-2-7b" if run["framework"].startswith("nanotron") else MODELS[run["model"]]


def _config(run: ClusterRun) -> dict[str, Any]:
    if not run["framework"].startswith("nanotron"):
        least = LEAST_POSITIONS if "Llama-2" not in run["model"] else LEAST_POSITIONS // 2
        return {"max_position_embeddings": run.whole("seq_len")} if run.whole("seq_len") > least else {}
    return {
        "hidden_size": run.whole("hidden"), "num_hidden_layers": run.whole("layers"),
        "num_attention_heads": run.whole("heads"), "num_key_value_heads": run.whole("kv_heads"),
        "intermediate_size": run.whole("ffn"), "vocab_size": run.whole("vocab"),
        "tie_word_embeddings": bool(run.arguments.get("tie_word_embeddings")) and run.whole("pp") == 1,
        "max_position_embeddings": run.whole("seq_len"),
    }  # fmt: skip


def _expert_tensor(run: ClusterRun) -> int:
    """Ranks that each expert is split over, where the source says so: recipes of mixtures set one."""
    names = ("expert_tensor_parallel_size", "expert-tensor-parallel-size")
    return next((int(run.arguments[name]) for name in names if run.arguments.get(name)), 1)


def missing_word(run: ClusterRun) -> str:
    """The first thing that settings cannot say, or an empty text."""
    is_titan, is_nanotron = "torchtitan" in run["family"], run["framework"].startswith("nanotron")
    tensor, pipeline, expert = (run.whole(name) for name in ("tp", "pp", "ep"))
    words = [
        (any(word in run["fp8"].lower() for word in UNKNOWN_FORMATS), f"{run['fp8']} products"),
        (bool(run["fp8"]) and not _can_compile(run), "float8 beside split layers that are computed again whole"),
        ("BERT" in run["model"], "packed rows whose mean length is not stated"),
        ("GPT-OSS" in run["model"], "attention with sinks in one kernel"),
        (not is_nanotron and run["model"] not in MODELS, f"model not in the catalogue: {run['model']}"),
        (not is_titan and not is_nanotron and not is_megatron(run), f"what {run['framework'].split()[0]} holds"),
        (is_adapted(run) and bool(run["fp8"]), "float8 beside adapters"),
        (expert > 1 and tensor > 1 and _expert_tensor(run) > 1, "experts that are dealt and split"),
        (not run["micro_batch"] and not is_titan, "rows of a micro-batch not stated"),
        (not run["micro_batch"] and pipeline > 1, "rows of a micro-batch not stated"),
        (pipeline > 1 and _steps(run) < pipeline, "fewer micro-batches than stages"),
        (pipeline * run.whole("vp") > MOST_STAGES, f"a pipeline of more than {MOST_STAGES} parts takes too long"),
        (pipeline > 1 and run["pp_schedule"] not in SCHEDULES, f"schedule {run['pp_schedule']}"),
        (checkpointing_of(run) not in CHECKPOINTING, f"recomputation '{run['activation_checkpointing']}'"),
    ]
    return next((text for is_so, text in words if is_so), "")
