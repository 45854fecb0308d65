"""Workloads of images and sound: memory as unmodified scripts have it, sizes, losses, and what is refused."""

import contextlib
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    ASTConfig,
    BertConfig,
    CLIPConfig,
    ResNetConfig,
    SiglipConfig,
    SwinConfig,
    ViTConfig,
    Wav2Vec2Config,
    WhisperConfig,
)

import forerun
from forerun.errors import InvalidSettings, NotSupported
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.build import prepare_model
from forerun.step.heads import generic_workload
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parents[3] / "tests" / "scripts"
TOWER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**TOWER, "vocab_size": 256, "max_position_embeddings": 32, "eos_token_id": 2, "bos_token_id": 1}
CLIP = CLIPConfig(text_config=TEXT, vision_config={**TOWER, "image_size": 64, "patch_size": 16}, projection_dim=32)
WHISPER = WhisperConfig(
    vocab_size=256, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=128, decoder_ffn_dim=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
)  # fmt: skip
AST = ASTConfig(**TOWER, max_length=64, num_mel_bins=32)
VIT = ViTConfig(**TOWER, image_size=64)
SOUND = Wav2Vec2Config(
    **TOWER, vocab_size=32, conv_dim=(32,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
)  # fmt: skip


@pytest.fixture
def settings(tmp_path):
    def make(config, workload, sequence_length=16, size=4, **changes):
        config.save_pretrained(tmp_path)
        model = {"name": str(tmp_path), **changes.pop("model", {})}
        batch = {"micro_batch_size": size, "sequence_length": sequence_length}
        content = {"name": "m", "workload": workload, "model": model, "batch": batch, "data": {"examples": 64}}
        return settings_from({**content, "optimizer": {"max_gradient_norm": 1.0}, **changes})

    return make


@pytest.mark.medium
@pytest.mark.parametrize(
    ("script", "config", "workload", "changes"),
    [
        ("trainer_vit.py", VIT, "image-classification", {"size": 8}),
        # labels of 6 to 8 tokens, padded to the longest
        ("whisper_finetune.py", WHISPER, "speech-seq2seq", {"sequence_length": 8, "activation_checkpointing": "blocks"}),
        ("clip_finetune.py", CLIP, "image-text-contrastive", {"size": 8, "model": {"freeze": ["vision_model.*"]}}),
    ],
)  # fmt: skip
def test_memory_by_settings_is_that_of_the_unmodified_script(settings, script, config, workload, changes):
    """The Trainer and accelerate add a few small tensors of their own: 1 %, most of it copies of outputs in fp32."""
    command = ["python", str(SCRIPTS / script)]
    with contextlib.redirect_stdout(sys.stderr):
        (script_forecast,), _ = forecast_program(parse_command(command), command, [device("t4")])
    by_settings = forerun.forecast(settings(config, workload, precision="fp16-mixed", **changes), gpu="t4")
    assert by_settings.parameters == script_forecast.parameters
    peaks = by_settings.memory.peak_allocated_bytes, script_forecast.memory.peak_allocated_bytes
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)


@pytest.mark.parametrize(
    ("config", "workload", "changes"),
    [
        (VIT, "image-classification", {}),
        (SOUND, "speech-ctc", {"media": {"audio_seconds": 0.5}}),
        (SOUND, "audio-classification", {"media": {"audio_seconds": 0.5}}),
        (AST, "audio-classification", {}),
        (WHISPER, "audio-classification", {}),
        (CLIP, "image-text-contrastive", {}),
        (SiglipConfig(text_config=TEXT, vision_config={**TOWER, "image_size": 64}), "image-text-contrastive", {}),
    ],
)  # fmt: skip
def test_a_step_is_forecast_and_its_loss_is_the_models(settings, config, workload, changes):
    asked = settings(config, workload, **changes)
    forecast = forerun.forecast(asked, gpu="rtx-3090")
    assert forecast.fits
    assert forecast.step.samples_per_second == pytest.approx(4 / forecast.step.seconds.expected)
    assert any("decoding images" in gap for gap in forecast.not_modelled)
    head = generic_workload(workload)
    model = prepare_model(asked, head, pretrained=False).eval()
    batch = head.example_batch(asked, 3, 16)
    if workload == "speech-ctc":
        batch["input_values"] = torch.randn(batch["input_values"].shape)
        batch["labels"] += 1  # 0 is no label there
    elif workload == "audio-classification":
        batch |= {name: torch.randn(value.shape) for name, value in batch.items() if value.is_floating_point()}
    else:
        batch["pixel_values"] = torch.randn(batch["pixel_values"].shape)
    own = model(**batch, **({"return_loss": True} if workload == "image-text-contrastive" else {})).loss
    factor = 1 if workload == "speech-ctc" else 3
    assert head.loss(model, batch).sum.item() == pytest.approx(factor * own.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("config", "workload", "adapter"),
    [(WHISPER, "speech-seq2seq", {}), (VIT, "image-classification", {"adapter": {"kind": "lora"}, "quantization": "nf4"})],
)  # fmt: skip
def test_weights_of_16_bits_get_inputs_of_16_bits(settings, config, workload, adapter):
    narrow = forerun.forecast(settings(config, workload, precision="bf16-true", **adapter), gpu="rtx-3090")
    wide = forerun.forecast(settings(config, workload), gpu="rtx-3090")
    assert narrow.memory.breakdown.parameter_bytes < 0.6 * wide.memory.breakdown.parameter_bytes


def test_an_image_size_of_ones_own_interpolates_positions_or_is_taken_as_it_is(settings):
    own = forerun.forecast(settings(VIT, "image-classification"), gpu="t4")
    larger = forerun.forecast(settings(VIT, "image-classification", media={"image_size": 128}), gpu="t4")
    assert larger.memory.breakdown.parameter_bytes == own.memory.breakdown.parameter_bytes
    assert larger.memory.peak_allocated_bytes > own.memory.peak_allocated_bytes
    assert own.step.tokens_per_second == 0
    swin = SwinConfig(embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=4, image_size=64)
    assert forerun.forecast(settings(swin, "image-classification", media={"image_size": 128}), gpu="t4").fits


@pytest.mark.parametrize(
    ("config", "workload", "changes", "error", "message"),
    [
        (BertConfig(**TOWER), "image-classification", {}, InvalidSettings, "Bert has no head for image-classification"),
        (VIT, "causal-lm", {}, InvalidSettings, "ViT has no head for causal-lm. It has: image-classification"),
        (ResNetConfig(), "image-classification", {}, InvalidSettings, "media.image_size: the configuration of"),
        (SOUND, "speech-ctc", {}, InvalidSettings, "media.audio_seconds: the configuration of"),
        (WHISPER, "speech-seq2seq", {"media": {"audio_seconds": 10}}, InvalidSettings, "pads all sound to 30 s; found 10"),
        (AST, "audio-classification", {"media": {"audio_seconds": 10}}, InvalidSettings, "AST pads all sound to 0.64 s"),
        (SOUND, "audio-classification", {}, InvalidSettings, "media.audio_seconds: the configuration of"),
        (CLIP, "image-text-contrastive", {"sequence_length": 64}, InvalidSettings, "positions for 32 tokens; found 64"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(settings, config, workload, changes, error, message):
    with pytest.raises(error, match=message):
        forerun.forecast(settings(config, workload, **changes), gpu="t4")


def test_a_model_that_reads_something_else_is_refused(settings):
    from transformers import ImageGPTConfig

    asked = settings(ImageGPTConfig(n_embd=32, n_layer=2, n_head=2), "image-classification")
    with (
        torch.device("meta"),
        pytest.raises(NotSupported, match="ImageGPTForImageClassification takes no pixel_values"),
    ):
        prepare_model(asked, generic_workload(asked.workload), pretrained=False)
