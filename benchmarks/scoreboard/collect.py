"""Write `rows/*.csv` from the published data: `python -m benchmarks.scoreboard.collect FOLDER_OF_DATA`.

Here the rows of the exact program; those as a user asks: `collect_user.py`.

Only facts and their citations are taken. Needed when a source grows; the files are kept in the repository.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.scoreboard.collect_published import published_rows
from benchmarks.scoreboard.collect_strangers import stranger_rows
from benchmarks.scoreboard.collect_user import OUTSIDE, lines, user_rows
from benchmarks.scoreboard.rows import ADDED, FOLDER, Row, row_from

COLUMNS = ["id", "source", "family", "program", "library", "gpu", "card_gib", "settings", "outcome", "allocated_bytes",
           "reserved_bytes", "device_bytes", "step_seconds", "specified", "seen", "note"]  # fmt: skip
RUN_COLUMNS = ["run_seconds", "covers"]
"""Of the sources in `added` only."""
MIB = 1024**2
LIBRARIES = {"image-training": "timm"}
"""Libraries of programs that need others than those installed."""
DOCS = "huggingface/transformers model documentation of 2024 (Apache-2.0), torch max_memory_allocated"
ATTENTION_LIBRARIES = {
    "openai-community/gpt2-large": ("gpt2-large", "transformers-4.42"),
    "EleutherAI/pythia-410m-deduped": ("pythia-410m", "transformers-4.42"),
    "google-bert/bert-base-uncased": ("bert-base-uncased", "transformers-4.42"),
    "facebook/opt-350m": ("opt-350m", "transformers-4.47"),
    "distilbert/distilbert-base-uncased": ("distilbert-base-uncased", "transformers-4.47"),
    "microsoft/biogpt": ("biogpt", "transformers-4.47"),
}
"""The first releases in which each model has both kinds of attention."""
TIMED_GPUS = {"A100": "a100-80gb", "L40S": "l40s"}
"""GPUs of the attention benchmarks that the catalogue has; times on other GPUs are not scored."""
USABLE_SHARE = 0.985
"""Of the nominal memory of a card, what CUDA gives: 23.7 of 24 GiB (RTX 3090), 15.8 of 16 (V100)."""
CARDS = {"3080 Ti": 16 * USABLE_SHARE, "2060": 8 * USABLE_SHARE}
"""GiB of the cards of the attention benchmarks that the catalogue does not have."""
FMS = "foundation-model-stack/fms-acceleration 876e2ed, scripts/benchmarks (Apache-2.0)"
FMS_MODELS = {
    "mistralai/Mistral-7B-v0.1": ("mistral-7b", 4096),
    "ibm/PowerLM-3b": ("powerlm-3b", 4096),
    "bigcode/gpt_bigcode-santacoder": ("gpt-bigcode-santacoder", 2048),
    "NousResearch/Llama-2-70b-hf": ("llama-2-70b", 4096),
    "meta-llama/Meta-Llama-3-8B": ("llama-3-8b", 4096),
}
FMS_LIBRARIES = {"refs/a100_80gb.csv": "transformers-4.48"}
"""`refs/requirements.txt` says 4.45.2; `refs/a100_80gb_update_cross_entropy_and_deps.csv` has the same numbers, and the
requirements beside it say 4.48.1."""
DOUBTFUL = {
    "gpt-bigcode-santacoder": "no version from 4.45 to 4.49 explains it: between 11.8 % too low and 30.7 % too high",
}
FMS_KINDS = {
    "none": {},
    "baseline-peft-bnb": {"quantization": "nf4-double", "upcast": True, "autocast": True},
    "accelerated-peft-bnb": {"quantization": "nf4-double", "autocast": True},
}
NEUSIGHT = "sitar-lab/NeuSight 6945927, scripts/asplos/label (MIT), forward and backward in FP32"
NEUSIGHT_GPUS = {
    "NVIDIA_A100_80GB_PCIe": "a100-80gb-pcie", "NVIDIA_H100_80GB_HBM3": "h100-80gb", "NVIDIA_L4": "l4",
    "Tesla_V100-PCIE-32GB": "v100-32gb", "Tesla_T4": "t4", "NVIDIA_A100-PCIE-40GB": "a100-40gb-pcie",
}  # fmt: skip
NEUSIGHT_MODELS = {
    "bert_large": "bert-large-lm", "gpt2_large": "gpt2-large", "gpt3_xl": "gpt3-xl", "gpt3_27": "gpt3-2.7b",
    "opt_13": "opt-1.3b",
}  # fmt: skip
FOUNDRY = "mosaicml/llm-foundry 8c8dd48f7, scripts/train/benchmarking/README.md (Apache-2.0), tokens per second"
FOUNDRY_GPUS = {"h100_80gb": "h100-80gb", "a100_80gb": "a100-80gb", "a100_40gb": "a100-40gb"}
FOUNDRY_MODELS = {
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16), "3b": (2560, 32, 20),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40),
}  # fmt: skip
"""Width, layers and heads of its `scripts/train/yamls/pretrain`; checked against the published parameter counts."""
FOUNDRY_VOCABULARY = 50368
ORIGIN = (
    "one notebook that fine-tunes Gemma-2-2B (A100-SXM4-40GB, torch 2.9, transformers 4.57, peft 0.18), its outputs"
)
ORIGIN_RUNS = (
    ("lora-8", 8, "none", 51.5), ("lora-16", 16, "none", 51.3), ("lora-32", 32, "none", 51.53),
    ("qlora-16", 16, "nf4-double", 99.87),
)  # fmt: skip
"""Name, rank, quantization, minutes of 3,141 updates."""
ORIGIN_LENGTH = 256
"""The longest of four samples: instructions with answers of 363 characters in the mean, about 130 tokens with the
prompt's words, geometric."""
LITGPT = "Lightning-AI/litgpt 26857050, tutorials/resource-tables.md (Apache-2.0), torch max_memory_reserved"
LITGPT_MODELS = {
    ("phi-1.5", "1.3 B"): "phi-1.5",
    ("StableLM Alpha", "3 B"): "stablelm-alpha-3b",
    ("Llama 2", "7 B"): "llama-2-7b",
    ("Llama 2", "13 B"): "llama-2-13b",
}
LITGPT_KINDS = {"None": "none", "bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double"}
LITGPT_LENGTH = 1037
PEFT = "huggingface/peft 5d602fdb, method_comparison/MetaMathQA (Apache-2.0), torch 2.13, p99 of memory_reserved"


def attention_rows(path: Path) -> list[dict[str, Any]]:
    """transformers' attention benchmarks: GPU types without a twin in the catalogue take one of the same capability."""
    rows = []
    seconds = {r["run_id"]: float(r["value"]) for r in lines(path) if r["measure"] == "step_time" and r["unit"] == "s"}
    for line in lines(path):
        is_failure = line["measure"] == "oom"
        if not (line["run_id"].startswith("hfsdpa") and (is_failure or line["measure"] == "peak_memory")):
            continue
        if (line["confidence"] != "high" and not is_failure) or line["model"] not in ATTENTION_LIBRARIES:
            continue
        model, library = ATTENTION_LIBRARIES[line["model"]]
        gpu = next((name for text, name in TIMED_GPUS.items() if text in line["gpu"]), None)
        rows.append(
            row(
                id=line["run_id"], source=DOCS, family=f"attention/{model}", program="attention-benchmark",
                library=library, gpu=gpu or "rtx-3090",
                settings={"model": model, "attention": line["attn_impl"], "batch": int(line["per_device_batch"]),
                          "length": int(line["seq_len"])},
                card_gib=next((size for text, size in CARDS.items() if text in line["gpu"]), None),
                outcome="oom" if is_failure else "ran", note=line["gpu"],
                allocated=None if is_failure else float(line["value"]) * 1e6,
                seconds=seconds.get(line["run_id"]) if gpu and not is_failure else None,
            )
        )  # fmt: skip
    return rows


def fms_rows(path: Path) -> list[dict[str, Any]]:
    """Single-GPU runs without custom kernels, and full fine-tuning with them where the update is the peak."""
    rows = []
    for number, line in enumerate(lines(path)):
        kind, measured = line["framework_config"], line["mem_peak_torch_mem_alloc_in_bytes"]
        full = not line["peft_method"]
        if line["num_gpus"] != "1" or not measured or line["model_name_or_path"] not in FMS_MODELS:
            continue
        if kind not in FMS_KINDS and not (full and kind.startswith("foak-fast-kernels")):
            continue
        if "orca" in line["source_file"]:
            continue
        model, length = FMS_MODELS[line["model_name_or_path"]]
        settings = {"model": model, "batch": int(line["per_device_train_batch_size"]), "length": length,
                    "lora": not full, **FMS_KINDS.get(kind, {})}  # fmt: skip
        note = "custom kernels in the forward pass" if kind.startswith("foak") else DOUBTFUL.get(model, "")
        library = FMS_LIBRARIES.get(line["source_file"], "transformers-4.45")
        rows.append(
            row(
                id=f"fms-{number:03}", family=f"fms/{line['model_name_or_path']}",
                source=FMS, program="supervised-tuning", library=library, gpu="a100-80gb", settings=settings,
                allocated=float(measured), device=float(line["mem_nvidia_mem_reserved"]) * MIB,
                specified=not note, note=note,
                seconds=settings["batch"] / float(line["train_samples_per_second"]),
            )
        )  # fmt: skip
    return rows


def peft_rows(path: Path) -> list[dict[str, Any]]:
    """peft's comparison: only LoRA and full fine-tuning; lengths vary up to 768, taken as the longest."""
    rows = []
    for line in lines(path):
        if not line["run_id"].startswith("peft-") or line["confidence"] != "high" or line["measure"] != "peak_memory":
            continue
        if line["method"] not in ("lora", "full"):
            continue
        settings = {"model": "llama-3.2-3b", "batch": 4, "length": 768, "rank": int(line["lora_r"] or 0),
                    "targets": [t for t in line["lora_targets"].split(",") if t]}  # fmt: skip
        rows.append(
            row(
                id=line["run_id"], family=f"peft/{line['method']}",
                source=PEFT, program="peft-comparison", library="installed", gpu="l40s", settings=settings,
                reserved=float(line["value"]), specified=False, note="the longest batch is not stated",
            )
        )  # fmt: skip
    return rows


def litgpt_rows(path: Path) -> list[dict[str, Any]]:
    """litgpt's single-GPU LoRA runs that ended; its own model code, and the longest of Alpaca's samples not stated."""
    rows = []
    for number, line in enumerate(lines(path)):
        is_complete, name = line["Max GPU RAM"].endswith(" GB"), (line["Model"], line["Size"])
        if line["section"] != "Finetuning with LoRA on 1 GPU" or not is_complete or name not in LITGPT_MODELS:
            continue
        settings = {"model": LITGPT_MODELS[name], "batch": int(line["Microbatch size"]),
                    "length": LITGPT_LENGTH, "quantization": LITGPT_KINDS[line["Quantization"]]}  # fmt: skip
        rows.append(
            row(
                id=f"litgpt-{number:03}", family=f"litgpt/{line['Model']}",
                source=LITGPT, program="litgpt-lora", library="installed", gpu="a100-40gb", settings=settings,
                reserved=float(line["Max GPU RAM"].split()[0]) * 1e9, specified=False,
                note="litgpt's model is not transformers'; the longest sample is taken as 1,037 tokens",
            )
        )  # fmt: skip
    return rows


def neusight_rows(path: Path) -> list[dict[str, Any]]:
    """NeuSight's FP32 training labels on one GPU of the catalogue: forward and backward, no update."""
    rows = []
    for number, line in enumerate(lines(path)):
        gpu, model = NEUSIGHT_GPUS.get(line["device"]), NEUSIGHT_MODELS.get(line["model"])
        if line["mode"] != "train" or line["variant"] or gpu is None or model is None:
            continue
        settings = {"model": model, "batch": int(line["batch"]), "length": int(line["seqlen"])}
        rows.append(
            row(
                id=f"neusight-{number:03}", family=f"neusight/{model}",
                source=NEUSIGHT, program="forward-backward", library="installed", gpu=gpu, settings=settings,
                seconds=float(line["e2e_latency"]) / 1e3, note="torch 2.1 and transformers of its time",
            )
        )  # fmt: skip
    return rows


def foundry_rows(path: Path) -> list[dict[str, Any]]:
    """llm-foundry's runs on one machine of eight GPUs, up to 13 billion parameters and 8,192 tokens: of each model and
    GPU the shortest and the longest. Its own model code, played by GPT-2 of the same sizes under FSDP2."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines(path):
        fits = line["Model"] in FOUNDRY_MODELS and int(line["SeqLen (T)"]) <= 8192 and "fp8" not in line["Precision"]
        if int(line["# GPUs"]) == 8 and fits and line["GPU"] in FOUNDRY_GPUS:
            groups.setdefault((line["GPU"], line["Model"]), []).append(line)
    rows = []
    for (gpu, name), of_model in groups.items():
        of_model.sort(key=lambda line: int(line["SeqLen (T)"]))
        for line in dict.fromkeys(map(tuple_of, (of_model[0], of_model[-1]))):
            length, size, steps, speed, checkpointing, parameters = line
            width, layers, heads = FOUNDRY_MODELS[name]
            parameter_count = 12 * layers * width**2 + (FOUNDRY_VOCABULARY + length) * width
            if abs(parameter_count / parameters - 1) > 0.01:
                raise ValueError(f"{name}: {parameter_count} parameters by its sizes, {parameters} published")
            settings = {
                "name": "foundry", "workload": "causal-lm",
                # its script's --attn_impl triton is FlashAttention's first version; the nearest of PyTorch's
                "model": {"name": "gpt2", "attention": "sdpa:flash", "config": {
                          "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length,
                          "vocab_size": FOUNDRY_VOCABULARY, "resid_pdrop": 0.0, "activation_function": "gelu",
                          "embd_pdrop": 0.0, "attn_pdrop": 0.0}},
                "precision": "bf16-mixed", "parallel": {"kind": "fsdp", "world_size": 8},
                "activation_checkpointing": "blocks" if checkpointing else "none", "data": {"examples": 10**6},
                "optimizer": {"implementation": "foreach"},
                "batch": {"micro_batch_size": size, "gradient_accumulation_steps": steps, "sequence_length": length},
            }  # fmt: skip
            rows.append(
                row(
                    id=f"foundry-{gpu}-{name}-{length}", family=f"foundry/{name}", source=FOUNDRY,
                    gpu=FOUNDRY_GPUS[gpu],
                    settings={"settings": settings}, seconds=size * steps * length / speed, specified=False,
                    note="llm-foundry's model and FSDP1, played by GPT-2 of the same sizes under FSDP2",
                )
            )  # fmt: skip
    return rows


def tuple_of(line: dict[str, str]) -> tuple[int, int, int, float, bool, int]:
    """Length, sizes and speed (tokens per second and GPU) of a row of llm-foundry's table."""
    return (
        int(line["SeqLen (T)"]), int(line["MicroBatchSize"]), int(line["GradAccum"]),
        float(line["Throughput (T/s/GPU)"]), line["Activation Checkpointing"] == "True", int(line["NumParams"]),
    )  # fmt: skip


def origin_rows() -> list[dict[str, Any]]:
    """The four Gemma-2-2B runs whose notebook promised 25 to 50 minutes: 3,141 updates each, as it printed them."""
    rows = []
    for name, rank, quantization, minutes in ORIGIN_RUNS:
        settings = {
            "name": name, "workload": "causal-lm", "model": {"name": "gemma-2-2b"}, "precision": "fp16-mixed",
            "adapter": {"kind": "lora", "rank": rank, "alpha": 32, "dropout": 0.05,
                        "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "quantization": quantization, "optimizer": {"max_gradient_norm": 1.0}, "data": {"examples": 16750},
            "batch": {"micro_batch_size": 4, "gradient_accumulation_steps": 4, "sequence_length": ORIGIN_LENGTH},
        }  # fmt: skip
        note = f"lengths are not stated: the longest of four is taken as {ORIGIN_LENGTH} tokens"
        if quantization != "none":
            settings["activation_checkpointing"] = "blocks"
            note += "; its output warns that checkpointing is on (peft's preparation for k-bit training)"
        rows.append(
            row(
                id=f"origin-{name}", family="origins", source=ORIGIN, gpu="a100-40gb",
                settings={"settings": settings},
                seconds=minutes * 60 / 3141, specified=False,
                note=note,
            )
        )  # fmt: skip
    return rows


def row(
    *, id: str, source: str, gpu: str, settings: dict[str, Any], program: str = "settings", library: str = "",
    family: str = "", card_gib: float | None = None, outcome: str = "", allocated: float | None = None,
    reserved: float | None = None, device: float | None = None, seconds: float | None = None,
    run_seconds: float | None = None, covers: str = "", specified: bool = True, seen: bool = False, note: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A line of a file of rows; sizes in bytes."""

    def text(value: float | None) -> str:
        return "" if value is None else f"{value:.0f}"

    values = [id, source, family, program, library or LIBRARIES.get(program, "installed"), gpu,
              "" if card_gib is None else f"{card_gib:g}", json.dumps(settings), outcome, text(allocated),
              text(reserved), text(device), "" if seconds is None else f"{seconds:.6g}",
              "yes" if specified else "no", "yes" if seen else "no", note,
              "" if run_seconds is None else f"{run_seconds:.6g}", covers]  # fmt: skip
    return dict(zip([*COLUMNS, *RUN_COLUMNS], values, strict=True))


def outside_rows(data: Path) -> list[Row]:
    """Rows of sources that may not be copied here, from the folder of data."""
    tables = user_rows(data)
    return [row_from(row(**fields)) for name in OUTSIDE for fields in tables[name]]


def main() -> None:
    """Write every file of rows."""
    data = Path(sys.argv[1])
    truth = data / "truth" / "truth.csv"
    tables = {
        "attention_benchmark": attention_rows(truth),
        "fms_acceleration": fms_rows(data / "opbench" / "e2e" / "fms_acceleration_a100_80gb.csv"),
        "peft_comparison": peft_rows(truth),
        "neusight": neusight_rows(data / "opbench" / "neusight" / "e2e_labels_fp32.csv"),
        "llm_foundry": foundry_rows(data / "opbench" / "e2e" / "llm_foundry_throughput.csv"),
        "origins": origin_rows(),
        "litgpt": litgpt_rows(data / "opbench" / "e2e" / "litgpt_a100_40gb.csv"),
    }
    tables = {name: [line | {"seen": "yes"} for line in rows] for name, rows in tables.items()}
    as_asked = user_rows(data)
    tables |= {name: [row(**fields) for fields in rows] for name, rows in as_asked.items() if name not in OUTSIDE}
    for name, rows in tables.items():
        write_table(FOLDER / f"{name}.csv", COLUMNS, rows)
    for name, asked in (published_rows(lines(truth)) | {"strangers": stranger_rows()}).items():
        write_table(ADDED / "rows" / f"{name}.csv", [*COLUMNS, *RUN_COLUMNS], [row(**fields) for fields in asked])


def write_table(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    """Write a file of rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path.stem}: {len(rows)} rows")


if __name__ == "__main__":
    main()
