"""The generic workloads of images and sound: transformers' own model with its own loss, as its examples train it.

The loss is the one that the model returns; as other workloads give sums, it is multiplied by what it is the mean of.
Sizes are those of `media`, or the configuration's (`models/media_sizes.py`). A micro-batch's contrastive loss compares
its own samples alone, as transformers' does: it is another loss for another micro-batch.

Not covered: packing, chunked losses, training on data of one's own; decoding and augmenting images on the host.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forerun.models.build import config_of, model_class
from forerun.models.media_sizes import INTERPOLATES, audio_shape, image_shape, own_image_size, require_inputs, takes
from forerun.settings.schema import Settings
from forerun.step.head_workload import HeadWorkload, no_tokens
from forerun.step.parallel import unwrapped
from forerun.step.workload import Batch, LossSum


class OwnLoss(HeadWorkload):
    """A model that computes its loss; subclasses say which inputs it has."""

    inputs: tuple[str, ...] = ()
    """Arguments of the model that a batch fills."""

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The model, checked to read what the batches have."""
        model = super().build_model(settings, pretrained=pretrained)
        require_inputs(settings, model, self.inputs)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The model's loss, times what it is the mean of."""
        batch = in_dtype_of(model, batch)
        return LossSum(model(**self.arguments(unwrapped(model), batch)).loss * self.count(batch))

    def arguments(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """What the model is called with."""
        return dict(batch)

    def count(self, batch: Batch) -> float:
        """Samples in the batch."""
        return float(len(next(iter(batch.values()))))


class ImageClassification(OwnLoss):
    """One label per image."""

    name = "image-classification"
    inputs = ("pixel_values", "labels")

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Images (B, C, H, W) and labels (B,)."""
        return {"pixel_values": _images(settings, size), "labels": torch.zeros(size, dtype=torch.long)}

    def arguments(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """The batch, and that positions are interpolated where the images have another size than they."""
        return {**batch, **_interpolation(model, batch["pixel_values"])}


class SpeechSeq2Seq(OwnLoss):
    """Sound to text, by an encoder and a decoder; the text has `sequence_length` tokens at most."""

    name = "speech-seq2seq"
    inputs = ("labels",)

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Sound (B, …) under the model's name for it, and labels (B, T)."""
        return _sound(settings, self.name, size) | {"labels": no_tokens(size, length)}

    def count(self, batch: Batch) -> float:
        """Labels in the batch."""
        return float(batch["labels"].numel())


class SpeechCTC(OwnLoss):
    """Sound to text, a label or none for each frame (Graves et al. 2006); the text has `sequence_length` at most.

    Layers that `layerdrop` would skip by chance are all computed: the step that takes most. Frames are not masked
    (SpecAugment): how many are is a value that no virtual GPU knows; a model's gradient of its mask is left out by it.
    """

    name = "speech-ctc"

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The model, with all its layers and frames in each step."""
        return with_all_layers(super().build_model(settings, pretrained=pretrained))

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Sound (B, …) under the model's name for it, and labels (B, T)."""
        return _sound(settings, self.name, size) | {"labels": no_tokens(size, length)}

    def loss(self, model: nn.Module, batch: Batch) -> LossSum:
        """The loss summed over samples, as transformers/loss/loss_ctc.py (5.23) has it, of labels of one length.

        Written here, as its code asks how many labels are no padding, which no virtual GPU knows.
        """
        batch = in_dtype_of(model, batch)
        config, labels = unwrapped(model).config, batch["labels"]
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        scores = F.log_softmax(logits, dim=-1, dtype=torch.float32).transpose(0, 1)  # (frames, B, labels)
        frames, lengths = [len(scores)] * len(labels), [labels.shape[1]] * len(labels)
        with torch.backends.cudnn.flags(enabled=False):
            loss = F.ctc_loss(
                scores, labels, frames, lengths, blank=config.pad_token_id, reduction="sum",  # type: ignore[arg-type]
                zero_infinity=config.ctc_zero_infinity,
            )  # fmt: skip
        return LossSum(loss)


class AudioClassification(OwnLoss):
    """One label per sample of sound; as in `SpeechCTC`, all layers are computed and no frames are masked."""

    name = "audio-classification"
    inputs = ("labels",)

    def build_model(self, settings: Settings, *, pretrained: bool) -> nn.Module:
        """The model, with all its layers and frames in each step."""
        return with_all_layers(super().build_model(settings, pretrained=pretrained))

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Sound (B, …) under the model's name for it, and labels (B,)."""
        return _sound(settings, self.name, size) | {"labels": torch.zeros(size, dtype=torch.long)}


class ImageTextContrastive(OwnLoss):
    """Images and texts that belong together (CLIP, SigLIP); texts have `sequence_length` tokens."""

    name = "image-text-contrastive"
    inputs = ("pixel_values", "input_ids", "attention_mask", "return_loss")

    def padded_batch(self, settings: Settings, size: int, length: int) -> Batch:
        """Images (B, C, H, W), ids and padding masks (B, T)."""
        ids = no_tokens(size, length)
        return {"pixel_values": _images(settings, size), "input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def arguments(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """The batch, and that the loss is wanted."""
        return {**batch, "return_loss": True, **_interpolation(model, batch["pixel_values"])}


def with_all_layers(model: nn.Module) -> nn.Module:
    """The model of sound without what chance leaves out: whole layers, and frames that SpecAugment masks."""
    config: Any = model.config
    config.layerdrop, config.apply_spec_augment = 0.0, False
    return model


def in_dtype_of(model: nn.Module, batch: Batch) -> Batch:
    """Images and sound in the number format of the weights, as programs hand them over; ids stay integers."""
    dtype: Any = unwrapped(model).dtype
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def _images(settings: Settings, number: int) -> Tensor:
    return torch.zeros(number, *image_shape(settings, config_of(settings)))


def _interpolation(model: nn.Module, images: Tensor) -> dict[str, bool]:
    own = own_image_size(model.config)
    return {INTERPOLATES: True} if own not in (None, images.shape[-1]) and takes(model, INTERPOLATES) else {}


def _sound(settings: Settings, workload: str, number: int) -> Batch:
    config = config_of(settings)
    name = model_class(config, workload).main_input_name
    return {name: torch.zeros(number, *audio_shape(settings, config, name))}


MEDIA_WORKLOADS = (
    ImageClassification(), SpeechSeq2Seq(), SpeechCTC(), AudioClassification(), ImageTextContrastive(),
)  # fmt: skip
