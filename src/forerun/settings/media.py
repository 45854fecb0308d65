"""Sizes of what is no text: images and sound, for the workloads that read them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from forerun.settings.section import PlainSection

MEDIA: Mapping[str, tuple[str, ...]] = {
    "image-classification": ("image_size",),
    "speech-seq2seq": ("audio_seconds",),
    "speech-ctc": ("audio_seconds",),
    "audio-classification": ("audio_seconds",),
    "image-text-contrastive": ("image_size",),
    "text-to-image": ("image_size", "prompt_length"),
}
"""Workloads that read images or sound → the words of `MediaSettings` that they take."""
WITHOUT_TOKENS = ("image-classification", "audio-classification", "text-to-image")
"""Workloads whose samples have no tokens, so that `batch.sequence_length` says nothing about them."""
BY_SCRIPT = (
    " Detection, segmentation and the like have no workload of their own: put the training script under forerun exec."
)
"""What helps who wants to train something that no workload is for."""
DENOISING = ("text-to-image",)
"""Workloads whose model is a denoiser."""
DENOISER_TARGETS = ("to_k", "to_q", "to_v", "to_out.0")
"""Modules that get an adapter in diffusers' examples (train_text_to_image_lora.py and those for SDXL, SD 3)."""


class MediaSettings(PlainSection):
    """Images and sound of one sample; `null` takes what the model's configuration says."""

    image_size: Annotated[int, Field(ge=8, le=2**14)] | None = None
    """Pixels of a side; models with positions for another size interpolate them where transformers can."""
    audio_seconds: Annotated[float, Field(gt=0, le=24 * 3600)] | None = None
    """Sound of a sample, to which all are padded."""
    prompt_length: Annotated[int, Field(ge=1, le=2**14)] | None = None
    """Embeddings of a text that a denoiser reads."""


def with_usual_targets(content: Any) -> Any:
    """Settings as they were written, with the modules that get a LoRA of a denoiser where they name none."""
    adapter = content.get("adapter") if isinstance(content, Mapping) else None
    if not isinstance(adapter, Mapping) or content.get("workload") not in DENOISING:
        return content
    if adapter.get("kind") != "lora" or "targets" in adapter:
        return content
    return {**content, "adapter": {**adapter, "targets": list(DENOISER_TARGETS)}}


def media_conflicts(
    workload: str, media: MediaSettings, *, source: str | None, padding: str, cross_entropy: str
) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy)."""
    default, words = MediaSettings(), MEDIA.get(workload, ())
    idle = [word for word in MediaSettings.model_fields if getattr(media, word) != getattr(default, word)]
    idle = [word for word in idle if word not in words]
    others = [name for name, own in MEDIA.items() if idle and idle[0] in own]
    return [
        (
            bool(idle),
            f"media.{idle[0] if idle else ''}: is for {', '.join(others)}; found workload={workload!r}. Leave it out, "
            f"or set workload to one of these.",
        ),
        (
            bool(words) and source is not None,
            f"data.source: {workload} is forecast here by its sizes, not trained on data of your own; found "
            f"{source!r}. Leave it out, and put your training script under forerun exec.",
        ),
        (
            bool(words) and padding != "fixed",
            f"batch.padding: samples of {workload} are of one size; found {padding!r}. Set it to fixed.",
        ),
        (
            bool(words) and cross_entropy != "full",
            f"cross_entropy: {workload} has the loss of its own model, which is whole; found "
            f"{cross_entropy!r}. Set it to full.",
        ),
    ]
