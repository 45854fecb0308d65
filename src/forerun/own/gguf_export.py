"""A language model of own data for llama.cpp, Ollama and LM Studio: `model.gguf` beside its weights, read back before
it counts.

Names of tensors are those of the package `gguf`; queries and keys of LLaMA are put into llama.cpp's order of rotated
pairs, and Gemma's norms have their one added. Weights keep their precision (`llama-quantize` makes smaller files). What
llama.cpp takes for given of an architecture (`AS_IT_WAS`, `own/gguf_sizes.py`) is asked of the model; its tokenizer is
written where llama.cpp cuts texts as it does (`own/gguf_tokenizer.py`).

Sources: llama.cpp, `convert_hf_to_gguf.py` (LlamaModel.permute, GPT2Model, Gemma2Model, Gemma3Model, Phi3MiniModel).

Not covered: other architectures (Gemma 1 among them, which transformers does not read back), mixtures of experts,
stretched positions, models that see.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forerun.data.token_data import TokenSample
from forerun.errors import MissingExtra, NotSupported
from forerun.own.facts import TaskFacts
from forerun.own.gguf_sizes import add_sizes, unlike
from forerun.own.gguf_tokenizer import add_tokenizer, split_rule, stripping_name
from forerun.step.training_step import TrainingStep

GGUF = "model.gguf"
WRITES = ("causal-lm", "preference")
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2", "gemma2": "gemma2",
    "gemma3_text": "gemma3", "phi3": "phi3",
}  # fmt: skip
"""transformers' `model_type` → architecture of GGUF."""
PAIRED = ("llama",)
"""Architectures whose rotated pairs stand side by side in llama.cpp, and in two halves in transformers."""
ACROSS = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
"""Weights of GPT-2 that transformers has as (in, out), and llama.cpp as (out, in)."""
ONE_LESS = ("gemma2", "gemma3")
"""Architectures whose norms transformers stores less one."""
UNREAD = ("head_dim", "n_inner", "n_positions")
_GEMMA = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "layer_types")
UNREAD_OF = {"gemma2": _GEMMA, "gemma3": (*_GEMMA, "rope_parameters"), "phi3": ("rope_parameters", "sliding_window")}
"""What the file or its architecture says, and transformers does not read back (5.24, integrations/ggml.py)."""
COMPARED_ROWS = 8
ELSE = "Leave --gguf out; llama.cpp's convert_hf_to_gguf.py reads the exported folder of many more models."


def write_gguf(
    step: TrainingStep, tokenizer: Any, facts: TaskFacts, samples: Sequence[TokenSample], folder: Path
) -> float:
    """Write `model.gguf` beside the model in `folder`; returns the largest difference of a log-probability, in nats,
    as transformers reads both, on the first samples.

    Raises:
        MissingExtra: the package `gguf` is not installed.
        NotSupported: llama.cpp has no such model or tokenizer, as far as is known here.
    """
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError as error:
        raise MissingExtra("--gguf: gguf is not installed. Install it with: pip install 'forerun[gguf]'.") from error
    config = _known_config(step, facts)
    name = ARCHITECTURES[config.model_type]
    architecture = next(each for each, title in gguf.MODEL_ARCH_NAMES.items() if title == name)
    places = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    rule = split_rule(tokenizer)
    title = stripping_name(tokenizer, step.settings.name)
    writer = gguf.GGUFWriter(folder / GGUF, name)
    add_sizes(writer, config, title)
    add_tokenizer(writer, tokenizer, facts, rule, config.vocab_size)
    for tensor_name, tensor in _tensors(step.model, config, name):
        place = places.get_name(tensor_name, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise NotSupported(f"--gguf: llama.cpp's {name} has no place for the tensor {tensor_name}. {ELSE}")
        _add_tensor(writer, place, tensor, gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    texts = [torch.tensor([list(sample.ids)]) for sample in samples[:COMPARED_ROWS]]
    unread = (*UNREAD, *UNREAD_OF.get(name, ()))
    plain, again = _answers(folder, texts, unread), _answers(folder, texts, unread, gguf_file=GGUF)
    return max(float((one - other).abs().max()) for one, other in zip(plain, again, strict=True))


def _known_config(step: TrainingStep, facts: TaskFacts) -> Any:
    """The model's configuration.

    Raises:
        NotSupported: the model writes no text, or is none of `ARCHITECTURES` without additions.
    """
    config: Any = getattr(step.model, "config", None)
    kind = getattr(config, "model_type", type(step.model).__name__)
    if facts.workload not in WRITES or kind not in ARCHITECTURES:
        raise NotSupported(
            f"--gguf: language models of {', '.join(ARCHITECTURES)}; found {kind} of {facts.workload}. {ELSE}"
        )
    if step.settings.quantization != "none" or hasattr(step.model, "peft_config"):
        raise NotSupported("--gguf: one plain model; found an adapter, or packed weights. Add --merge.")
    for rule, value, is_other in unlike(config):
        if is_other:
            raise NotSupported(f"--gguf: {rule}; found {value}. {ELSE}")
    return config


def _tensors(model: nn.Module, config: Any, architecture: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors by transformers' names, in llama.cpp's order; a head that is the embedding is not stored again."""
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in PAIRED and ".q_proj." in name:
            tensor = side_by_side(tensor, config.num_attention_heads)
        elif architecture in PAIRED and ".k_proj." in name:
            tensor = side_by_side(tensor, config.num_key_value_heads)
        elif name.endswith(ACROSS):
            tensor = tensor.T
        elif architecture in ONE_LESS and name.endswith("norm.weight"):
            tensor = tensor.float() + 1
        yield name, tensor.detach().cpu()


def side_by_side(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head in pairs (0, 1), (2, 3), … where transformers has pairs of rows half a head apart."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _add_tensor(writer: Any, name: str, tensor: Tensor, bfloat16: Any) -> None:
    if tensor.dim() < 2:  # llama.cpp adds and multiplies vectors in fp32
        writer.add_tensor(name, tensor.float().numpy())
    elif tensor.dtype == torch.bfloat16:
        writer.add_tensor(name, tensor.contiguous().view(torch.uint8).numpy(), raw_dtype=bfloat16)
    else:
        writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))


def _answers(folder: Path, texts: Sequence[Tensor], unread: Sequence[str], **how: str) -> list[Tensor]:
    """Log-probabilities of the model in `folder`, in fp32; one model at a time is in memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, **how, trust_remote_code=False)
    plain = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for name in unread:
        if hasattr(plain, name):
            setattr(config, name, getattr(plain, name))
    own: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True, "config": config, **how}
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **own).eval()
    with torch.no_grad():
        return [model(input_ids=ids).logits.log_softmax(-1) for ids in texts]
