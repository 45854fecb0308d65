"""Sizes of models on the hub, as the table in the package llmfit states them, in the words of transformers.

The table (llmfit 1.1.17, MIT, Alex Jones; read from the program in its wheel) has for each hub id what the hub's own
API gives: the tensors of the files counted exactly, and sizes of the configuration. It lacks some fields: whether
embeddings are tied, biases. So a row is taken only where a model of transformers, built of those sizes with
one choice of the lacking ones, has *exactly* the elements that the files have, with buffers that older files
hold allowed for by name.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from forerun.models.build import build_model

Fields = dict[str, Any]
FACTS = "llmfit 1.1.17 (MIT; facts of the hub's API, read 2026-11-23)"
NOT_THE_WEIGHTS = (
    "awq", "gptq", "gguf", "fp8", "bnb", "4bit", "8bit", "mlx", "nvfp4", "int4", "int8", "w4a16", "w8a8", "quantized",
    "exl2", "mxfp", "eagle", "draft", "random", "onnx", "ablit", "uncensor", "heretic", "2bit", "6bit", "3bit", "5bit",
    "nf4", "fp4", "litert", "-ov", "autoround", "-sae", "dummy", "-test", "dspark", "jirack", "speculator", "internal",
    "nsfw",
)  # fmt: skip
"""Parts of ids of packed copies, toys, draft models and tests."""
ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "mpnet", "electra", "distilbert", "camembert")
WINDOWED_VOCABULARY = range(32_000, 32_064)
"""Of Mistral 7B v0.1, the one of its type that attends to a window (litgpt 0.5.13), and of what was tuned from it."""


def read_facts(program: Path) -> list[Mapping[str, Any]]:
    """Rows of the table inside the program of llmfit, most downloaded first; one for each id."""
    content = program.read_bytes()
    begin = content.rfind(b"[\n  {", 0, content.find(b'"parameters_raw"'))
    rows, _ = json.JSONDecoder().raw_decode(content[begin : begin + 40 * 2**20].decode("utf-8", errors="replace"))
    known: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: -(row["hf_downloads"] or 0)):
        identity = row["name"].lower()
        if "/" in identity and not any(part in identity for part in NOT_THE_WEIGHTS):
            known.setdefault(identity, row)
    return list(known.values())


def _llama(row: Mapping[str, Any]) -> Fields:
    fields = {
        "vocab_size": row["vocab_size"], "hidden_size": row["hidden_size"],
        "intermediate_size": row["moe_intermediate_size"], "num_hidden_layers": row["num_hidden_layers"],
        "num_attention_heads": row["num_attention_heads"], "num_key_value_heads": row["num_key_value_heads"],
        "max_position_embeddings": row["context_length"],
    }  # fmt: skip
    is_derived = row["head_dim"] == row["hidden_size"] // row["num_attention_heads"]
    return fields if is_derived else fields | {"head_dim": row["head_dim"]}


def _headed(row: Mapping[str, Any]) -> Fields:
    """Types whose class has a width of heads of its own."""
    return _llama(row) | {"head_dim": row["head_dim"]}


def _mistral(row: Mapping[str, Any]) -> Fields:
    # a window longer than any sequence is none; TOML has no null
    is_windowed = row["vocab_size"] in WINDOWED_VOCABULARY
    return _llama(row) | ({} if is_windowed else {"sliding_window": row["context_length"] + 1})


def _experts(count: str, width: str = "moe_intermediate_size") -> Callable[[Mapping[str, Any]], Fields]:
    def fields(row: Mapping[str, Any]) -> Fields:
        of_experts = {count: row["num_experts"], "num_experts_per_tok": row["active_experts"]}
        if width == "intermediate_size":
            return _llama(row) | of_experts
        return {k: v for k, v in _headed(row).items() if k != "intermediate_size"} | of_experts | {
            width: row["moe_intermediate_size"]
        }  # fmt: skip

    return fields


def _without(
    *names: str, base: Callable[[Mapping[str, Any]], Fields] = _llama
) -> Callable[[Mapping[str, Any]], Fields]:
    return lambda row: {key: value for key, value in base(row).items() if key not in names}


def _gpt_neox(row: Mapping[str, Any]) -> Fields:
    return _without("num_key_value_heads")(row)


def _gpt2(row: Mapping[str, Any]) -> Fields:
    return {
        "vocab_size": row["vocab_size"], "n_embd": row["hidden_size"], "n_layer": row["num_hidden_layers"],
        "n_head": row["num_attention_heads"], "n_positions": row["context_length"],
    }  # fmt: skip


def _opt(row: Mapping[str, Any]) -> Fields:
    return {
        "vocab_size": row["vocab_size"], "hidden_size": row["hidden_size"], "word_embed_proj_dim": row["hidden_size"],
        "ffn_dim": 4 * row["hidden_size"], "num_hidden_layers": row["num_hidden_layers"],
        "num_attention_heads": row["num_attention_heads"], "max_position_embeddings": row["context_length"],
    }  # fmt: skip


def _bloom(row: Mapping[str, Any]) -> Fields:
    return {
        "vocab_size": row["vocab_size"], "hidden_size": row["hidden_size"], "n_layer": row["num_hidden_layers"],
        "n_head": row["num_attention_heads"],
    }  # fmt: skip


def _mamba(row: Mapping[str, Any]) -> Fields:
    return {k: row[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers")}


def _falcon(row: Mapping[str, Any]) -> Fields:
    return {k: row[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}


def _bert(row: Mapping[str, Any]) -> Fields:
    return _without("num_key_value_heads")(row) | {"max_position_embeddings": row["context_length"]}


def _roberta(row: Mapping[str, Any]) -> Fields:
    # positions begin behind the padding id (transformers/models/roberta/modeling_roberta.py, 5.23)
    positions = row["context_length"] + (2 if row["context_length"] % 2**8 == 0 else 0)
    return _bert(row) | {"max_position_embeddings": positions, "type_vocab_size": 1}


TIED = {"tie_word_embeddings": (True, False)}
BIASED = {"attention_bias": (False, True)}
TRANSLATIONS: dict[str, tuple[Callable[[Mapping[str, Any]], Fields], dict[str, tuple[Any, ...]]]] = {
    "llama": (_llama, TIED | BIASED), "mistral": (_mistral, TIED), "qwen2": (_llama, TIED),
    "qwen3": (_headed, TIED), "gemma": (_headed, {}), "gemma2": (_headed, {}), "gemma3_text": (_headed, {}),
    "phi": (_llama, {}), "phi3": (_llama, TIED), "granite": (_llama, TIED), "olmo": (_llama, TIED),
    "olmo2": (_llama, {}), "olmo3": (_llama, {}), "smollm3": (_llama, TIED), "stablelm": (
        _llama, TIED | {"use_qkv_bias": (False, True), "use_parallel_residual": (False, True)}
    ),
    "glm": (_headed, BIASED), "glm4": (_headed, BIASED), "starcoder2": (_llama, TIED), "cohere": (_llama, {}),
    "cohere2": (_llama, {}), "exaone4": (_llama, TIED), "apertus": (_llama, {}), "arcee": (_llama, TIED),
    "seed_oss": (_headed, TIED), "helium": (_headed, TIED), "ernie4_5": (_headed, TIED), "nemotron": (_llama, TIED),
    "hunyuan_v1_dense": (_headed, TIED), "gpt_neox": (_gpt_neox, TIED), "gpt2": (_gpt2, {}), "opt": (_opt, {}),
    "bloom": (_bloom, {}), "mamba": (_mamba, TIED), "mamba2": (_mamba, TIED), "falcon": (_falcon, {
        "new_decoder_architecture": (False, True), "bias": (False, True), "alibi": (False, True),
        "multi_query": (True, False),
    }), "falcon_mamba": (_mamba, TIED), "gpt_oss": (_experts("num_local_experts", "intermediate_size"), {}),
    "mixtral": (_experts("num_local_experts", "intermediate_size"), TIED), "olmoe": (
        _experts("num_experts", "intermediate_size"), {}
    ), "phimoe": (_experts("num_local_experts", "intermediate_size"), {
        "attention_bias": (True, False), "lm_head_bias": (True, False),
    }), "granitemoe": (_experts("num_local_experts", "intermediate_size"), TIED),
    "qwen3_moe": (_experts("num_experts"), TIED), "bert": (_bert, {"type_vocab_size": (2, 1)}),
    "roberta": (_roberta, {}), "xlm-roberta": (_roberta, {}), "modernbert": (_without("num_key_value_heads"), {}),
}  # fmt: skip
"""Type → its fields from a row, and those that the table lacks with the values that are tried, the likeliest first."""


def _linear_count(kind: str, fields: Fields, workload: str) -> int:
    """Parameters of the model: those of one layer and of two, continued, as all layers of these types are alike."""
    from transformers import AutoConfig

    depth = next(name for name in ("num_hidden_layers", "n_layer") if name in fields)
    counts = []
    for layers in (1, 2):
        with torch.device("meta"):
            model = build_model(AutoConfig.for_model(kind, **{**fields, depth: layers}), workload)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    return counts[0] + (fields[depth] - 1) * (counts[1] - counts[0])


def _held_besides(row: Mapping[str, Any], kind: str) -> Iterator[int]:
    """Elements that files hold beside parameters, by what those of that type hold."""
    layers, positions, width = row["num_hidden_layers"], row["context_length"], row["hidden_size"]
    if kind in ENCODERS:
        head = width * width + width + row["vocab_size"] + 2 * width
        yield from (positions, -(width * width + width), positions - (width * width + width), positions + 2)
        yield from (head + positions, head, head - (width * width + width), head + positions - (width * width + width))
        yield from (width + 1, width + 1 + positions, width + 3 + positions)  # one number for a text: rerankers
    if kind == "gpt2":
        yield from (layers * positions**2, layers * (positions**2 + 1))  # causal masks
    if kind in ("gpt_neox", "llama"):
        heads = row["head_dim"]
        for rotary in (heads // 2, heads // 8):
            yield layers * rotary  # inverse frequencies of rotary embeddings
            yield layers * (positions**2 + 1 + rotary)  # and causal masks
            yield layers * (positions**2 + rotary)


def shape_of_row(row: Mapping[str, Any]) -> tuple[str, Fields, int, bool] | None:
    """Type, fields, parameters, and whether the files' count is met exactly; None for types and counts that are not.

    Encoders whose files the hub does not count are taken too: their types lack no field that the table has not.
    """
    kind = row["architecture"]
    if kind not in TRANSLATIONS or not row.get("num_hidden_layers") or not row.get("hidden_size"):
        return None
    translate, lacking = TRANSLATIONS[kind]
    try:
        stated = translate(row)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    if any(value is None for value in stated.values()):
        return None
    workload = "encoder" if kind in ENCODERS else "causal-lm"
    counts: list[tuple[Fields, int]] = []
    for values in itertools.product(*lacking.values()):
        fields = stated | dict(zip(lacking, values, strict=True))
        # sizes that transformers refuses are not the model's
        with contextlib.suppress(Exception):
            counts.append((fields, _linear_count(kind, fields, workload)))
    for held in (0, *_held_besides(row, kind)):  # without anything beside, first: it needs no supposition
        for fields, count in counts:
            if row["parameters_raw"] - count == held:
                return kind, fields, count, True
    if counts and kind in ENCODERS and row["parameters_raw"] == _rough_count(row):
        return kind, *counts[0], False
    return None


def _rough_count(row: Mapping[str, Any]) -> int:
    """What the table has where the hub has no header: embeddings and twelve squares a layer."""
    width = row["hidden_size"]
    return row["vocab_size"] * width + 12 * row["num_hidden_layers"] * width**2
