"""Runs of Megatron-LM's functional tests as arguments of `megatron_driver.py`: GPTs, dense or with experts.

Only memory is asked, of the last rank, as the golden values have it: their steps are launch-bound and deterministic.
Not covered: what needs Transformer Engine itself (context parallelism, FP8, grouped products, latent attention).
"""

from typing import Any

from benchmarks.clusters.questions import Question, Refusal, gpu_of
from benchmarks.clusters.rows import ClusterRun

GPT2_WORDS = 50257
"""The tests' tokenizer: the first logged losses are near ln 50,257 = 10.82."""
DEFAULT_DROPOUT = 0.1
NEEDS_ENGINE = {
    "multi-latent-attention": "latent attention", "moe-grouped-gemm": "grouped products of experts",
    "use-megatron-fsdp": "Megatron-FSDP", "mtp-num-layers": "multi-token prediction",
    "fine-grained-activation-offloading": "activation offloading", "pipeline-model-parallel-layout": "written layout",
    "moe-shared-expert-intermediate-size": "shared experts",
}  # fmt: skip


def megatron_question(run: ClusterRun) -> Question | Refusal:
    """Arguments of the driver for a run."""
    if "functional tests" not in run["family"]:
        return Refusal("megatron: not a functional test of Megatron-LM")
    given = run.arguments
    reason = _reason(run, given)
    if reason:
        return Refusal(f"megatron: {reason}")
    gpu = gpu_of(run)
    ranks, nodes = run.whole("n_gpus"), -(-run.whole("n_gpus") // run.whole("gpus_per_node", 8))
    content = {
        "arguments": _arguments(run, given),
        "nodes": nodes,
        "ranks_per_node": ranks // nodes,
        "exec": ["--rank", "last"],
    }
    return Question("megatron", gpu, content, (), asks_time=False)


def _reason(run: ClusterRun, given: dict[str, Any]) -> str:
    if not run["model"].startswith(("gpt/", "moe/")):
        return f"the driver builds GPTs only, not {run['model'].split('/')[0]}"
    if not run["n_gpus"]:
        return "number of GPUs not stated"
    if run.whole("cp") > 1:
        return "context parallelism needs Transformer Engine"
    if run["fp8"]:
        return "FP8 needs Transformer Engine"
    missing = [name for word, name in NEEDS_ENGINE.items() if given.get(word)]
    if missing:
        return missing[0]
    if given.get("optimizer", "adam") != "adam":
        return f"optimizer {given['optimizer']}"
    if given.get("num-distributed-optimizer-instances"):
        return "several instances of the distributed optimizer"
    return ""


def _arguments(run: ClusterRun, given: dict[str, Any]) -> dict[str, Any]:
    tensor, pipeline = run.whole("tp"), run.whole("pp")
    hidden, layers = run.whole("hidden"), run.whole("layers")
    swiglu = bool(given.get("swiglu"))
    multiple = int(given.get("make-vocab-size-divisible-by", 128)) * tensor
    return {
        "hidden": hidden, "layers": layers, "heads": run.whole("heads"),
        "kv_heads": run.whole("kv_heads", run.whole("heads")), "ffn": _feed_forward(run, given, swiglu),
        "vocab": -(-GPT2_WORDS // multiple) * multiple, "positions": int(given["max-position-embeddings"]),
        "length": run.whole("seq_len"), "micro_batch": run.whole("micro_batch"),
        "global_batch": run.whole("global_batch"), "tp": tensor, "pp": pipeline,
        "vp": run.whole("vp") if pipeline > 1 else 1, "ep": run.whole("ep"),
        "etp": int(given.get("expert-tensor-parallel-size") or 0), "experts": run.whole("experts", 0),
        "topk": run.whole("topk", 2), "balancing": given.get("moe-router-load-balancing-type", "aux_loss"),
        "dispatcher": given.get("moe-token-dispatcher-type", "allgather"),
        "sequence_parallel": bool(given.get("sequence-parallel")), "precision": run["precision"], "swiglu": swiglu,
        "bias": not given.get("disable-bias-linear"),
        "fused_activation": swiglu or not (given.get("no-bias-gelu-fusion") or given.get("disable-bias-linear")),
        "hidden_dropout": float(given.get("hidden-dropout", DEFAULT_DROPOUT)),
        "attention_dropout": float(given.get("attention-dropout", DEFAULT_DROPOUT)),
        "normalization": given.get("normalization", "LayerNorm"),
        "per_token_loss": bool(given.get("calculate-per-token-loss")),
        "first_layers": given.get("decoder-first-pipeline-num-layers"),
        "last_layers": given.get("decoder-last-pipeline-num-layers"),
        "embedding_counts": "account_for_embedding_loss" in run["model"],  # the test's name: its flags have no value
        "overlap_p2p": not given.get("no-overlap-p2p-communication"),
        "group_size": given.get("microbatch-group-size-per-virtual-pipeline-stage"),
        "untied": bool(given.get("untie-embeddings-and-output-weights")),
        "position_embedding": given.get("position-embedding-type", "learned_absolute"),
        "overlap_reduce": bool(given.get("overlap-grad-reduce")),
        "overlap_gather": bool(given.get("overlap-param-gather")),
        "distributed_optimizer": bool(given.get("use-distributed-optimizer")),
        "average_in_collective": bool(given.get("ddp-average-in-collective")),
        "engine": given.get("transformer-impl") == "transformer_engine",
        "flash": given.get("attention-backend", "auto") != "unfused" and given.get("transformer-impl") != "local",
    }  # fmt: skip


def _feed_forward(run: ClusterRun, given: dict[str, Any], swiglu: bool) -> int:
    """Width between: Megatron's default is 4 x hidden, or with SwiGLU its two thirds in multiples of 64."""
    stated = given.get("moe-ffn-hidden-size") if run.whole("experts", 0) else None
    stated = stated or given.get("ffn-hidden-size")
    if stated:
        return int(stated)
    hidden = run.whole("hidden")
    return int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden
