"""What calculators say of the same runs: memory by published formulas, time by one utilisation or by its parts.

Memory (llm-analysis, Calculon): 18 bytes a parameter (bf16 weight, fp32 gradient, fp32 copy, two moments), or 16 where
gradients are fp32 of an fp32 weight (FSDP, torchtitan); optimizer state is divided by the ranks that share it
(ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054, section 5), activations by Korthikanti et al. 2022 (arXiv:2205.05198,
equations 2 and 4, table 2): a layer keeps s b h (10 + 24 / t) bytes without sequence parallelism, s b h 34 / t with it,
plus 5 a s / h of these for attention that is not flash; recomputed wholly it keeps 2 s b h / t.
Stages hold their layers' activations for as many micro-batches as 1F1B has in flight (ibid., section 4.2.3).

Time: 6 FLOP a parameter and token and 12 layers s h for attention (PaLM, arXiv:2204.02311, appendix B). *constant* is
one utilisation of the datasheet's peak for each GPU, the median of the seen half. *parts* takes the utilisation of all
seen runs together, and adds recomputation, the pipeline's bubble (p - 1) / (m v) (Narayanan et al. 2021,
arXiv:2104.04473, section 2.2) and the bytes of tensor parallelism (Korthikanti et al., section 4.2.2) over NVLink.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.clusters.questions import GPUS, checkpointing_of
from benchmarks.clusters.rows import ClusterRun, throughput

from forerun.hardware.catalogue import device
from forerun.units import GIGA

STATE_BYTES = {"mixed": 18, "sharded": 16}
NVLINK_BYTES_PER_SECOND = {"a100": 300 * GIGA, "h100": 450 * GIGA, "h200": 450 * GIGA, "b200": 900 * GIGA}
"""One direction of a GPU (`src/forerun/network/networks.toml`)."""
LOGIT_BYTES = 6
"""A logit in bf16 and in fp32."""


@dataclass(frozen=True)
class Utilisation:
    """Share of peak that was fitted to the seen half."""

    by_gpu: dict[str, float]
    all_gpus: float | None


def is_shaped(run: ClusterRun) -> bool:
    """Whether layers, width and vocabulary are stated."""
    return all(run[column] for column in ("layers", "hidden", "heads", "seq_len"))


def parameters(run: ClusterRun) -> float:
    """Parameters: stated, or of the shape (gated where the width between is no multiple of four widths)."""
    if run["params"]:
        return float(run["params"])
    hidden, layers = run.whole("hidden"), run.whole("layers")
    return layers * layer_parameters(run) + 2 * run.whole("vocab", 50304) * hidden


def layer_parameters(run: ClusterRun) -> float:
    """Parameters of one layer: attention with grouped heads, and the products around its width between."""
    hidden, ffn = run.whole("hidden"), run.whole("ffn", 4 * run.whole("hidden"))
    groups = run.whole("kv_heads", run.whole("heads")) / run.whole("heads")
    gate = 2 if ffn == 4 * hidden else 3
    return hidden * hidden * (2 + 2 * groups) + gate * hidden * ffn * max(1, run.whole("experts", 1))


def memory_bytes(run: ClusterRun) -> float:
    """Peak bytes of the first stage's ranks by the formulas above."""
    tensor, pipeline = run.whole("tp"), run.whole("pp")
    model_ranks = tensor * pipeline
    own = parameters(run) / model_ranks
    if "FSDP" in run["sharding"]:
        state = STATE_BYTES["sharded"] * own / (run.whole("dp") * run.whole("cp"))
        state += 2 * 2 * layer_parameters(run) / tensor  # a gathered layer and the next one
    elif "ZeRO-1" in run["sharding"] or "distributed" in run["sharding"]:
        state = own * (6 + 12 / run.whole("dp"))
    else:
        state = STATE_BYTES["mixed"] * own
    return state + activation_bytes(run)


def activation_bytes(run: ClusterRun) -> float:
    """Bytes kept for the backward pass by the first stage, and logits where it is the only one."""
    tensor, pipeline = run.whole("tp"), run.whole("pp")
    tokens = run.whole("micro_batch") * run.whole("seq_len") / run.whole("cp")
    size = tokens * run.whole("hidden")
    kept = {"full": 2 / tensor, "none": 34 / tensor, "op": 34 / tensor, "layer": 18 / tensor}[
        checkpointing_of(run) or "none"
    ]
    if run["sequence_parallel"] != "True" and tensor > 1 and kept > 2:
        kept = 10 + 24 / tensor
    layers = run.whole("layers") / pipeline
    in_flight = min(pipeline, micro_batches(run)) * (
        1 + (pipeline - 1) / (pipeline * max(1, run.whole("vp"))) * (run.whole("vp") > 1)
    )
    logits = LOGIT_BYTES * tokens * run.whole("vocab", 50304) / tensor if pipeline == 1 else 0
    return size * kept * layers * in_flight + logits


def micro_batches(run: ClusterRun) -> float:
    """Micro-batches of a step and data-parallel rank."""
    return max(1.0, run.whole("global_batch") / (run.whole("micro_batch") * run.whole("dp")))


def flops_per_token(run: ClusterRun) -> float:
    """FLOP of a token forward and backward, attention not halved for its mask."""
    active = parameters(run)
    if run.whole("experts", 0):
        gated = 3 * run.whole("hidden") * run.whole("ffn") * run.whole("layers")
        active -= gated * (run.whole("experts") - run.whole("topk"))
    return 6 * active + 12 * run.whole("layers") * run.whole("hidden") * run.whole("seq_len")


def peak(run: ClusterRun) -> float:
    """Datasheet peak in bf16 of the run's GPU."""
    return device(GPUS[run["gpu"]]).peak("bfloat16")


def slowdown(run: ClusterRun) -> float:
    """Time over that of the model's FLOP: recomputation and bubble."""
    again = {"full": 4 / 3, "op": 1.05, "layer": 7 / 6}.get(checkpointing_of(run) or "none", 1.0)
    bubble = (run.whole("pp") - 1) / (micro_batches(run) * max(1, run.whole("vp")))
    return again * (1 + bubble)


def tensor_seconds_per_token(run: ClusterRun) -> float:
    """Seconds of tensor parallelism's messages: eight halves of an all-reduce of the hidden state a layer."""
    ranks = run.whole("tp")
    if ranks == 1:
        return 0.0
    link = next(
        (rate for name, rate in NVLINK_BYTES_PER_SECOND.items() if GPUS[run["gpu"]].startswith(name)), 50 * GIGA
    )
    return 8 * 2 * run.whole("hidden") * run.whole("layers") * (ranks - 1) / ranks / link


def fitted(runs: Iterable[ClusterRun]) -> Utilisation:
    """Utilisations of the seen runs in bf16: median for each GPU, and of all with their slowdowns taken out."""
    by_gpu: dict[str, list[float]] = {}
    corrected = []
    for run in runs:
        rate = throughput(run) if _is_typical(run) else None
        if not run.is_seen or run["fp8"] or rate is None or run["gpu"] not in GPUS or not is_shaped(run):
            continue
        share = rate * flops_per_token(run) / peak(run)
        by_gpu.setdefault(GPUS[run["gpu"]], []).append(share)
        corrected.append(share * slowdown(run))
    medians = {name: statistics.median(shares) for name, shares in by_gpu.items()}
    return Utilisation(medians, statistics.median(corrected) if corrected else None)


def _is_typical(run: ClusterRun) -> bool:
    """No functional tests (bound by launches), packed BERT (its length is a maximum), or adapters (2/3 of the FLOP)."""
    return (
        "functional tests" not in run["family"]
        and run["confidence"] != "low"
        and "BERT" not in run["model"]
        and "LoRA" not in run["task"]
    )


def tokens_by_constant(run: ClusterRun, utilisation: Utilisation) -> float | None:
    """Tokens per second of a GPU by one utilisation for each GPU; None where none was fitted."""
    share = utilisation.by_gpu.get(GPUS.get(run["gpu"], ""))
    return None if share is None or not is_shaped(run) else share * peak(run) / flops_per_token(run)


def tokens_by_parts(run: ClusterRun, utilisation: Utilisation) -> float | None:
    """Tokens per second of a GPU by utilisation, recomputation, bubble and tensor parallelism; None without a fit."""
    if utilisation.all_gpus is None or not is_shaped(run) or run["gpu"] not in GPUS:
        return None
    seconds = flops_per_token(run) * slowdown(run) / (utilisation.all_gpus * peak(run))
    return 1 / (seconds + tensor_seconds_per_token(run) * run.whole("tp"))
