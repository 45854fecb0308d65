"""Shapes of what a model of images or sound reads: as its configuration has them, or as `media` states them."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from forerun.errors import InvalidSettings, NotSupported
from forerun.settings.schema import Settings

SAMPLES_PER_SECOND = 16_000
"""Of raw sound, where a configuration does not say: wav2vec 2.0 and what follows it (Baevski et al. 2020, arXiv
2006.11477, section 4.1)."""
FRAMES_PER_SECOND = 100
"""Of spectrograms: a frame every 10 ms (Whisper: Radford et al. 2022, arXiv 2212.04356, section 2.2)."""
ONE_LENGTH: dict[str, Callable[[Any], tuple[str, int, str]]] = {
    # modeling_whisper.py, WhisperEncoder.forward; modeling_audio_spectrogram_transformer.py, ASTEmbeddings (5.24)
    "whisper": lambda config: ("Whisper", 2 * config.max_source_positions, ""),
    "audio-spectrogram-transformer": lambda config: ("AST", config.max_length, ", or set model.config.max_length"),
}
"""Types whose positions are for one length of sound: name, frames, and what changes it."""
INTERPOLATES = "interpolate_pos_encoding"
"""Argument of models that can bring their positions to another image size."""


def takes(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward pass has that argument."""
    return argument in inspect.signature(model.forward).parameters


def require_inputs(settings: Settings, model: nn.Module, names: tuple[str, ...]) -> None:
    """Check that the model reads what the workload makes.

    Raises:
        NotSupported: its forward pass has no such argument.
    """
    missing = [name for name in names if not takes(model, name)]
    if missing:
        raise NotSupported(
            f"workload: {settings.workload} makes {', '.join(names)}; {type(model).__name__} takes no {missing[0]}. "
            f"Put the training script under forerun exec."
        )


def own_image_size(config: Any) -> int | None:
    """Pixels of a side that a configuration states; None where it states none or several."""
    size = getattr(_of_images(config), "image_size", None)
    if isinstance(size, list | tuple):
        size = size[0] if len(set(size)) == 1 else None
    return size if isinstance(size, int) else None


def image_shape(settings: Settings, config: Any) -> tuple[int, int, int]:
    """Channels, height and width of an image.

    Raises:
        InvalidSettings: neither the settings nor the configuration say.
    """
    size = settings.media.image_size or own_image_size(config)
    if size is None:
        raise InvalidSettings(
            f"media.image_size: the configuration of {settings.model.name} has no one image size; found null. Set "
            f"media.image_size to the pixels of a side, such as 224."
        )
    return getattr(_of_images(config), "num_channels", None) or 3, size, size


def _of_images(config: Any) -> Any:
    part = getattr(config, "vision_config", None)
    return config if part is None else part


def audio_shape(settings: Settings, config: Any, model_input: str) -> tuple[int, ...]:
    """Shape of one sample's sound as the model's `model_input`: values of a wave, or a spectrogram.

    Raises:
        InvalidSettings: the length is not known, or none that the model takes.
        NotSupported: the model's features are not known here.
    """
    seconds, width = settings.media.audio_seconds, getattr(config, "input_feat_per_channel", None)
    if config.model_type in ONE_LENGTH:
        name, frames, remedy = ONE_LENGTH[config.model_type](config)
        if seconds is not None and round(seconds * FRAMES_PER_SECOND) != frames:
            raise InvalidSettings(
                f"media.audio_seconds: {name} pads all sound to {frames / FRAMES_PER_SECOND:g} s; found {seconds:g}. "
                f"Leave it out{remedy}."
            )
        return (frames, config.num_mel_bins) if name == "AST" else (config.num_mel_bins, frames)
    if model_input != "input_values" and width is None:
        raise NotSupported(
            f"workload: {settings.workload} knows raw sound, and the features of Whisper, AST and Speech2Text; found "
            f"{config.model_type}, which reads {model_input}. Put the training script under forerun exec."
        )
    if seconds is None:
        raise InvalidSettings(
            f"media.audio_seconds: the configuration of {settings.model.name} has no length of sound; found null. Set "
            f"it to the seconds that samples are padded to."
        )
    if width is not None:  # Speech2Text
        return round(seconds * FRAMES_PER_SECOND), width * config.input_channels
    return (round(seconds * (getattr(config, "sampling_rate", None) or SAMPLES_PER_SECOND)),)
