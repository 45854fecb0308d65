"""Rows of the user board that came later: whole runs, compiled steps, and NVIDIA's other containers.

As `collect_user.py` says, nothing is taken from a source's code or from what its numbers imply. A whole run is told by
`run_seconds`: `covers` says whether the source timed training alone, or the program from its start to its end.
"""

from collections.abc import Iterator
from typing import Any

Line = dict[str, str]
GLUE = "transformers' run_glue.py, its README at 05ce25be (Apache-2.0), training time"
SQUAD = "transformers' run_qa.py, its README at 05ce25be (Apache-2.0), run time"
NANO_GPT = "karpathy/nanoGPT 3adf61e1, README.md (MIT), iteration time and days"
LLM_C = "karpathy/llm.c f1e2ace6, scripts (MIT), milliseconds of an iteration"
NANO_CHAT = "karpathy/nanochat 92d63d4e, dev/LEADERBOARD.md and LOG.md (MIT), training time and tokens per second"
ACADEMIC = "apoorvkh/academic-pretraining 21bdb9e2, README.md, days of training by measured steps"
FLASH = "Dao-AILab/flash-attention 0b037c2d, training/README.md (BSD-3), tokens per second"
CONVNETS = "NVIDIA's ResNet-50, DeepLearningExamples 729963dd, PyTorch README (Apache-2.0), images per second"
BART = "NVIDIA's BART, DeepLearningExamples 729963dd, PyTorch README (Apache-2.0), sequences per second"
BIG = "NVIDIA's Transformer, DeepLearningExamples 729963dd, PyTorch README (Apache-2.0), tokens per second"
GLUE_EXAMPLES = {
    "CoLA": 8551, "SST-2": 67349, "MRPC": 3668, "STS-B": 5749, "QQP": 363846, "MNLI": 392702, "QNLI": 104743,
    "RTE": 2490, "WNLI": 635, "XNLI": 392702,
}  # fmt: skip
"""Training samples, by the cards of huggingface.co/datasets/nyu-mll/glue and facebook/xnli."""
SQUAD_EXAMPLES, SQUAD_VALIDATION = 87599, 10570
"""Questions, by huggingface.co/datasets/rajpurkar/squad; how many samples long contexts make of them is not stated."""
TRAINER_SAVES = {"every_steps": 500, "background": "never"}
"""`save_steps` of the Trainer's documentation."""
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
WRITTEN_OUT = {"attention": "eager"}
BIG_TRANSFORMER = {
    "d_model": 1024, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
    "vocab_size": 33712, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
}  # fmt: skip
BART_STEPS = {128: 40, 512: 120}
"""Batches by length between two updates, defaults of `run_pretraining.sh`."""
BIG_LENGTH = 32
"""Tokens of a WMT14 sentence are not stated."""
SECONDS = {"s": 1.0, "min": 60.0, "days": 86400.0, "days (about)": 86400.0}
CARDS = {"NVIDIA Titan RTX": "titan-rtx", "Tesla V100-16GB": "v100-16gb"}


def published_rows(truth: list[Line]) -> dict[str, list[dict[str, Any]]]:
    """Rows by file name, as arguments of `collect.row`."""
    return {
        "runs": [*_glue(truth), *_squad(truth), *_nano_gpt_run(truth), *_nano_chat(truth), *_academic(truth)],
        "compiled": [*_nano_gpt(truth), *_llm_c(truth), *_flash(truth)],
        "nvidia": [*_convnets(truth), *_bart(truth), *_big(truth)],
    }


def _of(truth: list[Line], source: str) -> list[Line]:
    return [line for line in truth if line["source"].startswith(source)]


def _settings(workload: str, model: dict[str, Any], batch: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"settings": {"name": "row", "workload": workload, "model": model, "batch": batch,
                         "data": {"examples": 10**6}} | more}  # fmt: skip


def _batch(size: int, length: int, steps: int = 1) -> dict[str, Any]:
    return {"micro_batch_size": size, "gradient_accumulation_steps": steps, "sequence_length": length}


def _ranks(count: int) -> dict[str, Any]:
    return {"kind": "ddp", "world_size": count} if count > 1 else {"kind": "none"}


def _seconds(line: Line) -> float:
    return float(line["value"]) * SECONDS[line["unit"]]


def _glue(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """run_glue.py and run_xnli.py: 128 tokens padded, 32 samples, PyTorch 1.6."""
    for line in _of(truth, "huggingface/transformers text-classification"):
        task = next(task for task in GLUE_EXAMPLES if task in line["measure_detail"])
        gpu, precision = CARDS[line["gpu"]], "fp16-mixed" if line["precision"].startswith("fp16") else "fp32"
        epochs = 5 if task in ("MRPC", "WNLI") else 2 if task == "XNLI" else 3
        settings = _settings(
            "sequence-classification", {"name": f"google-bert/{line['model']}", "attention": "eager"}, _batch(32, 128),
            precision=precision, optimizer={"implementation": "for-loop", "max_gradient_norm": 1.0},
            data={"examples": GLUE_EXAMPLES[task]}, schedule={"epochs": epochs}, checkpoints=TRAINER_SAVES,
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": GLUE, "family": f"glue/{line['model']}/{gpu}/{precision}",
            "gpu": gpu, "settings": settings, "run_seconds": _seconds(line), "covers": "training", "specified": False,
            "note": "PyTorch 1.6, whose attention and optimizer were plain operators",
        }  # fmt: skip


def _squad(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """run_qa.py: 384 tokens, 12 samples, two epochs, then a scoring of the validation set.

    The command has no --fp16, but in fp32 the products of 68 minutes would be 30 TFLOP/s on a card of 15.7: asked in
    fp32 first (2026-11-24), both were 210.7 % too slow in the median, and are seen since.
    """
    for line in _of(truth, "huggingface/transformers question-answering"):
        model = "bert-large-uncased" if "large" in line["model"] else "bert-base-uncased"
        settings = _settings(
            "sequence-classification", {"name": model, "attention": "eager"}, _batch(12, 384), precision="fp16-mixed",
            optimizer={"implementation": "for-loop", "max_gradient_norm": 1.0}, data={"examples": SQUAD_EXAMPLES},
            schedule={"epochs": 2}, evaluation={"every_epochs": 2, "examples": SQUAD_VALIDATION},
            checkpoints=TRAINER_SAVES,
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": SQUAD, "family": f"squad/{model}", "gpu": CARDS[line["gpu"]],
            "settings": settings, "run_seconds": _seconds(line), "covers": "all", "specified": False,
            "seen": True, "note": "the precision of the timed run is not stated; in fp32 no V100 is as fast",
        }  # fmt: skip


def _gpt2(layers: int, width: int, heads: int, length: int, **more: Any) -> dict[str, Any]:
    config = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length, **NO_DROPOUT, **more}
    return {"name": "gpt2", "config": config}


def _nano_gpt_run(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """GPT-2 124M in "about 4 days": 600,000 iterations of its `config/train_gpt2.py`.

    Attention is written out: the sentence is older than the fused kernel in its model (its issue 110, February 2023).
    """
    line = next(line for line in _of(truth, "karpathy/nanoGPT") if line["measure"] == "total_time")
    settings = _settings(
        "causal-lm", _gpt2(12, 768, 12, 1024, vocab_size=50304) | WRITTEN_OUT, _batch(12, 1024, 5),
        precision="bf16-mixed", compile="default", parallel=_ranks(8), schedule={"max_steps": 600_000},
        data={"examples": None}, optimizer={"max_gradient_norm": 1.0},
        checkpoints={"every_steps": 1000, "background": "never"},
    )  # fmt: skip
    yield {
        "id": f"user-{line['run_id']}", "source": NANO_GPT, "family": "nanogpt/run", "gpu": "a100-40gb",
        "settings": settings, "run_seconds": _seconds(line), "covers": "all", "specified": False,
        "note": "about 4 days; its own GPT-2, and its scoring of 200 batches each 1,000 iterations is left out",
    }  # fmt: skip


def _nano_chat(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """Width 64 x depth, heads of 128; its bf16 runs."""
    for line in truth:
        if not line["run_id"].startswith("nanochat") or line["precision"] != "bf16":
            continue
        depth = int(line["layers"] or line["model"].rpartition("d")[2])
        width, is_run = 64 * depth, line["measure"] == "total_time"
        model = _gpt2(depth, width, width // 128, 2048, vocab_size=32768, tie_word_embeddings=False)
        settings = _settings(
            "causal-lm", model | {"attention": "flash_attention_3"}, _batch(16, 2048, 2), precision="bf16-mixed",
            compile="default", parallel=_ranks(8), optimizer={"name": "muon"}, data={"examples": None},
            schedule={"max_steps": 16704}, checkpoints={"every_steps": 16704},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": NANO_CHAT, "family": f"nanochat/{line['model']}",
            "gpu": "h100-80gb", "settings": settings, "specified": False, "covers": "training" if is_run else "",
            "run_seconds": float(line["value"]) if is_run else None,
            "seconds": None if is_run else 8 * 32 * 2048 / float(line["value"]),
            "note": "its own model and an optimizer spread over ranks, played by GPT-2's sizes and Muon on each rank",
        }  # fmt: skip


def _academic(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """Pythia-1B on 4 A100 by its "free lunch": compile, TF32, efficient attention."""
    for line in _of(truth, "apoorvkh/academic-pretraining"):
        settings = _settings(
            "causal-lm", {"name": "pythia-1b"}, _batch(16, 2048, 16), precision="bf16-mixed", compile="default",
            parallel=_ranks(4), data={"examples": None}, schedule={"max_steps": 143_000},
            checkpoints={"every_steps": 143_000},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": ACADEMIC, "family": "academic/pythia-1b", "gpu": "a100-80gb",
            "settings": settings, "run_seconds": _seconds(line), "covers": "training", "specified": False,
            "note": "extrapolated by its authors from measured steps; ZeRO-1, played by DDP",
        }  # fmt: skip


def _nano_gpt(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """One step of 12 x 1,024 tokens, eager and compiled, by the defaults of its `bench.py`.

    The sentence is of 29 December 2022, as it says itself; the README of that day lists FlashAttention among what
    it had taken out, so attention is written out.
    """
    for line in _of(truth, "karpathy/nanoGPT"):
        if line["measure"] != "step_time":
            continue
        settings = _settings(
            "causal-lm", _gpt2(12, 768, 12, 1024, vocab_size=50304) | WRITTEN_OUT, _batch(12, 1024),
            precision="bf16-mixed", compile="default" if line["compile"] == "yes" else "none",
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": NANO_GPT, "family": "nanogpt/step", "gpu": "a100-40gb",
            "settings": settings, "seconds": float(line["value"]) / 1e3, "specified": False,
            "note": "batch and GPU are not in the sentence: its bench.py's 12, and the A100 of its README",
        }  # fmt: skip


def _llm_c(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """GPT-2 in C and CUDA on eight GPUs: fused kernels, as a compiled step has.

    Left out: GPT-3 125M in "150 ms", half of what GPT-2 124M takes for as many tokens: 324 TFLOP/s by its products
    alone, where the card's peak is 312.
    """
    for line in _of(truth, "karpathy/llm.c"):
        if "gpt3" in line["model"]:
            continue
        layers, width, heads, length = (int(line[name]) for name in ("layers", "hidden", "heads", "seq_len"))
        settings = _settings(
            "causal-lm", _gpt2(layers, width, heads, length),
            _batch(int(line["per_device_batch"]), length, int(line["grad_accum"])), precision="bf16-true",
            compile="default", parallel=_ranks(8), optimizer={"max_gradient_norm": 1.0},
        )  # fmt: skip
        scale = 1e-3 if line["unit"].startswith("ms") else 1.0
        yield {
            "id": f"user-{line['run_id']}", "source": LLM_C, "family": f"llm.c/{line['model'][-12:]}",
            "gpu": "h100-80gb" if "H100" in line["gpu"] else "a100-80gb", "settings": settings,
            "seconds": float(line["value"]) * scale, "specified": False,
            "note": "a program in C with ZeRO-1 and fp32 copies of weights, played by a compiled step under DDP",
        }  # fmt: skip


def _flash(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """GPT-3 sizes on eight A100, with its fused layers, as a compiled step has."""
    for line in _of(truth, "Dao-AILab/flash-attention"):
        layers, width, heads = (int(line[name]) for name in ("layers", "hidden", "heads"))
        settings = _settings(
            "causal-lm", _gpt2(layers, width, heads, 2048), _batch(8, 2048, 8), precision="bf16-mixed",
            compile="default", parallel=_ranks(8), optimizer={"max_gradient_norm": 1.0},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": FLASH, "family": f"flash-training/{line['model']}",
            "gpu": "a100-80gb", "settings": settings, "specified": False,
            "seconds": 8 * 64 * 2048 / float(line["value"]),
            "note": "the micro-batch is not stated and taken as 8 of 64; its fused layers, played by a compiled step",
        }  # fmt: skip


def _convnets(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """ResNet-50 v1.5 on one GPU, a plain loop with SGD; AMP with channels last, as its README says."""
    for line in _of(truth, "NVIDIA/DeepLearningExamples ResNet50"):
        if line["n_gpus"] != "1":
            continue
        gpu = "a100-80gb" if "A100" in line["gpu"] else "v100-16gb" if "16GB" in line["gpu"] else "v100-32gb"
        is_half, size = line["precision"].startswith("AMP"), int(line["per_device_batch"])
        settings = {"model": "resnet50", "batch": size, "optimizer": "sgd", "half": is_half, "channels_last": is_half}
        yield {
            "id": f"user-{line['run_id']}", "source": CONVNETS, "family": f"convnets/{gpu}", "gpu": gpu,
            "program": "image-training", "settings": settings, "seconds": size / float(line["value"]),
            "specified": False, "note": "its own loop and loader (DALI), played by timm's model in a plain loop",
        }  # fmt: skip


def _bart(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """BART-large's pre-training on one and eight GPUs; lengths of fine-tuning are not stated, so that is left out.

    16 bits are weights in bf16 without autocast: `scripts/run_pretraining_phase1.sh` and `_phase2.sh` pass
    `--allreduce_post_accumulation_half_precision`, for which `pretrain.py` converts the model and `training_base.py`
    switches autocast off. `run_pretraining.sh`, by which the table was made, accumulates 40 and 120 batches.
    """
    for line in _of(truth, "NVIDIA/DeepLearningExamples BART"):
        if not line["seq_len"]:
            continue
        ranks, size, length = (int(line[name]) for name in ("n_gpus", "per_device_batch", "seq_len"))
        steps = BART_STEPS[length]
        settings = _settings(
            "seq2seq-lm", {"name": "bart-large"} | WRITTEN_OUT, _batch(size, length, steps),
            precision="tf32" if line["precision"] == "TF32" else "bf16-true", parallel=_ranks(ranks),
            optimizer={"implementation": "fused", "max_gradient_norm": 1.0},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": BART, "family": f"bart/{length}", "gpu": "a100-80gb",
            "settings": settings, "seconds": steps * size * ranks / float(line["value"]), "specified": False,
            "note": "LAMB with fp32 copies of 16-bit weights, played by AdamW; targets are taken as long as sources",
        }  # fmt: skip


def _big(truth: list[Line]) -> Iterator[dict[str, Any]]:
    """Transformer-big, of the sizes of BART's layers; batches are counted in tokens."""
    for line in _of(truth, "NVIDIA/DeepLearningExamples Transformer"):
        if not line["model"].startswith("Transformer-big"):
            continue
        gpu = "a100-40gb" if "A100" in line["gpu"] else "v100-16gb" if "16GB" in line["gpu"] else "v100-32gb"
        ranks, tokens = int(line["n_gpus"]), int(line["per_device_batch"].split()[0])
        precision = {"TF32": "tf32", "FP32": "fp32"}.get(line["precision"], "fp16-true")
        settings = _settings(
            "seq2seq-lm", {"name": "bart-large", "config": BIG_TRANSFORMER, "attention": "eager"},
            _batch(tokens // BIG_LENGTH, BIG_LENGTH), precision=precision, parallel=_ranks(ranks),
            optimizer={"implementation": "fused"},
        )  # fmt: skip
        yield {
            "id": f"user-{line['run_id']}", "source": BIG, "family": f"transformer-big/{gpu}", "gpu": gpu,
            "settings": settings, "seconds": tokens * ranks / float(line["value"]), "specified": False,
            "note": "lengths are not stated and taken as 32 without padding; the model of fairseq, played by BART's",
        }  # fmt: skip
