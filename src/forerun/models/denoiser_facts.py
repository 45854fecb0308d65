"""What is known of denoisers without loading a library: classes of diffusers, noise, sizes of latents and prompts."""

from collections.abc import Mapping

UNET, SD3, FLUX, PIXART = (
    "UNet2DConditionModel", "SD3Transformer2DModel", "FluxTransformer2DModel", "PixArtTransformer2DModel",
)  # fmt: skip
CLASSES = (UNET, SD3, FLUX, PIXART)
FLOW = (SD3, FLUX)
"""Classes that learn the velocity of a straight flow (Esser et al. 2024, arXiv 2403.03206), the others noise."""
PIXELS_PER_LATENT = 8
"""Of a side: the VAEs of these models halve it three times (Rombach et al. 2022, arXiv 2112.10752, section 4.1)."""
NOISE_STEPS, FIRST_BETA, LAST_BETA = 1000, 0.00085, 0.012
"""Stable Diffusion's noise: `timesteps`, `linear_start`, `linear_end` of CompVis/stable-diffusion's configurations."""
PROMPT_LENGTHS: Mapping[str, int] = {UNET: 77, SD3: 77 + 256, FLUX: 512, PIXART: 300}
"""Embeddings of a prompt: CLIP's 77 tokens, and T5's `max_sequence_length` of diffusers' pipelines (0.42)."""
