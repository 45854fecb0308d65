"""The same step in the words of other tools: a Trainer of transformers, SFTTrainer of TRL, axolotl.

Text to copy, from the settings of a page. What a tool's words cannot say is a comment of the text; nothing is left out
in silence. Read: transformers 5.23 (`training_args.py`), TRL 1.16 (`sft_config.py`), peft 0.19, axolotl 0.19
(`utils/schemas/config.py`, `model.py`, `peft.py`, `training.py`, `fsdp.py`; `utils/config/__init__.py:198` for number
formats). No torch.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from forerun.models.rows import hub_id
from forerun.records import Record
from forerun.settings.media import WITHOUT_TOKENS
from forerun.settings.schema import Settings

OPTIMIZERS = {
    "adamw": "adamw_torch_fused", "adamw-8bit": "adamw_8bit", "paged-adamw": "paged_adamw_32bit",
    "paged-adamw-8bit": "paged_adamw_8bit", "sgd": "sgd", "adafactor": "adafactor", "lion": "lion_32bit",
}  # fmt: skip
"""transformers' names (`training_args.OptimizerNames`); muon has none there, and has in axolotl."""
TASKS = {
    "causal-lm": "CAUSAL_LM", "sequence-classification": "SEQ_CLS", "token-classification": "TOKEN_CLS",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
}  # fmt: skip
"""peft's kinds of task; others need none."""


class Snippet(Record):
    """A text to copy."""

    title: str
    language: str
    text: str


def snippets_of(settings: Settings) -> list[Snippet]:
    """The step in the words of each tool that trains such a workload."""
    snippets = [Snippet(title="Hugging Face Trainer", language="python", text=trainer_text(settings))]
    if settings.workload == "causal-lm":
        snippets += [
            Snippet(title="TRL SFTTrainer", language="python", text=trl_text(settings)),
            Snippet(title="axolotl", language="yaml", text=axolotl_text(settings)),
        ]
    return snippets


def trainer_text(settings: Settings) -> str:
    """Arguments of transformers' Trainer, and what its model is loaded with, as Python."""
    length = f"pad or pack to {settings.batch.sequence_length} tokens"
    notes = [] if settings.workload in WITHOUT_TOKENS else [length]
    return _python("transformers", "TrainingArguments", _arguments(settings), settings, notes)


def trl_text(settings: Settings) -> str:
    """Arguments of TRL's SFTTrainer, and what its model is loaded with, as Python."""
    # sft_config.py has gradient checkpointing and bf16 on by default, so both are always stated
    arguments = _arguments(settings) | {"max_length": settings.batch.sequence_length, "packing": False}
    arguments |= {name: arguments.get(name, False) for name in ("bf16", "fp16")}
    padded = "samples are padded to the longest of a batch, so this is its longest step"
    return _python("trl", "SFTConfig", arguments, settings, [padded])


def _arguments(settings: Settings) -> dict[str, Any]:
    batch, schedule = settings.batch, settings.schedule
    arguments: dict[str, Any] = {
        "output_dir": f"runs/{settings.name}", "per_device_train_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps, "num_train_epochs": float(schedule.epochs),
        "learning_rate": settings.optimizer.learning_rate, "weight_decay": settings.optimizer.weight_decay,
        "max_grad_norm": settings.optimizer.max_gradient_norm or 0.0,
        "gradient_checkpointing": settings.activation_checkpointing == "blocks" and settings.parallel.kind != "fsdp",
    }  # fmt: skip
    if settings.precision in ("bf16-mixed", "fp16-mixed"):
        arguments[settings.precision[:4]] = True
    if settings.precision == "tf32":
        arguments["tf32"] = True
    if settings.optimizer.name in OPTIMIZERS:
        arguments["optim"] = OPTIMIZERS[settings.optimizer.name]
    if settings.parallel.kind == "fsdp":
        arguments |= {"fsdp": True, "fsdp_config": {"version": 2, **_sharding(settings)}}
    return arguments


def _sharding(settings: Settings) -> dict[str, bool]:
    # training_args.py:2797: under FSDP its own recomputation, which does not gather weights twice
    recomputes = {"activation_checkpointing": True} if settings.activation_checkpointing == "blocks" else {}
    return {"reshard_after_forward": True, **recomputes}


def _python(library: str, config: str, arguments: Mapping[str, Any], settings: Settings, notes: Iterable[str]) -> str:
    """A file of Python: `arguments`, `model_kwargs`, `adapter` where there is one, and what it cannot say."""
    lines = [f"from {library} import {config}"]
    model: dict[str, str] = {"dtype": repr(settings.weights_dtype)}
    if settings.model.attention != "auto":
        model["attn_implementation"] = repr(settings.model.attention.partition(":")[0])
    if settings.quantization != "none":
        lines.append("from transformers import BitsAndBytesConfig")
        model["quantization_config"] = _quantization(settings)
    if settings.adapter.kind == "lora":
        lines.append("from peft import LoraConfig")
    lines += ["", "arguments = " + _call(config, {name: repr(value) for name, value in arguments.items()})]
    lines += [f"model_kwargs = {_call('dict', model)}  # of from_pretrained({_weights(settings)!r}, ...)"]
    if settings.adapter.kind == "lora":
        lines.append(f"adapter = {_call('LoraConfig', _adapter(settings))}")
    return "\n".join([*lines, *(f"# {note}" for note in [*notes, *_python_notes(settings)])]) + "\n"


def _quantization(settings: Settings) -> str:
    if settings.quantization == "int8":
        return "BitsAndBytesConfig(load_in_8bit=True)"
    compute = "bfloat16" if settings.precision.startswith("bf16") else "float16"
    compute = compute if settings.precision not in ("fp32", "tf32") else "float32"
    double = settings.quantization == "nf4-double"
    return (
        f"BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant={double}, "
        f"bnb_4bit_compute_dtype='{compute}')"
    )


def _adapter(settings: Settings) -> dict[str, str]:
    adapter = settings.adapter
    arguments: dict[str, Any] = {
        "r": adapter.rank, "lora_alpha": _whole(adapter.alpha), "lora_dropout": adapter.dropout,
        "target_modules": adapter.targets,
    }  # fmt: skip
    if settings.workload in TASKS:
        arguments["task_type"] = TASKS[settings.workload]
    return {name: repr(value) for name, value in arguments.items()}


def _python_notes(settings: Settings) -> list[str]:
    name, parallel = settings.optimizer.name, settings.parallel
    notes = []
    if name not in OPTIMIZERS:
        notes.append(f"{name}: the Trainer has no such optimizer; pass it as `optimizers`")
    if settings.model.attention.startswith("sdpa:"):
        kernel = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
        backend = kernel.get(settings.model.attention.partition(":")[2], "MATH")
        notes.append(f"train under torch.nn.attention.sdpa_kernel(SDPBackend.{backend})")
    if settings.activation_checkpointing == "selective":
        notes.append("selective recomputation: the Trainer has all blocks or none; this is none")
    if parallel.world_size > 1:
        notes.append(f"start it with: torchrun --nproc-per-node {parallel.world_size} train.py")
    if settings.media.model_fields_set:
        media = ", ".join(f"{word} {getattr(settings.media, word)}" for word in sorted(settings.media.model_fields_set))
        notes.append(f"prepare samples with {media}")
    return notes


def axolotl_text(settings: Settings) -> str:
    """A configuration file of axolotl for the same step."""
    batch, optimizer = settings.batch, settings.optimizer
    content: dict[str, Any] = {
        "base_model": _weights(settings), "output_dir": f"runs/{settings.name}",
        "micro_batch_size": batch.micro_batch_size, "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "num_epochs": float(settings.schedule.epochs), "sequence_len": batch.sequence_length,
        "sample_packing": False, "pad_to_sequence_len": True, "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay, "max_grad_norm": optimizer.max_gradient_norm or 0.0,
        "optimizer": OPTIMIZERS.get(optimizer.name, optimizer.name),
        "gradient_checkpointing": settings.activation_checkpointing == "blocks" and settings.parallel.kind != "fsdp",
        **_axolotl_formats(settings.precision),
    }  # fmt: skip
    if settings.model.attention != "auto":
        content["attn_implementation"] = settings.model.attention.partition(":")[0]
    if settings.adapter.kind == "lora":
        content |= {
            "adapter": "qlora" if settings.quantization.startswith("nf4") else "lora",
            "lora_r": settings.adapter.rank, "lora_alpha": _whole(settings.adapter.alpha),
            "lora_dropout": settings.adapter.dropout, "lora_target_linear": True,
        }  # fmt: skip
    if settings.quantization != "none":
        content["load_in_8bit" if settings.quantization == "int8" else "load_in_4bit"] = True
    if settings.parallel.kind == "fsdp":
        content |= {"fsdp_version": 2, "fsdp_config": _sharding(settings)}
    return yaml.safe_dump(content, sort_keys=False) + "".join(f"# {note}\n" for note in _axolotl_notes(settings))


def _axolotl_formats(precision: str) -> dict[str, bool]:
    # its words are bf16 and fp16 for autocast, bfloat16 and float16 without; the first default to what the card has
    formats = dict.fromkeys(("bf16", "fp16", "tf32"), False)
    words = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "bf16-true": "bfloat16", "fp16-true": "float16"}
    return formats | ({words.get(precision, precision): True} if precision != "fp32" else {})


def _axolotl_notes(settings: Settings) -> list[str]:
    notes = ["datasets: name yours here, as its documentation says"]
    if settings.precision.endswith("-mixed") and settings.model.dtype == "auto":
        short = settings.precision[:4]
        notes.append(f"{short}: axolotl keeps the weights in {short} too, which is model.dtype here")
    if settings.activation_checkpointing == "selective":
        notes.append("selective recomputation: its selective_checkpointing keeps other operators; left out")
    if settings.model.attention.startswith("sdpa:"):
        notes.append(f"{settings.model.attention}: axolotl lets PyTorch choose among its kernels")
    if settings.parallel.world_size > 1:
        notes.append(f"start it with: axolotl train FILE --launcher torchrun -- --nproc-per-node "
                     f"{settings.parallel.world_size}")  # fmt: skip
    return notes


def _weights(settings: Settings) -> str:
    """The hub id of a catalogue name; ids are kept in lower case, and the hub knows them so."""
    return hub_id(settings.model.name)


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _call(name: str, arguments: Mapping[str, str]) -> str:
    return "\n".join([f"{name}(", *(f"    {key}={value}," for key, value in arguments.items()), ")"])
