"""Denoisers of text-to-image models as transformers has models: diffusers' own classes, built from their configuration.

UNets (Stable Diffusion 1, 2, XL), and transformers over patches (SD 3, Flux, PixArt). What a prompt becomes (text
encoders) and what an image becomes (a VAE, eight pixels of a side to one latent) is no part of them. diffusers is the
user's own package: a name without it is refused with the line that installs it.

Not covered: ControlNets, adapters for images, and denoisers of other classes.
"""

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from forerun.errors import NotSupported, UnknownModel
from forerun.models.denoiser_facts import (
    CLASSES,
    FIRST_BETA,
    FLOW,
    LAST_BETA,
    NOISE_STEPS,
    PIXELS_PER_LATENT,
    PROMPT_LENGTHS,
    UNET,
)
from forerun.models.library_import import import_library
from forerun.models.rows import DIFFUSERS
from forerun.noise import quiet
from forerun.settings.plain import in_short


class DenoiserConfig(PretrainedConfig):
    """The fields of a diffusers class, and what its training takes from elsewhere."""

    model_type = DIFFUSERS
    architecture: str = UNET
    """Name of the class."""
    image_size: int | None = None
    """Pixels of a side that it was trained for."""
    prompt_length: int = 77
    """Embeddings that it reads of a prompt."""
    predicts_velocity: bool = False
    """Whether a noise schedule's velocity is learnt (Salimans & Ho 2022, arXiv 2202.00512), as by SD 2.1, not noise."""


class Denoiser(PreTrainedModel):
    """A denoiser, called as its own class is; the result is what it predicts."""

    config_class = DenoiserConfig
    base_model_prefix = "denoiser"
    main_input_name = "hidden_states"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        kind = class_of(config.architecture)
        self.denoiser: nn.Module = kind(**{name: getattr(config, name) for name in defaults_of(kind)})
        self._no_split_modules = getattr(kind, "_no_split_modules", None)
        if config.architecture not in FLOW:
            betas = torch.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, NOISE_STEPS) ** 2
            self.register_buffer("signal", torch.cumprod(1.0 - betas, dim=0), persistent=False)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """diffusers initialises its models itself."""

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        """What is predicted of latents, in their shape."""
        prediction: Tensor = self.denoiser(*args, **inputs, return_dict=False)[0]
        return prediction

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: Any = None, every_n_layers: int = 1, offload: bool = False
    ) -> None:
        """Recompute the blocks that diffusers recomputes (`enable_gradient_checkpointing`)."""
        kwargs = dict(activation_checkpointing_kwargs or {"use_reentrant": False})
        if kwargs["use_reentrant"]:
            raise NotSupported(
                "activation_checkpointing: int8 layers take the reentrant kind, which gives the blocks of denoisers no "
                "gradients; found it with quantization='int8'. Set quantization to nf4, or activation_checkpointing to "
                "none."
            )
        recompute: Any = self.denoiser.enable_gradient_checkpointing
        recompute(functools.partial(checkpoint, **kwargs))

    def enable_input_require_grads(self) -> None:
        """Nothing: the kind of checkpointing that is not reentrant needs no input with a gradient."""


def class_of(architecture: str) -> Any:
    """diffusers' class of that name.

    Raises:
        UnknownModel: diffusers is not there, or does not have it.
    """
    with quiet():  # of packages that a denoiser does without
        kind = getattr(import_library(DIFFUSERS), architecture, None)
    if kind is None:
        raise UnknownModel(
            f"model.name: a model of diffusers' {architecture}, which the diffusers that is installed here does not "
            f"have. Install a newer one: pip install --upgrade diffusers."
        )
    return kind


def defaults_of(kind: Any) -> dict[str, Any]:
    """Arguments of a class with their defaults."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}


def denoiser_config(fields: Mapping[str, Any]) -> Any:
    """The configuration of `fields`, with those of the class that they leave out.

    Raises:
        UnknownModel: diffusers is not there.
    """
    architecture = fields["architecture"]
    every = {**defaults_of(class_of(architecture)), "prompt_length": PROMPT_LENGTHS[architecture], **fields}
    if every.get("image_size") is None and every.get("sample_size"):
        every["image_size"] = PIXELS_PER_LATENT * every["sample_size"]
    return DenoiserConfig(**every)


def fields_stated(stated: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Fields of a denoiser that diffusers' `save_pretrained` wrote to `file`.

    Raises:
        UnknownModel: its class is none of `CLASSES`.
    """
    name = stated["_class_name"]
    if name not in CLASSES:
        raise UnknownModel(
            f"model.name: denoisers known here are diffusers' {', '.join(CLASSES)}; found {in_short(name)} in {file}. "
            f"Put the training script under forerun exec."
        )
    return {"architecture": name, **{field: value for field, value in stated.items() if not field.startswith("_")}}


AutoConfig.register(DIFFUSERS, DenoiserConfig, exist_ok=True)
