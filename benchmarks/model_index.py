"""Write the index of published sizes: `python -m benchmarks.model_index LITGPT_CONFIG`.

LITGPT_CONFIG is `litgpt/config.py` of the package litgpt 0.5.13 (Apache-2.0, Lightning AI), which states the sizes of
models as their authors published them, by hub id. Only those facts are taken. Ids of one shape become one row of
`models/architectures/index.toml`, in the words of transformers; the count is made by building the model without
weights. Ids that a row written by hand lists are left out.
"""

import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.other_rows import other_rows

import forerun.models
from forerun.models.build import build_model
from forerun.models.rows import Architecture

TARGET = Path(forerun.models.__file__ or "").parent / "architectures" / "index.toml"
HEADER = """# Sizes of published models by hub id, written by `python -m benchmarks.model_index`; as encoders.toml.
# Facts are those of litgpt 0.5.13, config.py (Apache-2.0, Lightning AI), read 2026-11-23; counts by building each.
# Ids of one row have one shape; their weights, and licences, differ: see the page of each.
"""
SOURCE = "sizes by litgpt 0.5.13, config.py (Apache-2.0; read); exact count by building"
TUNED_ENDINGS = ("-instruct", "-it", "-base", "-chat")
LEFT_OUT = (
    "stablelm-base-alpha", "stablelm-tuned", "stablecode", "FreeWilly", "Platypus", "Camel", "LLaMA-2-7B-32K",
    "function-calling", "micro-llama", "open_llama", "Gemma-3-4b", "Gemma-3-12b", "Gemma-3-27b", "phi-1_5", "phi-2",
    "stable-code", "deduped", "OLMo-1B", "OLMo-7B", "pythia-14m", "pythia-31m",
)  # fmt: skip
"""Old or seldom used; Gemma 3 from 4B on also has a part for images, which that file does not describe."""


def configurations(path: Path) -> list[Any]:
    """Every configuration of the file as an object of its own class; nothing of its package is imported."""
    stubs = {name: types.ModuleType(name) for name in ("litgpt", "litgpt.model", "litgpt.utils")}
    stubs["litgpt.utils"].find_multiple = lambda number, unit: -(-number // unit) * unit  # type: ignore[attr-defined]
    sys.modules.update(stubs)
    space: dict[str, Any] = {"__name__": "litgpt_config"}
    sys.modules["litgpt_config"] = types.ModuleType("litgpt_config")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)  # noqa: S102
    return [space["Config"](**entry) for entry in space["configs"] if not any(w in entry["name"] for w in LEFT_OUT)]


def fields_of(c: Any) -> tuple[str, dict[str, Any]] | None:
    """Model type and configuration of transformers; None for a shape that is not translated."""
    llama = {
        "vocab_size": c.padded_vocab_size, "hidden_size": c.n_embd, "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.n_layer, "num_attention_heads": c.n_head, "num_key_value_heads": c.n_query_groups,
        "max_position_embeddings": c.block_size, "rms_norm_eps": c.norm_eps, "rope_theta": float(c.rope_base),
    }  # fmt: skip
    own_head = {} if c.head_size * c.n_head == c.n_embd else {"head_dim": c.head_size}
    tied = {"tie_word_embeddings": True}
    name = c.name.lower()
    if name.startswith("pythia"):
        neox = {"vocab_size": c.padded_vocab_size, "hidden_size": c.n_embd, "intermediate_size": c.intermediate_size}
        return "gpt_neox", neox | {
            "num_hidden_layers": c.n_layer, "num_attention_heads": c.n_head, "max_position_embeddings": c.block_size,
        }  # fmt: skip
    if name.startswith("falcon-"):
        new = {"new_decoder_architecture": True, "num_kv_heads": c.n_query_groups} if c.n_query_groups > 1 else {}
        return "falcon", new | {
            "vocab_size": c.padded_vocab_size, "hidden_size": c.n_embd, "num_hidden_layers": c.n_layer,
            "num_attention_heads": c.n_head, "max_position_embeddings": c.block_size,
        }  # fmt: skip
    if name.startswith("stablelm"):
        return "stablelm", {k: v for k, v in llama.items() if k != "rms_norm_eps"} | {
            "partial_rotary_factor": c.rotary_percentage, "tie_word_embeddings": False,
        }  # fmt: skip
    if name.startswith("gemma-3"):
        return "gemma3_text", llama | {"head_dim": c.head_size, "sliding_window": c.sliding_window_size}
    if name.startswith("gemma-2-"):
        scalar = c.attention_scores_scalar or c.head_size
        return "gemma2", llama | {"head_dim": c.head_size, "query_pre_attn_scalar": scalar}
    if name.startswith(("gemma", "codegemma")):  # its 4,096 are litgpt's default; transformers' class has the 8,192
        sizes = {key: value for key, value in llama.items() if key != "max_position_embeddings"}
        return "gemma", sizes | {"head_dim": c.head_size}
    if name.startswith("phi-"):
        rotary = {} if c.rotary_percentage == 1 else {"partial_rotary_factor": c.rotary_percentage}
        mini = tied if "phi-4-mini" in name else {}
        return "phi3", llama | rotary | mini | {"pad_token_id": 0}
    if name.startswith("olmo-2"):
        return "olmo2", llama
    if name.startswith("mixtral"):
        return "mixtral", llama | {"num_local_experts": c.n_expert, "num_experts_per_tok": c.n_expert_per_token}
    if name.startswith(("mistral", "mathstral")):
        return "mistral", llama | own_head | {"sliding_window": c.sliding_window_size}
    if name.startswith(("qwen2.5", "qwq")):
        small = any(f"-{size}" in name for size in ("0.5b", "1.5b", "3b"))
        return "qwen2", llama | (tied if small else {})
    if name.startswith("qwen3") and c.n_expert:
        experts = {"num_experts": c.n_expert, "num_experts_per_tok": c.n_expert_per_token, "head_dim": c.head_size}
        return "qwen3_moe", llama | experts | {"moe_intermediate_size": c.moe_intermediate_size}
    if name.startswith("qwen3"):
        small = any(f"-{size}" in name for size in ("0.6b", "1.7b", "4b"))
        return "qwen3", llama | {"head_dim": c.head_size} | (tied if small else {})
    ties = name.startswith(("smollm2", "llama-3.2"))
    return "llama", llama | own_head | (tied if ties else {})


def rows() -> list[Architecture]:
    """One row for each shape, named after the first id that has it."""
    from transformers import AutoConfig

    _, listed = other_rows(TARGET)
    shapes: dict[str, tuple[str, dict[str, Any], list[str], str]] = {}
    for entry in configurations(Path(sys.argv[1])):
        translated = fields_of(entry)
        identity = f"{entry.hf_config['org']}/{entry.hf_config['name']}".lower()
        if translated is None or identity in listed:
            continue
        kind, fields = translated
        stated = _without_defaults(kind, fields)
        _, _, ids, _ = shapes.setdefault(f"{kind} {sorted(stated.items())}", (kind, stated, [], entry.name.lower()))
        ids.append(identity)
    index: list[Architecture] = []
    for kind, stated, ids, name in shapes.values():
        with torch.device("meta"):
            model = build_model(AutoConfig.for_model(kind, **stated), "causal-lm")
        count = sum(parameter.numel() for parameter in model.parameters())
        name = free_name(name, ids[0].partition("/")[2], listed | {row.name for row in index})
        index.append(
            Architecture(
                name=name, aliases=tuple(i for i in ids if i != name), family=kind.replace("_", "-"), model_type=kind,
                config={key: value for key, value in stated.items() if value is not None},
                nulls=tuple(key for key, value in stated.items() if value is None), parameters=count,
                parameters_of="causal-lm", source=SOURCE,
            )
        )  # fmt: skip
    return index


def _without_defaults(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a configuration, without nulls that its class has by itself; Mistral's class has a window."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    default = CONFIG_MAPPING[kind]()
    return {k: v for k, v in fields.items() if v is not None or getattr(default, k, None) is not None}


def free_name(name: str, identity: str, used: set[str]) -> str:
    """The shortest of the names that no other row has; a published model is no toy, whatever it is called."""
    whole = name.replace("tiny-llama", "tinyllama").removesuffix("-hf")
    short = whole
    for ending in TUNED_ENDINGS:
        short = short.removesuffix(ending)
    return next(each for each in (short, whole, identity) if each not in used)


def main() -> None:
    """Write the file anew, one line printed for each row."""
    text = HEADER
    for row in rows():
        print(f"{row.name:34} {row.parameters:>17,}  {row.model_type:12} {len(row.aliases)} ids")
        config = ", ".join(f"{key} = {_value(value)}" for key, value in row.config.items())
        nulls = f"nulls = {json.dumps(row.nulls)}\n" if row.nulls else ""
        aliases = ", ".join(f'"{alias}"' for alias in row.aliases)
        text += (
            f'\n[[architecture]]\nname = "{row.name}"\naliases = [{aliases}]\nfamily = "{row.family}"\n'
            f'model_type = "{row.model_type}"\nconfig = {{ {config} }}\n{nulls}parameters = {row.parameters}\n'
            f'parameters_of = "causal-lm"\nsource = "{row.source}"\n'
        )
    TARGET.write_text(text, encoding="utf-8")


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}" if not isinstance(value, Mapping) else "{}"


if __name__ == "__main__":
    main()
