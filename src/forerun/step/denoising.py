"""Training a text-to-image model's denoiser, as diffusers' example scripts do (`examples/text_to_image`, `dreambooth`).

Noise is added to an image's latents, as much as a random time says, and the denoiser learns to tell it, or the velocity
from image to noise. What VAE and text encoders make of images and prompts is taken as made beforehand. Under mixed
precision frozen weights beside adapters are in 16 bits, as the scripts cast them. Loss: squared error in fp32, mean
over a sample's latents, summed over samples.

Not covered: prior preservation, weights of the loss by time, text encoders that are trained too, moving averages.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.models.build import config_of, model_class
from forerun.models.denoiser_facts import FLOW, FLUX, PIXART, PIXELS_PER_LATENT, SD3, UNET
from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload
from forerun.step.media import in_dtype_of
from forerun.step.parallel import unwrapped
from forerun.step.precision import policy_of
from forerun.step.quantization import quantization_scales
from forerun.step.workload import Batch, LossSum

LATENTS, PROMPT, POOLED, SIZES = "latents", "prompt_embeddings", "pooled_embeddings", "size_ids"
"""Keys of a batch."""
SIZE_IDS = 6
"""SDXL is told the size of an image, where it was cut, and the size wanted, two numbers each (Podell et al. 2023, arXiv
2307.01952, section 2.2)."""
PATCH = 2
"""Latents of a side that Flux takes as one token (`FluxPipeline._pack_latents`, diffusers 0.42)."""
TIMES = 1000
GUIDANCE = 3.5
"""`--guidance_scale` of diffusers' train_dreambooth_lora_flux.py; any value costs the same."""
KERNELS = ("auto", "sdpa", "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")


class TextToImage(HeadWorkload):
    """A denoiser and the latents and embeddings of its samples."""

    name = "text-to-image"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The denoiser, checked to take the settings' attention and size."""
        model_class(config_of(settings), self.name)
        require_denoiser_settings(settings)
        if pretrained:
            raise NotSupported(
                f"workload: text-to-image is forecast here, not trained; found {settings.model.name}. Train it with "
                f"diffusers' own script; forerun exec forecasts that too."
            )
        latent_side(settings)
        return super().build_model(settings, pretrained=False)

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Latents (B, C, H, W), embeddings of prompts (B, T, D), and what else the architecture reads."""
        config, side = config_of(settings), latent_side(settings)
        kind = config.architecture
        channels = config.in_channels // PATCH**2 if kind == FLUX else config.in_channels
        width = {UNET: "cross_attention_dim", PIXART: "caption_channels"}.get(kind, "joint_attention_dim")
        tokens = settings.media.prompt_length or config.prompt_length
        batch = {
            LATENTS: torch.zeros(size, channels, side, side),
            PROMPT: torch.zeros(size, tokens, getattr(config, width)),
        }
        if kind in FLOW:
            batch[POOLED] = torch.zeros(size, config.pooled_projection_dim)
        elif getattr(config, "addition_embed_type", None) == "text_time":
            pooled = config.projection_class_embeddings_input_dim - SIZE_IDS * config.addition_time_embed_dim
            batch |= {POOLED: torch.zeros(size, pooled), SIZES: torch.zeros(size, SIZE_IDS)}
        return batch

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """Squared error of what is predicted, mean over a sample's latents, summed over samples."""
        batch, bare = in_dtype_of(model, batch), unwrapped(model)
        noise = torch.randn_like(batch[LATENTS])
        predict = _flow if bare.config.architecture in FLOW else _diffusion
        prediction, target = predict(model, bare, batch, noise)
        errors = F.mse_loss(prediction.float(), target.float(), reduction="none")
        return LossSum(errors.flatten(1).mean(dim=1).sum())

    def count(self, batch: Batch) -> float:
        """Samples in the batch."""
        return float(len(batch[LATENTS]))

    def encoder(self, model: nn.Module) -> nn.Module | None:
        """None: a denoiser has no head."""
        return None


def _diffusion(model: nn.Module, bare: Any, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The prediction at a random time of a noise schedule, and the noise or velocity that it should be."""
    latents, config = batch[LATENTS], bare.config
    times = torch.randint(0, len(bare.signal), (len(latents),), device=latents.device)
    signal = bare.signal.to(latents.dtype)[times].reshape(-1, 1, 1, 1)
    noisy = signal**0.5 * latents + (1 - signal) ** 0.5 * noise
    if config.architecture == UNET:
        added = {"text_embeds": batch[POOLED], "time_ids": batch[SIZES]} if SIZES in batch else None
        prediction = model(noisy, times, batch[PROMPT], added_cond_kwargs=added)
    else:
        added = _image_sizes(latents) if bare.denoiser.use_additional_conditions else None
        prediction = model(
            noisy, encoder_hidden_states=batch[PROMPT], timestep=times,
            added_cond_kwargs=added or {"resolution": None, "aspect_ratio": None},
        )  # fmt: skip
        prediction = prediction.chunk(2, dim=1)[0]  # the rest is a variance, which is not trained
    if config.predicts_velocity:
        return prediction, signal**0.5 * noise - (1 - signal) ** 0.5 * latents
    return prediction, noise


def _image_sizes(latents: Tensor) -> dict[str, Tensor]:
    """Height and width in pixels, and their ratio, which PixArt-Alpha of 1,024 pixels is told."""
    side = float(PIXELS_PER_LATENT * latents.shape[-1])
    return {
        "resolution": latents.new_full((len(latents), 2), side),
        "aspect_ratio": latents.new_ones((len(latents), 1)),
    }


def _flow(model: nn.Module, bare: Any, batch: Batch, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The prediction at a random place of the straight line from image to noise, and the line's direction."""
    latents = batch[LATENTS]
    shares = torch.rand(len(latents), device=latents.device).to(latents.dtype)
    share = shares.reshape(-1, 1, 1, 1)
    noisy = (1 - share) * latents + share * noise
    inputs = {"encoder_hidden_states": batch[PROMPT], "pooled_projections": batch[POOLED]}
    if bare.config.architecture == SD3:
        return model(hidden_states=noisy, timestep=TIMES * shares, **inputs), noise - latents
    guidance = latents.new_full((len(latents),), GUIDANCE) if bare.config.guidance_embeds else None
    rows = noisy.shape[-1] // PATCH
    prediction = model(
        hidden_states=_packed(noisy), timestep=shares, guidance=guidance, img_ids=_places(rows, latents),
        txt_ids=latents.new_zeros(batch[PROMPT].shape[1], 3), **inputs,
    )  # fmt: skip
    return _unpacked(prediction, rows), noise - latents


def _packed(latents: Tensor) -> Tensor:
    """Patches of 2 x 2 latents as tokens: (B, C, H, W) → (B, H/2 · W/2, 4 C)."""
    batch, channels, height, width = latents.shape
    patches = latents.view(batch, channels, height // PATCH, PATCH, width // PATCH, PATCH).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(batch, (height // PATCH) * (width // PATCH), channels * PATCH**2)


def _unpacked(tokens: Tensor, rows: int) -> Tensor:
    """Tokens as latents again, of square images."""
    batch, _, values = tokens.shape
    patches = tokens.view(batch, rows, rows, values // PATCH**2, PATCH, PATCH).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(batch, values // PATCH**2, rows * PATCH, rows * PATCH)


def _places(rows: int, like: Tensor) -> Tensor:
    """Row and column of each token of a square image, behind a zero; (tokens, 3)."""
    line = torch.arange(rows, device=like.device, dtype=like.dtype)
    down, across = line[:, None].expand(rows, rows), line[None, :].expand(rows, rows)
    return torch.stack((torch.zeros_like(down), down, across), dim=-1).reshape(-1, 3)


def latent_side(settings: Settings) -> int:
    """Latents of a side of the settings' images.

    Raises:
        InvalidSettings: no size is stated, or the denoiser does not take it.
    """
    config, size = config_of(settings), settings.media.image_size
    size = size or config.image_size
    if size is None:
        raise InvalidSettings(
            f"media.image_size: the configuration of {settings.model.name} has no image size; found null. Set "
            f"media.image_size to the pixels of a side, such as 1024."
        )
    unit = PIXELS_PER_LATENT * (1 if config.architecture == UNET else PATCH)
    if size % unit:
        raise InvalidSettings(
            f"media.image_size: a multiple of {unit} pixels for {settings.model.name}; found {size}. Set it to "
            f"{max(unit, size - size % unit)}."
        )
    most = getattr(config, "pos_embed_max_size", None)
    if config.architecture == SD3 and most is not None and size > most * unit:
        raise InvalidSettings(
            f"media.image_size: {settings.model.name} has places for {most} x {most} patches, {most * unit} pixels of "
            f"a side; found {size}. Set it to {most * unit} or less."
        )
    return size // PIXELS_PER_LATENT


def require_denoiser_settings(settings: Settings) -> None:
    """Refuse an attention that diffusers' own modules do not call.

    Raises:
        NotSupported: naming it.
    """
    attention = settings.model.attention
    if attention not in KERNELS:
        raise NotSupported(
            f"model.attention: denoisers call PyTorch's scaled_dot_product_attention, and a script gives them another; "
            f"found {attention!r}. Set it to auto, or put the script under forerun exec."
        )


def narrow_frozen(model: nn.Module, settings: Settings) -> None:
    """Cast the frozen weights beside adapters to the dtype of products, as diffusers' scripts do (`weight_dtype`)."""
    dtype = policy_of(settings).compute_dtype
    if settings.adapter.kind == "none" or dtype == policy_of(settings).parameter_dtype:
        return
    scales = {id(scale) for scale in quantization_scales(model)}
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.requires_grad and tensor.dtype == torch.float32 and id(tensor) not in scales:
            tensor.data = tensor.data.to(dtype)
