"""A small twin of a default configuration, by the names of its fields alone.

The width is divided by one number that all heads and widths share, so that a head keeps its size and what depends on it
(rotary sections, convolutions over a head) stays valid. Lists with one entry for each layer are cut to the layers left.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LAYERS = re.compile(r"(^|_)(n_layers?|num_layers|num_hidden_layers|layers|n_blocks|num_blocks|depth|n_layer)$")
WIDTH = re.compile(
    r"(^|_)(hidden_size|d_model|n_embd|embed_dim|embedding_size|intermediate_size|ffn_dim|d_ff|n_inner|dim_feedforward|"
    r"inner_dim|projection_dim|hidden_dim|width|ffn_hidden_size|d_embed|out_hidden_size|lru_width)$|^dim$"
)
HEADS = re.compile(
    r"(^|_)(num_attention_heads|n_heads?|num_heads|attention_heads|decoder_attention_heads|linear_num_.*heads)$"
)
KEY_VALUE_HEADS = re.compile(r"(num_key_value_heads|n_head_kv|num_kv_heads|multi_query_group_num)$")
EXPERTS = re.compile(r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_moe_experts|n_experts)$")
CHOSEN_EXPERTS = re.compile(r"(num_experts_per_tok|top_k|topk|moe_topk|moe_k|experts_per_token|num_selected_experts)$")
GROUPS = re.compile(r"(^|_)(n_group|topk_group)$")
VOCABULARY = re.compile(r"^(n_vocab|(?!type_)(\w+_)?vocab_size)$")
TOKEN = re.compile(r"(_token_id|_token_index|_token_ids|_id)$")
IMAGE = re.compile(r"(^|_)image_size$")
QUERIES = re.compile(r"(^|_)(num_queries|two_stage_num_proposals|num_denoising)$")
POSITIONS = re.compile(r"(^|_)max_source_positions$")
STAGES = ("out_features", "out_indices")
"""Names of stages: the configuration finds those of its own depth."""
MOST = {"vocabulary": 1024, "experts": 4, "chosen": 2, "image": 224, "queries": 40, "positions": 64}


@dataclass(frozen=True)
class Size:
    """How small a twin is: layers, and whether widths are divided."""

    layers: int
    narrow: bool


SIZES = (Size(4, True), Size(8, True), Size(2, False))


def shrunk(config: dict[str, Any], size: Size) -> dict[str, Any]:
    """A small twin of a configuration given as nested dictionaries."""
    factor = _common_factor(config) if size.narrow else 1
    return _shrunk(config, size, factor)


ALIGNED = 8
"""Widths of models with experts stay multiples of it: CUDA's grouped products refuse rows of other than 16 bytes."""


def _common_factor(config: dict[str, Any]) -> int:
    """The largest number that divides all widths and heads, and leaves aligned widths where there are experts."""
    sizes = [(name, value) for name, value in _fields(config) if _is_int(value) and value > 1]
    widths = [value for name, value in sizes if WIDTH.search(name)]
    aligned = ALIGNED if any(EXPERTS.search(name) for name, _ in sizes) else 1
    numbers = [value // aligned if value % aligned == 0 else value for value in widths]
    numbers += [value for name, value in sizes if HEADS.search(name)]
    return math.gcd(*numbers) if numbers else 1


def _fields(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _fields(value)
        elif isinstance(name, str):
            yield name, value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shrunk(config: dict[str, Any], size: Size, factor: int) -> dict[str, Any]:
    lengths = {
        value for name, value in config.items() if _is_int(value) and LAYERS.search(name) and value > size.layers
    }
    vocabulary = min([v for n, v in config.items() if _is_int(v) and VOCABULARY.search(n) and v > 0], default=0)
    per_layer = [value for name, value in config.items() if isinstance(value, list | tuple) and len(value) in lengths]
    layers = _varied(per_layer, size.layers)
    taken: dict[int, int] = {}
    small: dict[str, Any] = {}
    for name, value in config.items():
        if not isinstance(name, str):
            small[name] = value
        elif name in STAGES:
            continue
        elif name.endswith("layerdrop"):
            small[name] = 0.0  # layers left out by chance would differ between two runs
        elif isinstance(value, dict):
            small[name] = _shrunk(value, size, factor)
        elif isinstance(value, list | tuple):
            cut = len(value) in lengths and not TOKEN.search(name) and name != "id2label"
            small[name] = [value[layer] for layer in layers] if cut else _few_layers(name, value)
        elif _is_int(value):
            small[name] = _number(name, value, size, factor)
            if TOKEN.search(name) and vocabulary and value >= min(vocabulary, MOST["vocabulary"]):
                small[name] = taken.setdefault(value, MOST["vocabulary"] - 1 - len(taken))
        else:
            small[name] = value
    return small


def _varied(per_layer: list[Any], count: int) -> list[int]:
    """`count` layers with one of each kind, as far as they go: a hybrid model keeps all its mechanisms."""
    first: dict[str, int] = {}
    longest = min(map(len, per_layer), default=0)
    for layer in range(longest):
        first.setdefault(str([value[layer] for value in per_layer if len(value) == longest]), layer)
    others = [layer for layer in range(longest) if layer not in first.values()]
    return sorted([*first.values(), *others][:count])


def _few_layers(name: str, value: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Depths of stages."""
    few = re.search(r"(depths|layers|num_blocks|depth)$", name) and value and all(map(_is_int, value))
    return [min(each, 2) for each in value] if few else list(value)


def _number(name: str, value: int, size: Size, factor: int) -> int:
    limits = (
        (LAYERS, size.layers), (VOCABULARY, MOST["vocabulary"]),
        (EXPERTS, MOST["experts"]), (CHOSEN_EXPERTS, MOST["chosen"]),
        (GROUPS, 1), (IMAGE, MOST["image"]), (QUERIES, MOST["queries"]), (POSITIONS, MOST["positions"]),
    )  # fmt: skip
    for pattern, most in limits:
        if pattern.search(name):
            return min(value, most)
    if KEY_VALUE_HEADS.search(name):
        return max(1, value // factor)
    if (WIDTH.search(name) or HEADS.search(name)) and value > 1:
        return value // factor
    return value
