"""Loops over experts: ours gives what transformers' gives where values are known, and even counts where they are not."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from forerun.api import forecast
from forerun.virtual import looped_experts
from forerun.virtual.looped_experts import LAYERS, Routing, even

SMALL = {
    "switch_transformers": {
        "d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2, "num_experts": 4,
        "vocab_size": 200, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "dropout_rate": 0.0,
        "router_jitter_noise": 0.0,
    },
    "nllb-moe": {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_experts": 4, "vocab_size": 200,
        "encoder_sparse_step": 2, "decoder_sparse_step": 2, "dropout": 0.0, "moe_token_dropout": 0.0,
        "second_expert_policy": "all",
    },
    "longcat_flash": {
        "hidden_size": 32, "num_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "ffn_hidden_size": 64,
        "q_lora_rank": 16, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "head_dim": 8,
        "v_head_dim": 8, "qk_head_dim": 16, "moe_topk": 2, "n_routed_experts": 4, "zero_expert_num": 2,
        "expert_ffn_hidden_size": 16, "vocab_size": 200,
    },
    "dbrx": {
        "d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": 200, "attn_config": {"kv_n_heads": 2, "rope_theta": 5e5, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "jetmoe": {
        "hidden_size": 32, "num_hidden_layers": 1, "num_key_value_heads": 2, "kv_channels": 8, "num_local_experts": 4,
        "intermediate_size": 32, "vocab_size": 200,
    },
}  # fmt: skip


def test_rows_are_dealt_evenly_and_experts_without_any_are_left_out():
    assert even(10, 4) == {0: 3, 1: 3, 2: 2, 3: 2}
    assert even(2, 4) == {0: 1, 1: 1}


@pytest.mark.parametrize("kind", ["switch_transformers", "nllb-moe", "longcat_flash", "dbrx"])
def test_the_loop_gives_what_transformers_gives(kind: str, monkeypatch: pytest.MonkeyPatch):
    """With the rows that real routing deals; experts without a row are not run."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL[kind])
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    layer = next(module for module in model.modules() if type(module).__name__ in LAYERS)
    rows = torch.randn(2, 24, 32)
    if kind in ("longcat_flash", "dbrx"):
        choices = torch.stack([torch.randperm(4)[:2] for _ in range(48)])
        inputs = (rows.view(48, 32), choices, torch.rand(48, 2))
    else:
        inputs = (rows,)
    expected = layer(*inputs)
    real = looped_experts._expert_rows

    def of_real_rows(mask: torch.Tensor, routing: Routing):
        counts = (mask != 0).sum(dim=(-1, -2)).tolist()
        return real(mask, Routing({index: count for index, count in enumerate(counts) if count}, routing.text))

    monkeypatch.setattr(looped_experts, "_expert_rows", of_real_rows)
    ours = LAYERS[type(layer).__name__](type(layer).forward)
    torch.testing.assert_close(ours(layer, *inputs), expected)


def test_nllb_gives_the_pairs_that_are_not_chosen_to_its_first_expert():
    """transformers 5.24: what the forecast says of it, counted in a real forward pass."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("nllb-moe", **SMALL["nllb-moe"])).train()
    layer = next(module for module in model.modules() if type(module).__name__ == "NllbMoeSparseMLP")
    counts: dict[str, int] = {}
    for name, expert in layer.experts.items():
        expert.register_forward_pre_hook(lambda _, rows, name=name: counts.update({name: len(rows[0])}))
    layer(torch.randn(2, 24, 32))
    assert counts == {"expert_0": 48 * 4 - 48, "expert_1": 48}
    assert looped_experts._nllb(layer.experts, 48, 64).rows == {0: 48 * 4 - 48, 1: 48}


def test_switch_drops_what_is_beyond_its_capacity():
    experts = type("Experts", (), {"num_experts": 8})()
    routing = looped_experts._switch(experts, 2048, 1024, 64)
    assert routing.rows == dict.fromkeys(range(8), 128), "64 of 128 in each of two sequences"
    assert "1,024 of 2,048 are beyond the capacity of 64 and dropped" in routing.text
    assert "dropped" not in looped_experts._switch(experts, 1024, 512, 64).text


@pytest.mark.parametrize("kind", SMALL)
def test_mixtures_in_loops_are_forecast_and_say_what_they_assume(kind: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **SMALL[kind]}))
    settings = {
        "name": "looped", "workload": "causal-lm" if kind in ("longcat_flash", "jetmoe", "dbrx") else "seq2seq-lm",
        "model": {"name": str(tmp_path)}, "data": {"examples": 8},
        "precision": "bf16-true" if kind == "dbrx" else "bf16-mixed",  # its own index_add_ refuses what autocast makes
        "batch": {"micro_batch_size": 2, "sequence_length": 64},
    }  # fmt: skip
    result = forecast(settings, "h100-80gb")
    assert result.step.seconds.expected > 0
    assert [text for text in result.warnings if text.startswith("Assumed: ") and "rout" in text]
