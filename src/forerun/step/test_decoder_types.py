"""Every decoder that is said to be known: documents in a row are as if alone, and losses in chunks are the usual ones."""

import functools

import pytest
import torch
from torch import nn

from forerun.data.token_data import TokenData
from forerun.models.build import model_config
from forerun.models.catalogue import architectures
from forerun.settings.load import settings_from
from forerun.step import chunked_loss
from forerun.step.attention import take_offsets
from forerun.step.build import build_step
from forerun.step.decoder_types import DECODER_TYPES
from forerun.step.heads import generic_workload
from forerun.step.test_attention import AMPERE, cpu_kernel
from forerun.step.test_documents import samples
from forerun.step.training_step import StepObserver

WIDTHS = {
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "intermediate_size": 64, "n_inner": 64, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "num_attention_heads": 4, "num_heads": 4, "n_head": 4, "n_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rotary_dim": 4, "num_hidden_layers": 4, "n_layer": 4, "num_layers": 4,
    "n_layers": 4, "vocab_size": 80, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "qk_head_dim": 12, "v_head_dim": 8, "router_jitter_noise": 0.0,
    "attention_types": [[["global", "local"], 2]], "window_size": 6, "alibi": False,
}  # fmt: skip
REACHES = {"sliding_window": 6, "attention_chunk_size": 4}
"""Shorter than the documents."""
SCALES = {"logit_scale": 0.5, "logits_scaling": 4.0, "final_logit_softcapping": 3.0}


@functools.cache
def smallest_rows():
    rows = [row for row in architectures() if row.parameters_of == "causal-lm" and not row.name.startswith("tiny-")]
    return {row.model_type: row for row in sorted(rows, key=lambda row: -(row.parameters or 0))}


def small(model_type):
    """Name of a catalogue row of that type, and fields that make it small, look less far and scale its logits."""
    name = smallest_rows()[model_type].name
    fields = model_config(name, {}, "auto").to_dict()
    if "vision_config" in fields:
        depths = {key: 1 for key in ("num_hidden_layers", "depth") if key in fields["vision_config"]}
        widths = {key: 32 for key in ("out_hidden_size",) if key in fields["vision_config"]}
        parts = {"text_config": smaller(fields["text_config"]), "vision_config": depths | widths}
        return {"name": name, "config": parts}
    return {"name": name, "config": smaller(fields)}


def smaller(fields):
    changed = {key: value for key, value in WIDTHS.items() if key in fields}
    if "qk_rope_head_dim" in fields:
        changed |= {"head_dim": 4, "num_key_value_heads": 4}
    if fields.get("layer_types"):
        changed["layer_types"] = [*fields["layer_types"][:3], fields["layer_types"][-1]]
    changed |= {key: value for key, value in (REACHES | SCALES).items() if fields.get(key)}
    if fields["model_type"] in ("qwen2_vl_text", "qwen2_5_vl_text"):
        changed["rope_parameters"] = {**fields["rope_parameters"], "mrope_section": [1, 1, 2]}
    return changed | {key: 0.0 for key, value in fields.items() if "drop" in key and isinstance(value, float)}


def loss_and_gradients(
    model_type, padding="longest", cross_entropy="full", prepare=lambda step: None, most=2_000_000
):  # fmt: skip
    """Loss and gradients of a few documents, of a model of `most` parameters at most."""
    content = {
        "name": "a", "workload": "causal-lm", "model": small(model_type), "cross_entropy": cross_entropy,
        "batch": {"sequence_length": 16, "micro_batch_size": 8, "padding": padding},
    }  # fmt: skip
    torch.manual_seed(0)
    step = build_step(settings_from(content), generic_workload("causal-lm"), "cpu", pretrained=False)
    assert sum(p.numel() for p in step.model.parameters()) < most
    for module in step.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    prepare(step)
    data = TokenData(step.settings, samples("causal-lm"))
    batches = [data.collate(batch) for steps in data.epoch_steps(0) for batch in steps]
    total, count = torch.zeros(()), step.counted(batches)
    for batch in batches:
        total += step.micro_step(batch, count, 0, StepObserver())[0]
    return total.item(), {name: p.grad for name, p in step.model.named_parameters() if p.grad is not None}


def require_same(result, expected):
    """fp32 sums in another order: 1e-4 of the largest gradient."""
    assert result[0] == pytest.approx(expected[0], rel=1e-5)
    assert set(result[1]) == set(expected[1])
    for name, gradient in expected[1].items():
        assert (result[1][name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-8, name


@functools.cache
def expected_of(model_type):
    return loss_and_gradients(model_type)


@pytest.mark.medium
@pytest.mark.parity
@pytest.mark.parametrize("model_type", sorted(DECODER_TYPES))
def test_packed_and_chunked_is_padded_and_whole(model_type, monkeypatch):
    expected = expected_of(model_type)
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * 80 * 5)  # chunks of five tokens
    require_same(loss_and_gradients(model_type, "packed", "chunked"), expected)
    written_out = loss_and_gradients(
        model_type, "packed", prepare=lambda step: setattr(step.model.config, "_attn_implementation", "eager")
    )
    require_same(written_out, expected)


@pytest.mark.medium
@pytest.mark.parity
@pytest.mark.parametrize("model_type", sorted(chunked_loss.OTHER_DECODERS - {"bloom", "falcon_h1", "falcon_mamba"}))
def test_decoders_that_see_or_keep_a_state_have_losses_in_chunks(model_type, monkeypatch):
    expected = loss_and_gradients(model_type, most=300_000_000)
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * 80 * 5)
    require_same(loss_and_gradients(model_type, cross_entropy="chunked", most=300_000_000), expected)


@pytest.mark.medium
@pytest.mark.parity
@pytest.mark.parametrize("model_type", sorted(DECODER_TYPES))
def test_offsets_are_masks(model_type):
    """Where FlashAttention is not chosen for a type, there is nothing to compare."""
    kinds = []

    def with_offsets(step):
        settings = step.settings.model_copy(update={"precision": "bf16-mixed"})  # the choice only; the model is fp32
        kinds.append(take_offsets(step.model, settings, AMPERE).kind)

    with cpu_kernel() as calls:
        require_same(loss_and_gradients(model_type, "packed", prepare=with_offsets), expected_of(model_type))
    assert (calls["forward"] == calls["backward"] > 0) == (kinds == ["offsets"])
