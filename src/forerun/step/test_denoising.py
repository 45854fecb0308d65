"""Training denoisers: the traced step is the one that runs, its loss is diffusers' own, and what is refused."""

import contextlib
import json
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from tests.test_trace_is_run import OpNames, assert_same_operators

import forerun
from forerun.data.plan import BatchShape
from forerun.errors import ForerunError
from forerun.hardware.detect import detect_cpu
from forerun.memory.replay import replay_memory
from forerun.settings.load import settings_from
from forerun.step.build import build_step, prepare_model
from forerun.step.heads import generic_workload
from forerun.step.training_step import StepObserver
from forerun.train.measure import run_measuring_allocations
from forerun.virtual.trace_step import trace_step

pytestmark = [
    pytest.mark.scripts,
    pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed"),
    # torch.rms_norm under autocast on a CPU (aten/src/ATen/native/layer_norm.cpp, 2.13): it tells of the slower way
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
]
UNET = {
    "_class_name": "UNet2DConditionModel", "sample_size": 16, "block_out_channels": [32, 64], "layers_per_block": 1,
    "cross_attention_dim": 32, "attention_head_dim": 8, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
}  # fmt: skip
TRANSFORMER = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
JOINT = {"joint_attention_dim": 32, "pooled_projection_dim": 32}
TINY = {
    "sd": UNET,
    "sdxl": {
        **UNET, "transformer_layers_per_block": [1, 2], "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80, "use_linear_projection": True, "attention_head_dim": [2, 4],
    },
    "sd3": {
        "_class_name": "SD3Transformer2DModel", **TRANSFORMER, **JOINT, "sample_size": 16, "caption_projection_dim": 32,
        "pos_embed_max_size": 16, "dual_attention_layers": [0], "qk_norm": "rms_norm",
    },
    "flux": {
        "_class_name": "FluxTransformer2DModel", **TRANSFORMER, **JOINT, "in_channels": 16, "num_single_layers": 2,
        "guidance_embeds": True, "axes_dims_rope": [4, 6, 6],
    },
    "pixart": {
        "_class_name": "PixArtTransformer2DModel", **TRANSFORMER, "sample_size": 16, "cross_attention_dim": 32,
        "caption_channels": 32,
    },
}  # fmt: skip
LORA = {"precision": "bf16-mixed", "adapter": {"kind": "lora", "rank": 4}}


@pytest.fixture
def settings(tmp_path):
    def make(kind, size=4, **sections):
        (tmp_path / "config.json").write_text(json.dumps(TINY[kind]))
        media = {"image_size": 128, "prompt_length": 8, **sections.pop("media", {})}
        model = {"name": str(tmp_path), **sections.pop("model", {})}
        content = {"name": "d", "workload": "text-to-image", "model": model, "media": media, "data": {"examples": 64}}
        return settings_from({**content, "batch": {"micro_batch_size": size}, **sections})

    return make


def batch_of(settings):
    torch.manual_seed(0)
    batch = generic_workload("text-to-image").example_batch(settings, settings.batch.micro_batch_size, 1)
    return {key: torch.randn_like(value) for key, value in batch.items()}


UNETS = ("sd", "sdxl")


@contextlib.contextmanager
def linear_layers_without_onednn(kind):
    """Its buffers for bf16, which are the allocator's too, differ from CPU to CPU: on an EPYC 5 % of PixArt's peak.

    Convolutions of the U-Nets are forecast as oneDNN makes them.
    """
    torch._C._set_mkldnn_enabled(kind in UNETS)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parity
@pytest.mark.parametrize("changes", [{}, {"precision": "bf16-mixed"}, LORA, {"activation_checkpointing": "blocks"}])
@pytest.mark.parametrize("kind", TINY)
def test_the_step_is_that_of_a_real_one(settings, kind, changes):
    """Operators, and the peak within 1 %, more only by blocks of the host's allocator, of some kB each."""
    own, workload = settings(kind, **changes), generic_workload("text-to-image")
    step, batch = build_step(own, workload, "cpu", pretrained=False), batch_of(own)
    with linear_layers_without_onednn(kind):
        step.run([batch], StepObserver())
        with OpNames() as real:
            step.run([batch], StepObserver())
        _, measured = run_measuring_allocations(lambda: step.run([batch], StepObserver()), step, [batch])
    trace = trace_step(own, workload, detect_cpu().device, BatchShape(4, 1))
    assert_same_operators(trace, real.names)
    if kind in UNETS and own.precision == "bf16-mixed" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("without AVX-512 oneDNN makes no convolutions in bf16: PyTorch's own unfold images, 4 to 8 % more")
    forecast = replay_memory(trace, is_host=True).peak_allocated_bytes
    assert abs(forecast - measured) <= 0.01 * measured + 4096


@pytest.mark.parity
def test_the_noisy_latents_and_the_loss_are_those_of_diffusers(settings, monkeypatch):
    from diffusers import DDPMScheduler

    own, workload = settings("sd"), generic_workload("text-to-image")
    model, batch = prepare_model(own, workload, pretrained=False).eval(), batch_of(own)
    latents, noise, times = batch["latents"], torch.randn(4, 4, 16, 16), torch.tensor([1, 400, 700, 999])
    schedule = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    noisy = schedule.add_noise(latents, noise, times)
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: times)
    expected = F.mse_loss(model.denoiser(noisy, times, batch["prompt_embeddings"]).sample, noise)
    assert workload.loss(model, batch).sum.item() == pytest.approx(4 * expected.item(), rel=1e-5)
    model.config.predicts_velocity = True
    expected = F.mse_loss(
        model.denoiser(noisy, times, batch["prompt_embeddings"]).sample, schedule.get_velocity(latents, noise, times)
    )
    assert workload.loss(model, batch).sum.item() == pytest.approx(4 * expected.item(), rel=1e-5)


@pytest.mark.parity
def test_tokens_and_places_of_flux_are_those_of_its_pipeline(settings, monkeypatch):
    from diffusers import FluxPipeline

    own, workload = settings("flux", media={"image_size": 64}), generic_workload("text-to-image")
    model, batch = prepare_model(own, workload, pretrained=False).eval(), batch_of(own)
    latents, noise, share = batch["latents"], torch.randn(4, 4, 8, 8), torch.tensor([0.1, 0.4, 0.6, 0.9])
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: share)
    noisy = (1 - share[:, None, None, None]) * latents + share[:, None, None, None] * noise
    prediction = model.denoiser(
        hidden_states=FluxPipeline._pack_latents(noisy, 4, 4, 8, 8), timestep=share, guidance=torch.full((4,), 3.5),
        pooled_projections=batch["pooled_embeddings"], encoder_hidden_states=batch["prompt_embeddings"],
        txt_ids=torch.zeros(8, 3), img_ids=FluxPipeline._prepare_latent_image_ids(4, 4, 4, "cpu", torch.float32),
    ).sample  # fmt: skip
    expected = F.mse_loss(FluxPipeline._unpack_latents(prediction, 64, 64, 8), noise - latents)
    assert workload.loss(model, batch).sum.item() == pytest.approx(4 * expected.item(), rel=1e-5)


@pytest.mark.literature
@pytest.mark.parametrize(
    ("name", "adapter", "trainable"),
    [
        ("sdxl", {"rank": 4}, 5_806_080),  # a public script's log: "training lora parameters = 5806080"
        ("sd15", {"rank": 16, "targets": ["to_q", "to_k", "to_v"]}, 2_390_016),  # a reproduction of DreamBooth, 2026
    ],
)
def test_adapters_have_the_published_sizes(name, adapter, trainable):
    content = {"name": "d", "workload": "text-to-image", "model": {"name": name}, "data": {"examples": 8}}
    own = settings_from({**content, "adapter": {"kind": "lora", **adapter}})
    with torch.device("meta"):
        model = prepare_model(own, generic_workload("text-to-image"), pretrained=False)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable


def test_frozen_weights_beside_adapters_have_16_bits_under_mixed_precision(settings):
    own = settings("sd3", **LORA)
    model = prepare_model(own, generic_workload("text-to-image"), pretrained=False)
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.bfloat16, False), (torch.float32, True)}
    assert {b.dtype for b in model.buffers()} == {torch.bfloat16}
    whole = prepare_model(settings("sd3", precision="bf16-mixed"), generic_workload("text-to-image"), pretrained=False)
    assert {p.dtype for p in whole.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp16-mixed"},
        {"precision": "bf16-true", "optimizer": {"name": "adamw-8bit"}},
        {"quantization": "nf4", **LORA, "activation_checkpointing": "blocks"},
        {"quantization": "int8", **LORA},
        {"activation_checkpointing": "selective"},
        {"parallel": {"kind": "ddp", "world_size": 2}},
        {"parallel": {"kind": "fsdp", "world_size": 2}},
    ],
)
@pytest.mark.parametrize("kind", ["sdxl", "flux"])
def test_ways_to_train_are_forecast(settings, kind, changes):
    forecast = forerun.forecast(settings(kind, **changes), gpu="rtx-3090")
    assert forecast.fits
    assert any("computed once beforehand" in warning for warning in forecast.warnings)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("sd", {"media": {"image_size": 100}}, "media.image_size: a multiple of 8 pixels .*; found 100. Set it to 96"),
        ("sd3", {"media": {"image_size": 120}}, "media.image_size: a multiple of 16 pixels .*; found 120"),
        ("sd3", {"media": {"image_size": 512}}, "places for 16 x 16 patches, 256 pixels of a side; found 512"),
        ("flux", {"media": {"image_size": None}}, "media.image_size: the configuration of .* has no image size"),
        ("sd", {"model": {"attention": "flash_attention_2"}}, "model.attention: .*found 'flash_attention_2'"),
        ("sd", {"parallel": {"tensor": 2}}, "parallel.tensor=2: tensor parallelism is built for causal-lm"),
        ("sd", {"adapter": {"kind": "prompt"}}, "adapter.kind: prompt is for causal language models"),
        ("sd", {"quantization": "int8", **LORA, "activation_checkpointing": "blocks"}, "int8 layers take the reentrant"),
        ("sd", {"schedule": {"frozen_encoder_epochs": 1}}, "schedule.frozen_encoder_epochs"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(settings, kind, changes, message):
    with pytest.raises(ForerunError, match=message):
        forerun.forecast(settings(kind, **changes), gpu="rtx-3090")


def test_a_language_model_is_no_denoiser():
    content = {"name": "d", "workload": "text-to-image", "model": {"name": "tiny-llama"}, "data": {"examples": 8}}
    with pytest.raises(ForerunError, match="Llama has no head for text-to-image. It has: causal-lm"):
        forerun.forecast(content, gpu="t4")


def test_training_is_refused(settings):
    with pytest.raises(ForerunError, match="text-to-image is forecast here, not trained"):
        prepare_model(settings("sd"), generic_workload("text-to-image"), pretrained=True)
