"""Decoders of transformers that are tested, type by type, to do what this package asks of a causal language model.

A row may hold several documents, each as if it were alone (`documents.py`); and logits are the output layer's, times a
number or bent at most, so that a loss in chunks is the usual one (`chunked_loss.py`).
"""

DECODER_TYPES = frozenset({
    "apertus", "arcee", "codegen", "cohere", "deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5", "exaone4",
    "falcon", "flex_olmo", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granite_swa", "granitemoe", "helium",
    "hunyuan_v1_dense", "internlm3", "iquestcoder", "jais2", "llama", "llama4_text", "mellum", "mimo_v2_flash",
    "minimax_m2", "ministral3", "mistral", "mixtral", "mpt", "olmo", "olmo2", "olmo3", "olmoe", "opt", "phi", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm",
    "starcoder2", "youtu",
})  # fmt: skip
"""Values of `model_type`."""
MASKS_ONLY = frozenset({"falcon", "stablelm"})
"""Those that do not hand a call's further arguments on to their attention (transformers 5.24)."""
