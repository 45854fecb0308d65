"""The sizes of a model for llama.cpp, and what it takes for given of an architecture, where the model says otherwise.

Sources: llama.cpp, `src/llama-model.cpp` (load_hparams of gpt2, gemma2, gemma3 and phi3) and `convert_hf_to_gguf.py`.
"""

from collections.abc import Iterator
from typing import Any

GELU = "gelu_pytorch_tanh"
AS_IT_WAS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    },
    "gemma2": {"hidden_activation": GELU, "attention_bias": False, "tie_word_embeddings": True},
    "gemma3_text": {
        "hidden_activation": GELU, "attention_bias": False, "tie_word_embeddings": True,
        "use_bidirectional_attention": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
    },
    "phi3": {"hidden_act": "silu"},
}  # fmt: skip
"""Settings that llama.cpp takes for given: `model_type` → name → value."""
TITLES = {"gpt2": "GPT-2", "gemma2": "Gemma 2", "gemma3_text": "Gemma 3", "phi3": "Phi-3"}
WIDE = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B, whose scores llama.cpp scales by the model's width over its heads, not by that of a head."""
GLOBAL_EVERY = {"gemma2": 2, "gemma3_text": 6}
"""Every how many layers one sees all positions; the others see a window."""


def unlike(config: Any) -> Iterator[tuple[str, str, bool]]:
    """What llama.cpp takes for given of this model, what the model has, and whether that is something else."""
    kind = config.model_type
    for name, usual in AS_IT_WAS.get(kind, {}).items():
        value = getattr(config, name, usual)
        yield f"{TITLES[kind]} with its own {name}", repr(value), value != usual
    for stretch in _positions(config):
        rope = stretch.get("rope_type", "default")
        yield "positions as they are", f"rope_type {rope!r}", rope != "default"
    if kind not in GLOBAL_EVERY:
        return
    wide = config.hidden_size / config.num_attention_heads
    scale = wide if config.num_hidden_layers == WIDE[kind] else config.head_dim
    own = config.query_pre_attn_scalar
    yield f"{TITLES[kind]} with query_pre_attn_scalar {scale:g}", f"{own:g}", own != scale
    every = GLOBAL_EVERY[kind]
    types = [
        "full_attention" if layer % every == every - 1 else "sliding_attention"
        for layer in range(config.num_hidden_layers)
    ]
    yield f"{TITLES[kind]} with one of {every} layers global", "other layer_types", list(config.layer_types) != types
    caps = (config.attn_logit_softcapping, config.final_logit_softcapping)
    yield "Gemma 2 with soft caps", str(caps), kind == "gemma2" and None in caps


def add_sizes(writer: Any, config: Any, name: str) -> None:
    """Write the sizes of a model called `name`."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(name)
    writer.add_context_length(_context(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    positions = _positions(config)[0]
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(positions["rope_theta"])
    writer.add_rope_dimension_count(int(width * (positions.get("partial_rotary_factor") or 1)))
    if config.model_type in GLOBAL_EVERY:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type == "gemma3_text":
        writer.add_rope_freq_base_swa(_positions(config)[1]["rope_theta"])
    if config.model_type == "phi3":
        writer.add_sliding_window(0)
        writer.add_rope_scaling_orig_ctx_len(_context(config))


def _context(config: Any) -> int:
    """Tokens that the model reads as it was trained. llama.cpp leaves Phi-3's window out, so the window is the end."""
    window = getattr(config, "sliding_window", None) if config.model_type == "phi3" else None
    return min(config.max_position_embeddings, window or config.max_position_embeddings)


def _positions(config: Any) -> list[dict[str, Any]]:
    """How positions turn queries and keys; of Gemma 3 in global layers, then in those with a window."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in parameters:
        return [parameters["full_attention"], parameters["sliding_attention"]]
    return [parameters]
