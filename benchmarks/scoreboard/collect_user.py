"""Rows of the user board from the published data: what each source's documentation states, in the words of a settings
file or a small program. `python -m benchmarks.scoreboard.collect FOLDER_OF_DATA` writes them.

Nothing is taken from a source's code or from what its numbers imply. Where no setting says what a source did, the
nearest one is taken and the note says so. Rows of sources whose errors were looked at before 2026-11-23 are `seen`.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

Line = dict[str, str]
FMS = "foundation-model-stack/fms-acceleration 876e2ed, scripts/benchmarks (Apache-2.0)"
LITGPT = "Lightning-AI/litgpt 26857050, tutorials/resource-tables.md (Apache-2.0), torch max_memory_reserved"
PEFT = "huggingface/peft 5d602fdb, method_comparison/MetaMathQA (Apache-2.0), torch 2.13, p99 of memory_reserved"
SWIFT = "modelscope/ms-swift cdb169b78, docs/source_en/LLM/Benchmark.md (Apache-2.0), torch max_memory_reserved"
LAMBDA = "lambdal/deeplearning-benchmark aa5addb6 (no licence stated), sequences per second of NVIDIA's run_squad.py"
CONTAINER = "NVIDIA/DeepLearningExamples, PyTorch BERT README (Apache-2.0), sequences per second"
TITAN = "pytorch/torchtitan b5bcd76c, benchmarks and docs/performance.md (BSD-3), reserved memory, tokens per second"
GPU_MEM_NET = "itu-rad/GPUMemNet f01eb059 (CC BY-NC 4.0), nvidia-smi memory.used"
GPU_MEM_NET_CUDA = "11.6"
"""Not stated. Its smallest run, 40,295 parameters (row 2656 of the table of truth), shows 1,457 MiB: a context of all
kernels, as before CUDA 11.7 (1,189 to 1,486 MiB), not today's (about 510 MiB)."""
OUTSIDE = ("user_lambda_bert", "user_gpu_mem_net")
"""Sources whose licence does not let their numbers into this repository: they are read from the folder of data."""
OUTSIDE_SOURCES = (LAMBDA, GPU_MEM_NET)
LOOKED_AT = ("swift-001", "gmntimm-001")
"""Runs whose error was seen while the board was written (2026-11-23)."""
TINY_LLAMA = "jzhang38/TinyLlama 026587c0, README (Apache-2.0), tokens per second and GPU"
MIB, GIB = 1024**2, 1024**3
POWER_LM = {
    "vocab_size": 49152, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 40,
    "num_attention_heads": 36, "num_key_value_heads": 36, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
FMS_MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "mistralai/Mistral-7B-v0.1": ({"name": "mistral-7b"}, 4096),
    "ibm/PowerLM-3b": ({"name": "llama-7b", "config": POWER_LM}, 4096),
    "bigcode/gpt_bigcode-santacoder": ({"name": "santacoder"}, 2048),
    "NousResearch/Llama-2-70b-hf": ({"name": "llama-2-70b"}, 4096),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ({"name": "mixtral-8x7b"}, 4096),
}
FMS_VERSIONS = {
    "refs/a100_80gb.csv": {"torch": "2.4.1", "transformers": "4.48.1", "peft": "0.13.2"},
    "refs/a100_80gb_granite.csv": {"torch": "2.4.1", "transformers": "4.45.0", "peft": "0.12.0"},
}
"""What the source states beside its tables: `refs/requirements_update_cross_entropy_and_deps.txt`, whose table has the
same numbers, and `refs/requirements_granite.txt`."""
FMS_BASELINE = {"torch": "2.4.1", "transformers": "4.45.2", "peft": "0.13.2", "trl": "0.11.4"}
"""`refs/requirements.txt`: the baseline was not run again with later ones."""
STABLE_LM = {
    "hidden_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 32, "intermediate_size": 16384,
    "vocab_size": 50688, "max_position_embeddings": 4096,
}  # fmt: skip
LITGPT_MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("phi-1.5", "1.3 B"): {"name": "phi-1.5"},
    ("StableLM Alpha", "3 B"): {"name": "pythia-6.9b", "config": STABLE_LM},
    ("Llama 2", "7 B"): {"name": "llama-2-7b"},
    ("Llama 2", "13 B"): {"name": "llama-2-13b"},
}
SWIFT_MODELS: dict[str, dict[str, Any]] = {
    "qwen-1_8b-chat": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 5504, "vocab_size": 151936,
    },
    "qwen-7b-chat": {"intermediate_size": 11008, "vocab_size": 151936},
    "qwen-14b-chat": {
        "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
        "intermediate_size": 13696, "vocab_size": 152064,
    },
    "yi-6b-chat": {"num_key_value_heads": 4, "vocab_size": 64000},
    "yi-34b-chat": {
        "hidden_size": 7168, "num_hidden_layers": 60, "num_attention_heads": 56, "num_key_value_heads": 8,
        "intermediate_size": 20480, "vocab_size": 64000,
    },
}  # fmt: skip
"""Sizes of the public configurations, as changes of LLaMA-2-7B's; `openbuddy-zephyr-7b-chat` is a Mistral-7B."""
SWIFT_MEAN, SWIFT_DEVIATION = 3234.4, 2547.5
"""Tokens of a sample before any is dropped: "3234.4±2547.5, min=91, max=19548", its section on parameter settings."""
STATED_STEPS, TIMED_STEPS = 100, 101
"""`run_squad.py` leaves its loop once it has made one step more than `--max_steps`, and divides by the latter."""
LAMBDA_GPUS = {
    "NVIDIA GeForce RTX 3090": "rtx-3090", "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA A40": "a40",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA A100-SXM4-80GB": "a100-80gb", "NVIDIA RTX A6000": "a6000",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie", "Tesla V100 16GB": "v100-16gb",
}  # fmt: skip
TITAN_MODELS = {
    "meta-llama/Llama-3.1-8B": "llama-3-8b", "meta-llama/Meta-Llama-3-8B": "llama-3-8b",
    "meta-llama/Llama-2-13b-hf": "llama-2-13b",
}  # fmt: skip
CHECKPOINTING = {"no": "none", "selective op": "selective", "full": "blocks"}
TORCHVISION = {
    "vgg16": "vgg16", "resnet50": "resnet50", "mobilenetV2": "mobilenetv2_100", "efficientnet": "efficientnet_b0",
    "inception": "inception_v3", "Xception": "legacy_xception",
}  # fmt: skip
"""What the table calls a model, and timm's name of that architecture."""


def user_rows(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows by file name, as arguments of `collect.row`."""
    truth = lines(data / "truth" / "truth.csv")
    fms = lines(data / "opbench" / "e2e" / "fms_acceleration_a100_80gb.csv")
    litgpt = lines(data / "opbench" / "e2e" / "litgpt_a100_40gb.csv")
    return {
        "user_fms_acceleration": list(_fms(fms)),
        "user_litgpt": list(_litgpt(litgpt)),
        "user_peft_comparison": list(_peft(_of(truth, "peft"))),
        "user_ms_swift": list(_swift(_of(truth, "swift"))),
        "user_lambda_bert": list(_lambda(_of(truth, "lambda"))),
        "user_nvidia_bert": list(_container(_of(truth, "dle"))),
        "user_torchtitan": list(_titan(_of(truth, "titan"))),
        "user_tinyllama": list(_tiny_llama(_of(truth, "tinyllama"))),
        "user_gpu_mem_net": list(_gpu_mem_net(truth)),
    }


def lines(path: Path) -> list[Line]:
    """Rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _of(truth: list[Line], prefix: str) -> list[Line]:
    return [line for line in truth if line["run_id"].startswith(f"{prefix}-")]


def _settings(workload: str, model: dict[str, Any], batch: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = {"name": "row", "workload": workload, "model": model, "batch": batch, "data": {"examples": 10**6}}
    return {"settings": content | more}


def _batch(size: int, length: int, steps: int = 1, **more: Any) -> dict[str, Any]:
    return {"micro_batch_size": size, "gradient_accumulation_steps": steps, "sequence_length": length, **more}


def _fms(table: list[Line]) -> Iterator[dict[str, Any]]:
    """Runs on one GPU without custom kernels: the Trainer's defaults (foreach AdamW, clipping), FlashAttention 2.

    The baseline's model is prepared by trl's SFTTrainer, which says so where it starts; the accelerated one's is not
    ("the stock one in peft will introduce extraneous casting", its plugin).
    """
    kinds = {"none": "none", "baseline-peft-bnb": "nf4-double", "accelerated-peft-bnb": "nf4-double"}
    for number, line in enumerate(table):
        quantization, name = kinds.get(line["framework_config"]), line["model_name_or_path"]
        ran = bool(line["train_samples_per_second"])
        if line["num_gpus"] != "1" or quantization is None or name not in FMS_MODELS or "orca" in line["source_file"]:
            continue
        model, length = FMS_MODELS[name]
        size = int(line["per_device_train_batch_size"])
        targets = line["target_modules"].split()
        adapter = {"kind": "lora", "rank": 16, "alpha": 16, "dropout": 0.1, "targets": targets}
        versions, is_baseline = FMS_VERSIONS[line["source_file"]], line["framework_config"] == "baseline-peft-bnb"
        if is_baseline:
            versions = FMS_BASELINE | (versions if "granite" in line["source_file"] else {})
        settings = _settings(
            "causal-lm", model | {"attention": "flash_attention_2"}, _batch(size, length),
            adapter=adapter if line["peft_method"] else {"kind": "none"}, quantization=quantization,
            precision="bf16-mixed" if is_baseline else "bf16-true", activation_checkpointing="blocks",
            optimizer={"implementation": "foreach", "max_gradient_norm": 1.0}, versions=versions,
        )  # fmt: skip
        yield {
            "id": f"user-fms-{number:03}", "source": FMS, "family": f"fms/{name}", "gpu": "a100-80gb",
            "settings": settings, "outcome": "ran" if ran else "oom", "seen": True,
            "allocated": float(line["mem_peak_torch_mem_alloc_in_bytes"]) if ran else None,
            "device": float(line["mem_nvidia_mem_reserved"]) * MIB if ran else None,
            "seconds": size / float(line["train_samples_per_second"]) if ran else None,
        }  # fmt: skip


def _litgpt(table: list[Line]) -> Iterator[dict[str, Any]]:
    """LoRA runs on one GPU, with the two that ran out of memory."""
    kinds = {"None": "none", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double"}
    for number, line in enumerate(table):
        model, peak = LITGPT_MODELS.get((line["Model"], line["Size"])), line["Max GPU RAM"]
        is_known = peak == "OOM" or peak.endswith(" GB")
        if line["section"] != "Finetuning with LoRA on 1 GPU" or model is None or not is_known:
            continue
        targets = ["query_key_value"] if model["name"].startswith("pythia") else ["q_proj", "v_proj"]
        settings = _settings(
            "causal-lm", model, _batch(int(line["Microbatch size"]), 1037), precision="bf16-true",
            adapter={"kind": "lora", "rank": 8, "alpha": 16, "dropout": 0.05, "targets": targets},
            quantization=kinds[line["Quantization"]],
        )  # fmt: skip
        yield {
            "id": f"user-litgpt-{number:03}", "source": LITGPT, "family": f"litgpt/{line['Model']}", "seen": True,
            "gpu": "a100-40gb", "settings": settings, "outcome": "oom" if peak == "OOM" else "ran", "specified": False,
            "reserved": None if peak == "OOM" else float(peak.split()[0]) * 1e9,
            "note": "litgpt's model is not transformers'; the longest sample is taken as 1,037 tokens",
        }  # fmt: skip


def _peft(table: list[Line]) -> Iterator[dict[str, Any]]:
    """LoRA, rsLoRA, DoRA and full fine-tuning; lengths bucketed, about 210 tokens in the mean, 768 at most.

    A plain loop whose settings (`default_training_params.json`) name no optimizer but its rate and decay, so
    `torch.optim.AdamW` as it is without arguments, foreach; and a gradient norm of 1.
    """
    methods = {"lora": {}, "lora (rslora)": {"rslora": True}, "dora": {"dora": True}, "full": None}
    seconds = {line["run_id"]: float(line["value"]) for line in table if line["measure"] == "step_time"}
    for line in table:
        if line["method"] not in methods or not line["measure_detail"].startswith("99th percentile over"):
            continue
        more, adapter = methods[line["method"]], {"kind": "none"}
        if more is not None:
            adapter = {"kind": "lora", "rank": int(line["lora_r"]), "alpha": int(line["lora_alpha"]),
                       "targets": line["lora_targets"].split(","), **more}  # fmt: skip
        settings = _settings(
            "causal-lm", {"name": "llama-3.2-3b"}, _batch(4, 768, padding="bucketed"), adapter=adapter,
            precision="bf16-true", data={"examples": 20000, "mean_tokens": 210},
            optimizer={"implementation": "foreach", "max_gradient_norm": 1.0},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": PEFT, "family": f"peft/{line['method']}", "gpu": "l40s",
            "settings": settings, "reserved": float(line["value"]), "seconds": seconds[line["run_id"]], "seen": True,
            "specified": False, "note": "lengths vary; their mean is about 210 tokens, the longest batch is not stated",
        }  # fmt: skip


def _kept_tokens(limit: int) -> float:
    """Mean tokens of ms-swift's samples up to `limit`, longer ones being dropped, if lengths are log-normal."""
    variance = math.log(1 + (SWIFT_DEVIATION / SWIFT_MEAN) ** 2)
    place = (math.log(limit / SWIFT_MEAN) + variance / 2) / math.sqrt(variance)
    normal = NormalDist()
    return SWIFT_MEAN * normal.cdf(place - math.sqrt(variance)) / normal.cdf(place)


def _swift(table: list[Line]) -> Iterator[dict[str, Any]]:
    """Architectures that transformers has; the longest sample that is kept is close to the stated length."""
    for line in table:
        name, method = line["model"], line["method"]
        is_plain = line["quantization"] in ("", "int4 (bnb)") and line["n_gpus"] == "1"
        is_mistral = name == "openbuddy-zephyr-7b-chat"
        if line["measure"] != "peak_memory" or not is_plain or not (is_mistral or name in SWIFT_MODELS):
            continue
        config = SWIFT_MODELS.get(name, {}) | {"max_position_embeddings": 8192}
        model: dict[str, Any] = {"name": "mistral-7b" if is_mistral else "llama-2-7b"}
        model |= {} if is_mistral else {"config": config}
        targets = "all-linear" if line["lora_targets"].startswith("ALL") else ["q_proj", "k_proj", "v_proj"]
        adapter: dict[str, Any] = {"kind": "none"}
        if method != "full":
            adapter = {"kind": "lora", "rank": int(line["lora_r"]), "alpha": 32, "dropout": 0.05, "targets": targets}
        settings = _settings(
            "causal-lm", model | {"attention": "flash_attention_2"},
            _batch(int(line["per_device_batch"]), int(line["seq_len"]), int(line["grad_accum"]), padding="longest"),
            adapter=adapter, precision="bf16-true", quantization="nf4-double" if line["quantization"] else "none",
            optimizer={"implementation": "foreach", "max_gradient_norm": 1.0},
            activation_checkpointing="blocks" if line["grad_ckpt"] == "yes" else "none",
            data={
                "examples": 10**6, "mean_tokens": round(_kept_tokens(int(line["seq_len"])), 1), "too_long": "drop",
            },
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": SWIFT, "family": f"swift/{name}/{method}", "gpu": "a100-80gb",
            "settings": settings, "reserved": float(line["value_gib"]) * GIB, "specified": False,
            "seen": line["run_id"] in LOOKED_AT,
            "note": "the card's memory is not stated, lengths by mean and deviation only; the source's own model code",
        }  # fmt: skip


def _lambda(table: list[Line]) -> Iterator[dict[str, Any]]:
    """SQuAD on eight GPUs, by the script's own step (`squad.py`); its fp32 is TF32 on GPUs that have it."""
    for line in table:
        gpu = LAMBDA_GPUS.get(line["gpu"])
        if gpu is None:
            continue
        is_half, size = line["precision"].startswith("fp16"), int(line["per_device_batch"])
        precision = "fp16" if is_half else "fp32" if gpu.startswith("v100") else "tf32"
        yield {
            "program": "squad-training", "settings": {"model": line["model"], "batch": size, "precision": precision},
            "id": f"user-{line['run_id']}", "source": LAMBDA, "family": f"lambda/{gpu}", "gpu": gpu,
            "seconds": size / float(line["value"]) * STATED_STEPS / TIMED_STEPS, "specified": False, "outcome": "ran",
            "note": "apex O2 and FusedAdam" if is_half else "fp32, or TF32 where the container turns it on",
        }  # fmt: skip


def _container(table: list[Line]) -> Iterator[dict[str, Any]]:
    """BERT-large on one GPU: pre-training with LAMB (the nearest optimizer is AdamW) and SQuAD.

    Left out: the second phase of pre-training, "512" tokens long. Its 19 sequences a second in fp32 on a V100 would be
    19.1 TFLOP/s of matrix products, where the card's peak is 15.7: batches are shorter. NVIDIA's scripts say so, too:
    its data come in bins of 64 tokens (`pretrain/phase2/bin_size_64`), and how many are in which is not published.
    """
    precisions = {"TF32": "tf32", "AMP fp16": "fp16-mixed", "FP32": "fp32"}
    for line in table:
        if line["n_gpus"] != "1" or line["confidence"] != "high" or line["seq_len"] == "512":
            continue
        gpu = "a100-80gb" if "A100" in line["gpu"] else "v100-32gb"
        size, steps, length = (int(line[name]) for name in ("per_device_batch", "grad_accum", "seq_len"))
        workload = "sequence-classification" if length == 384 else "masked-lm"
        settings = _settings(
            workload, {"name": "bert-large-uncased", "attention": "eager"}, _batch(size, length, steps),
            precision=precisions[line["precision"]], optimizer={"implementation": "fused"},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": CONTAINER, "family": f"container/{gpu}/{length}", "gpu": gpu,
            "settings": settings, "seconds": size * steps / float(line["value"]), "specified": False, "outcome": "ran",
            "note": "NVIDIA's BERT and LAMB, played by transformers' and AdamW",
        }  # fmt: skip


def _titan(table: list[Line]) -> Iterator[dict[str, Any]]:
    """Fully sharded runs without float8, tensor, context or pipeline parallelism."""
    values = {(line["run_id"], line["measure"]): float(line["value"]) for line in table if line["value"] != "OOM"}
    for run in dict.fromkeys(line["run_id"] for line in table):
        line = next(line for line in table if line["run_id"] == run)
        is_plain = line["parallelism"].startswith("FSDP2 x") and "loat8" not in line["precision"]
        checkpointing, model = CHECKPOINTING.get(line["grad_ckpt"]), TITAN_MODELS.get(line["model"])
        if not is_plain or checkpointing is None or model is None or "H200" in line["gpu"]:
            continue
        size, length, ranks = (int(line[name]) for name in ("per_device_batch", "seq_len", "n_gpus"))
        is_hopper = "H100" in line["gpu"]
        settings = _settings(
            "causal-lm", {"name": model, "attention": "sdpa:flash"}, _batch(size, length), precision="bf16-mixed",
            parallel={"kind": "fsdp", "world_size": ranks}, activation_checkpointing=checkpointing,
            compile="default" if line["compile"] == "yes" else "none", compile_unit="blocks",
        )  # fmt: skip
        memory = values.get((run, "peak_memory"))
        yield {
            "id": f"user-{run}", "source": TITAN, "family": f"titan/{line['model']}",
            "gpu": "h100-96gb-hbm2e" if is_hopper else "a100-80gb", "settings": settings, "specified": False,
            "reserved": None if memory is None else memory * GIB,
            "seconds": size * length / values[run, "throughput"], "seen": is_hopper,
            "note": "its own model code" if is_hopper else "whether it is compiled is not stated",
        }  # fmt: skip


def _tiny_llama(table: list[Line]) -> Iterator[dict[str, Any]]:
    """One published rate of 16 GPUs; 16k tokens a GPU and step.

    Its README names fused cross-entropy, RMSNorm, SwiGLU and rotary embedding: `model.kernels` has their like.
    Seen: as the only row of its source its error stood on the board (+22 %, 25 November 2026, without them).
    """
    config = {"hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
              "intermediate_size": 5632}  # fmt: skip
    settings = _settings(
        "causal-lm",
        {"name": "llama-2-7b", "config": config, "attention": "flash_attention_2", "kernels": "liger"},
        _batch(8, 2048), precision="bf16-mixed", parallel={"kind": "fsdp", "world_size": 16},
    )  # fmt: skip
    speed = next(float(line["value"]) for line in table if line["measure"] == "throughput")
    yield {
        "id": "user-tinyllama-001", "source": TINY_LLAMA, "family": "tinyllama", "gpu": "a100-40gb",
        "settings": settings, "seconds": 8 * 2048 / speed, "specified": False, "seen": True,
        "note": "its fused kernels, played by Liger's",
    }  # fmt: skip


def _gpu_mem_net(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """Image models in fp32, by timm's script (SGD) and by plain scripts (Adam)."""
    most_mib: dict[str, float] = {}
    for line in truth:
        run, name, size = line["run_id"], line["model"], line["per_device_batch"]
        if not run.startswith(("gmntimm-", "gmnreal-")) or line["confidence"] == "low":
            continue
        if not name.startswith("timm/") and name not in TORCHVISION:
            continue
        if float(line["value"]) < most_mib.get(f"{run[:7]} {name}", 0):
            continue  # less than a smaller batch took: the run ended early
        most_mib[f"{run[:7]} {name}"] = float(line["value"])
        optimizer = "sgd" if name.startswith("timm/") else "adam"
        timm_name = TORCHVISION.get(name, name.removeprefix("timm/"))
        note = "precision, optimizer and image size are not stated: timm's defaults" if optimizer == "sgd" else ""
        yield {
            "program": "image-training",
            "settings": {"model": timm_name, "batch": int(size), "optimizer": optimizer, "cuda": GPU_MEM_NET_CUDA},
            "id": f"user-{run}", "source": GPU_MEM_NET, "family": f"gpumemnet/{name.removeprefix('timm/')}",
            "gpu": "a100-40gb", "device": float(line["value"]) * MIB, "specified": not note, "note": note,
            "outcome": "ran", "seen": run in LOOKED_AT,
        }  # fmt: skip
