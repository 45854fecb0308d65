"""Rows of published runs on clusters, for tests of what is asked about them."""

from pathlib import Path

from benchmarks.clusters.rows import runs_of

ROOT = Path(__file__).parents[1]

LINE = {
    "id": "a", "group": "g", "family": "torchtitan benchmarks", "source": "s", "date": "", "framework": "torchtitan",
    "model": "Llama-3.1-8B", "params": "8030000000", "shape_from": "", "hidden": "4096", "layers": "32", "heads": "32",
    "kv_heads": "8", "ffn": "14336", "vocab": "128256", "experts": "", "topk": "", "gpu": "H100-SXM-80GB",
    "gpu_mem_gb": "80", "n_gpus": "16", "gpus_per_node": "8", "network": "", "dp": "16",
    "sharding": "FSDP2 full shard 16", "tp": "1", "sequence_parallel": "", "pp": "1", "pp_schedule": "", "vp": "",
    "cp": "1", "ep": "1", "micro_batch": "2", "global_batch": "32", "seq_len": "8192", "precision": "bf16 mixed",
    "fp8": "", "activation_checkpointing": "full", "compile": "False", "optimizer": "AdamW", "attention": "",
    "task": "pretrain", "metric": "tokens_per_s_per_gpu", "metric_kind": "as printed", "value": "5000",
    "confidence": "high", "already_visible": "", "notes": "", "config_json": "",
}  # fmt: skip


def run_with(**columns):
    return runs_of([LINE | columns])[0]
