"""A language model of own data for llama.cpp, Ollama and LM Studio: `model.gguf` beside its weights, read back before
it counts.

Names of tensors are those of the package `gguf`; queries and keys of LLaMA are put into llama.cpp's order of rotated
pairs. Weights keep their precision (`llama-quantize` makes smaller files). llama.cpp cuts texts by rules that it knows
by name, so a tokenizer is written only where its own rule is one of them; else texts would become other tokens in
silence.

Sources: llama.cpp, `convert_hf_to_gguf.py` (LlamaModel.permute, GPT2Model, get_vocab_base) and `src/llama-vocab.cpp`
(expressions of gpt-2, smollm, qwen2 and llama-bpe).

Not covered: other architectures, mixtures of experts, stretched positions, SentencePiece, tokenizers that Forerun
learned.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forerun.data.token_data import TokenSample
from forerun.errors import MissingExtra, NotSupported
from forerun.own.facts import TaskFacts
from forerun.step.training_step import TrainingStep

GGUF = "model.gguf"
WRITES = ("causal-lm", "preference")
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt2": "gpt2"}
"""transformers' `model_type` → architecture of GGUF."""
PAIRED = ("llama",)
"""Architectures whose rotated pairs stand side by side in llama.cpp, and in two halves in transformers."""
ACROSS = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
"""Weights of GPT-2 that transformers has as (in, out), and llama.cpp as (out, in)."""
GPT2_AS_IT_WAS = {
    "activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
}  # fmt: skip
"""Settings of GPT-2 that llama.cpp takes for given."""
UNREAD = ("head_dim", "n_inner", "n_positions")
"""Sizes in the file that transformers does not read back of every architecture (5.24, integrations/ggml.py)."""
COMPARED_ROWS = 8
ELSE = "Leave --gguf out; llama.cpp's convert_hf_to_gguf.py reads the exported folder of many more models."
_SHORT, _WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|", r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {f"{_SHORT}{_WORDS}\\p{{N}}{_REST}": "qwen2", f"{_SHORT}{_WORDS}\\p{{N}}{{1,3}}{_REST}": "llama-bpe"}
"""Expression that a tokenizer cuts texts by → llama.cpp's name of it."""
NORMAL, CONTROL, ADDED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens (gguf.TokenType)."""


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
    writer = gguf.GGUFWriter(folder / GGUF, name)
    _add_sizes(writer, config, step.settings.name)
    _add_tokenizer(writer, tokenizer, facts, rule, config.vocab_size)
    for tensor_name, tensor in _tensors(step.model, config, is_paired=name in PAIRED):
        place = places.get_name(tensor_name, try_suffixes=(".weight", ".bias"))
        if place is None:
            raise NotSupported(f"--gguf: llama.cpp's {name} has no place for the tensor {tensor_name}. {ELSE}")
        _add_tensor(writer, place, tensor, gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    texts = [torch.tensor([list(sample.ids)]) for sample in samples[:COMPARED_ROWS]]
    plain, again = _answers(folder, texts), _answers(folder, texts, gguf_file=GGUF)
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
    others = [name for name, value in GPT2_AS_IT_WAS.items() if kind == "gpt2" and getattr(config, name) != value]
    if others:
        raise NotSupported(f"--gguf: GPT-2 with its own {others[0]}; found {getattr(config, others[0])!r}. {ELSE}")
    stretch = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if stretch != "default":
        raise NotSupported(f"--gguf: positions as they are; found rope_type {stretch!r}. {ELSE}")
    return config


def split_rule(tokenizer: Any) -> str:
    """llama.cpp's name of the rule by which a tokenizer cuts texts before it looks for byte pairs.

    Raises:
        NotSupported: it is none that is known here.
    """
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    first = parts["pre_tokenizer"] or {}
    steps = first["pretokenizers"] if first.get("type") == "Sequence" else [first]
    is_plain = parts["model"]["type"] == "BPE" and not parts["model"].get("byte_fallback")
    is_plain = is_plain and (parts["normalizer"] or {"type": "NFC"})["type"] == "NFC"
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}] if is_plain:
            return "gpt-2"
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "use_regex": True}] if is_plain:
            return "smollm"
        case [{"type": "Split", "pattern": {"Regex": expression}}, {"type": "ByteLevel", "use_regex": False}] if (
            is_plain and expression in SPLITS
        ):
            return SPLITS[expression]
    names = ", ".join(["gpt-2", "smollm", *SPLITS.values()])
    raise NotSupported(
        f"--gguf: a tokenizer of byte pairs that llama.cpp knows by name ({names}); found one that cuts texts "
        f"otherwise, as those do that are learned from the data. Leave --gguf out, or begin with pretrained weights."
    )


def _add_sizes(writer: Any, config: Any, name: str) -> None:
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(width)


def _add_tokenizer(writer: Any, tokenizer: Any, facts: TaskFacts, rule: str, size: int) -> None:
    added = {number: token.special for number, token in tokenizer.added_tokens_decoder.items()}
    texts = {number: token for token, number in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    kinds = [
        UNUSED if number not in texts else NORMAL if number not in added else CONTROL if added[number] else ADDED
        for number in range(size)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types(kinds)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    start = tokenizer.bos_token_id if facts.start_id is None else facts.start_id
    if start is not None:
        writer.add_bos_token_id(start)
    # a chat's template writes its own start
    writer.add_add_bos_token(start is not None and not facts.is_chat)
    for add, end in zip(
        (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id), facts.end_ids, strict=False
    ):
        add(end)
    writer.add_pad_token_id(facts.pad_id)
    if facts.is_chat and tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _tensors(model: nn.Module, config: Any, *, is_paired: bool) -> Iterator[tuple[str, Tensor]]:
    """Tensors by transformers' names, in llama.cpp's order; a head that is the embedding is not stored again."""
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if is_paired and ".q_proj." in name:
            tensor = side_by_side(tensor, config.num_attention_heads)
        elif is_paired and ".k_proj." in name:
            tensor = side_by_side(tensor, config.num_key_value_heads)
        elif name.endswith(ACROSS):
            tensor = tensor.T
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


def _answers(folder: Path, texts: Sequence[Tensor], **how: str) -> list[Tensor]:
    """Log-probabilities of the model in `folder`, in fp32; one model at a time is in memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, **how, trust_remote_code=False)
    plain = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    for name in UNREAD:
        if hasattr(plain, name):
            setattr(config, name, getattr(plain, name))
    own: dict[str, Any] = {"dtype": torch.float32, "local_files_only": True, "config": config, **how}
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **own).eval()
    with torch.no_grad():
        return [model(input_ids=ids).logits.log_softmax(-1) for ids in texts]
