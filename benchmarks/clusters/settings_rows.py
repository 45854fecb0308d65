"""Runs as settings files: dense causal decoders under DDP, FSDP and tensor parallelism.

Taken where the words of `docs/words.md` say what the source did; everything else is refused with the word that
is missing. Not covered: what settings have no word for, such as fp32 gradients beside bf16 weights (nanotron,
Megatron-LM).
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

MODELS = {
    "Llama-2-7B": "llama-2-7b", "Llama-2-13B": "llama-2-13b", "Llama-2-70B": "llama-2-70b", "Llama-3-8B": "llama-3-8b",
    "Llama-3.1-8B": "llama-3-8b", "Llama-3-70B": "llama-3-70b", "Llama-3.1-70B": "llama-3-70b",
}  # fmt: skip
"""Llama 3.1 has the shape of Llama 3: its positions are scaled, which costs nothing at this accuracy."""
CHECKPOINTING = {"none": "none", "full": "blocks", "op": "selective"}
SHARDED = ("FSDP2 full shard", "FSDP2 over")


def settings_question(run: ClusterRun) -> Question | Refusal:
    """The settings of a run, or the word that is missing."""
    missing = _missing_word(run)
    if missing:
        return Refusal(f"settings: {missing}")
    gpu, asks_time = gpu_of(run)
    network = NETWORKS.get(run["network"], "auto")
    micro, data = run.whole("micro_batch"), run.whole("dp")
    steps = max(1, run.whole("global_batch", micro * data) // (micro * data))
    settings: dict[str, Any] = {
        "name": "published-run",
        "workload": "causal-lm",
        "model": {"name": _model(run), "config": _config(run)},
        "precision": "bf16-mixed",
        "optimizer": {"name": "adamw", "implementation": "fused", "max_gradient_norm": 1.0},
        "batch": {
            "micro_batch_size": micro, "gradient_accumulation_steps": steps, "sequence_length": run.whole("seq_len"),
        },
        "data": {"examples": 100 * micro * steps * data},
        "activation_checkpointing": CHECKPOINTING[checkpointing_of(run) or "none"],
        "compile": "default" if run["compile"] == "True" else "none",
        "parallel": _layout(run),
        "cluster": {"gpus_per_node": run.whole("gpus_per_node", 8), "network": network},
    }  # fmt: skip
    if settings["compile"] != "none":
        settings["compile_unit"] = "blocks"
    notes = [] if run["compile"] else ["compile not stated, taken as off"]
    if "nanotron" in run["family"]:
        notes.append("weights under autocast instead of bf16 beside fp32 copies")
    if run["fp8"]:
        notes.append("float8 products as bf16")
    return Question("settings", gpu, settings, tuple(notes), asks_time)


def _layout(run: ClusterRun) -> dict[str, Any]:
    tensor, data = run.whole("tp"), run.whole("dp")
    layout: dict[str, Any] = {"shard" if "FSDP" in run["sharding"] else "data": data}
    if tensor > 1:
        layout |= {"tensor": tensor, "sequence_parallel": run["sequence_parallel"] == "True"}
    return layout


def _model(run: ClusterRun) -> str:
    return "llama-2-7b" if run["framework"].startswith("nanotron") else MODELS[run["model"]]


def _config(run: ClusterRun) -> dict[str, Any]:
    if not run["framework"].startswith("nanotron"):
        return {}
    return {
        "hidden_size": run.whole("hidden"), "num_hidden_layers": run.whole("layers"),
        "num_attention_heads": run.whole("heads"), "num_key_value_heads": run.whole("kv_heads"),
        "intermediate_size": run.whole("ffn"), "vocab_size": run.whole("vocab"),
        "tie_word_embeddings": bool(run.arguments.get("tie_word_embeddings")),
        "max_position_embeddings": run.whole("seq_len"),
    }  # fmt: skip


def _missing_word(run: ClusterRun) -> str:
    """The first thing that settings cannot say, or an empty text."""
    is_titan = "torchtitan" in run["family"]
    is_nanotron = run["framework"].startswith("nanotron")
    words = [
        (run.whole("experts", 0) > 0 or run.whole("ep") > 1, "mixtures of experts over ranks"),
        (run.whole("pp") > 1, "no pipeline"),
        (run.whole("cp") > 1, "no context parallelism"),
        (bool(run["fp8"]) and not is_titan, "no FP8 or FP4"),
        (is_nanotron and run["sharding"].startswith("DDP ZeRO-1"), "no ZeRO-1 with fp32 gradients beside bf16 weights"),
        (
            not is_titan and not is_nanotron,
            f"what {run['framework'].split()[0]} holds beside weights, gradients in fp32",
        ),
        (not is_nanotron and run["model"] not in MODELS, f"model not in the catalogue: {run['model']}"),
        (checkpointing_of(run) not in CHECKPOINTING, f"recomputation '{run['activation_checkpointing']}'"),
        ("async TP" in run["notes"], "no asynchronous tensor parallelism"),
    ]
    return next((text for is_so, text in words if is_so), "")
