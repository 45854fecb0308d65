"""Runs of torchtitan as commands of torchtitan 0.2.2, which is run as its package has it under `forerun exec`.

The configuration is the published one: a file of settings and options of its command line. Its text data and tokenizer
are made up (a tokenizer of words), as no number here depends on which tokens they are; the vocabulary of the model is
its own. Float8 is torchao 0.18.0's, unmodified. Not covered: formats with scales of blocks, and asynchronous tensor
parallelism, which is taken as the ordinary one: `differs` says so.
"""

from typing import Any

from benchmarks.clusters.questions import NETWORKS, Question, Refusal, checkpointing_of, gpu_of
from benchmarks.clusters.rows import ClusterRun

FLAVORS = {
    "Llama-3-8B": "8B", "Llama-3.1-8B": "8B", "Llama-3-70B": "70B", "Llama-3.1-70B": "70B", "Llama-3.1-405B": "405B",
}  # fmt: skip
SCHEDULES = {"1F1B": "1F1B", "Interleaved 1F1B": "Interleaved1F1B", "interleaved 1F1B": "Interleaved1F1B"}
STAGES_PER_RANK = {"1F1B": 1, "Interleaved1F1B": 2}
"""The tables state no micro-batch. torchtitan of then cut a local batch into as many as the pipeline had stages (help
of `--experimental.pipeline_parallel_microbatches`); it looped over two stages a rank."""
LOSS_COMPILED = "2025"
"""Before, only blocks were compiled: the loss is a function of its own since pull request 859 (2025-02-19), and pull
request 1033 (2025-03-31) speaks of compiling it. 0.2.2 compiles both unless `compile.components` says otherwise."""
FLOAT8 = "quantize.linear.float8"
"""torchtitan's converter, and the head of its options. The last layer stays in bf16, as in its benchmarks."""
GATHERED = "fp8 all-gather"
MODES = {"none": ("none", ""), "full": ("full", ""), "op": ("selective", "op"), "layer": ("selective", "2")}


def titan_question(run: ClusterRun) -> Question | Refusal:
    """Options of torchtitan for a run."""
    if "torchtitan" not in run["family"]:
        return Refusal("exec: not a run of torchtitan")
    if run["model"] not in FLAVORS:
        return Refusal(f"exec: torchtitan 0.2.2 has no {run['model']}")
    if run["fp8"].startswith(("mx", "nv")):
        return Refusal(f"exec: {run['fp8']} products")
    mode = MODES.get(checkpointing_of(run) or "")
    if mode is None:
        return Refusal(f"exec: recomputation '{run['activation_checkpointing']}'")
    gpu = gpu_of(run)
    per_node = run.whole("gpus_per_node", 8)
    network = NETWORKS.get(run["network"]) if run.whole("n_gpus") > per_node else None
    options: dict[str, Any] = {
        "model.flavor": FLAVORS[run["model"]], "training.local_batch_size": _local_batch(run),
        "training.seq_len": run.whole("seq_len"), "activation_checkpoint.mode": mode[0],
        "parallelism.tensor_parallel_degree": run.whole("tp"), "parallelism.pipeline_parallel_degree": run.whole("pp"),
        "parallelism.context_parallel_degree": run.whole("cp"),
    }  # fmt: skip
    if mode[1]:
        options["activation_checkpoint.selective_ac_option"] = mode[1]
    if run["compile"] == "True":
        options["compile.enable"] = True
        if run["date"] < LOSS_COMPILED:
            options["compile.components"] = "model"
    if run["fp8"]:
        options |= {"model.converters": FLOAT8, f"{FLOAT8}.filter_fqns": "output"}
        if "rowwise" in run["fp8"]:
            options[f"{FLOAT8}.recipe_name"] = run["fp8"].split()[-1]
        if GATHERED in run["fp8"]:
            options[f"{FLOAT8}.enable_fsdp_float8_all_gather"] = True
        if "precomputed scale" in run["fp8"]:
            options[f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp"] = True
    if run.whole("pp") > 1:
        schedule = SCHEDULES.get(run["pp_schedule"])
        if schedule is None:
            return Refusal(f"exec: schedule '{run['pp_schedule']}'")
        options["parallelism.pipeline_parallel_schedule"] = schedule
        stages = run.whole("pp") * STAGES_PER_RANK[schedule]
        options["parallelism.pipeline_parallel_microbatch_size"] = max(1, _local_batch(run) // stages)
    ranks = run.whole("n_gpus")
    content = {"options": options, "nodes": -(-ranks // per_node), "ranks_per_node": min(ranks, per_node)}
    if network:
        content["network"] = network
    return Question("titan", gpu, content, _differences(run))


def _local_batch(run: ClusterRun) -> int:
    """torchtitan's local batch: sequences of a data-parallel rank and step; a pipeline cuts it into micro-batches."""
    return run.whole("global_batch") // run.whole("dp") if run.whole("pp") > 1 else run.whole("micro_batch")


def _differences(run: ClusterRun) -> tuple[str, ...]:
    listed = []
    if run["fp8"]:
        listed.append("torchao of 2026 instead of its year's")
        if GATHERED not in run["fp8"]:
            listed.append("weights gathered in bf16, where the source does not say")
    if "async TP" in run["notes"] or "AsyncTP" in run["notes"]:
        listed.append("asynchronous tensor parallelism as the ordinary one")
    if not run["compile"]:
        listed.append("compile not stated, taken as off")
    if "power limited" in run["gpu"]:
        listed.append("a card with less power than the catalogue's")
    return tuple(listed)
