"""A model with the head that a workload needs, from a configuration; quick on `meta`, where weights cost nothing."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from forerun.errors import InvalidSettings, NotSupported, UnknownModel
from forerun.models.catalogue import hub_is_reachable, model_config
from forerun.models.config_limits import require_depth
from forerun.models.hub_refusals import pinned
from forerun.models.token_loops import require_turns
from forerun.settings.media import BY_SCRIPT, MEDIA, WITHOUT_TOKENS
from forerun.settings.schema import Settings

WORKLOADS = (
    "causal-lm", "masked-lm", "sequence-classification", "token-classification", "seq2seq-lm", *MEDIA, "encoder",
)  # fmt: skip
ENCODER_CLASSES = {"t5": "T5EncoderModel"}
"""Encoder-decoder types whose bare encoder is a class of its own."""
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "longformer")
"""Types that number positions from the padding id on, and so lose the first ones."""
NOT_OFFERED = {("bert", "causal-lm"), ("roberta", "causal-lm"), ("xlm-roberta", "causal-lm"), ("electra", "causal-lm")}
"""Heads that transformers has but that are not what the architecture was made for."""
NOT_OFFERED |= {("t5", "sequence-classification")}
"""That head reads where the end-of-sequence ids stand; classify with the encoder instead."""

OLDEST_TRANSFORMERS = (5, 17)
"""The first whose models a step by settings was tried with. Before 5.0 BERT takes no mask of four dimensions,
DistilBERT no positions, and Mixtral loops over its experts. Programs bring what they need (4.57.3 and 5.6.0 ran)."""


def require_transformers() -> None:
    """Refuse a step by settings with a transformers that is too old for it.

    Raises:
        NotSupported: it is.
    """
    import transformers

    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST_TRANSFORMERS:
        oldest = ".".join(map(str, OLDEST_TRANSFORMERS))
        raise NotSupported(
            f"transformers: steps by settings need {oldest} or newer, found {transformers.__version__}. Install a "
            f"newer one (pip install --upgrade transformers peft); `forerun exec` runs your own program with yours."
        )


def build_model(config: Any, workload: str, *, pretrained_from: str | Path | None = None) -> nn.Module:
    """The model of `config` with the head of `workload`, on the current default device.

    Random weights (none at all on `meta`), or those of the hub id or directory `pretrained_from`.

    Raises:
        InvalidSettings: the architecture has no such head.
        UnknownModel: the weights cannot be loaded.
    """
    factory = model_class(config, workload)
    if workload == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = _padding_id(config)
    config.use_cache = False
    if pretrained_from is not None:
        try:
            is_here = Path(pretrained_from).is_dir()
            local = is_here or not hub_is_reachable()
            source, revision = (pretrained_from, None) if is_here else pinned(str(pretrained_from))
            return factory.from_pretrained(
                source,
                revision=revision or "main",
                config=config,
                use_safetensors=True,
                dtype=torch.float32,
                local_files_only=local,
                trust_remote_code=False,
            )
        except (OSError, ValueError) as error:
            raise UnknownModel(
                f"model.name: weights of {pretrained_from} cannot be loaded: {str(error).splitlines()[0]} "
                f"Give a local directory with safetensors weights, or go online."
            ) from error
    model = factory._from_config(config).to(torch.float32)
    if _has_own_head(config) and hasattr(model, "lm_head"):
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        config.tie_word_embeddings = False  # or peft, and whoever ties again, would undo it
    return model


def _has_own_head(config: Any) -> bool:
    """Whether published weights of the type have a head of their own though its configuration says that it is tied.

    T5 1.1, Flan-T5, ByT5 and mT5: their files hold both, and transformers 5 ties none that it finds apart (5.24,
    modeling_utils.py, `tie_weights`); its configuration only keeps that the decoder's outputs are not scaled.
    """
    return config.model_type == "mt5" or not getattr(config, "scale_decoder_outputs", True)


def _padding_id(config: Any) -> int:
    """The end-of-sequence id, or 0 where that of the class lies beyond the vocabulary."""
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, list) and end else end
    return end if isinstance(end, int) and 0 <= end < (config.vocab_size or 0) else 0


def maximum_length(config: Any) -> int | None:
    """Tokens that the position embeddings allow; None where positions are unlimited."""
    if getattr(config, "model_type", "") == "t5":
        return None
    text = getattr(config, "text_config", None)
    config = config if text is None else text
    names = ("max_position_embeddings", "n_positions", "max_target_positions")
    positions = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    if positions is None or positions < 0:  # XLNet, whose positions are relative, says -1
        return None
    # transformers/models/roberta/modeling_roberta.py (5.23): positions begin at padding_idx + 1, and padding_idx is 1
    return positions - 2 if config.model_type in OFFSET_POSITIONS else positions


def has_rotary_positions(config: Any) -> bool:
    """Whether positions are angles, which transformers works out for any length; tables of them end."""
    text = getattr(config, "text_config", None)
    return hasattr(config if text is None else text, "rope_parameters")


def config_of(settings: Settings) -> Any:
    """The configuration of the settings' architecture, which must have positions for their sequence length.

    Raises:
        UnknownModel: no such architecture.
        InvalidSettings: its table of positions ends before the sequences do, or an override is no field of it.
    """
    config = model_config(
        settings.model.name, settings.model.config, settings.model.attention, settings.media.image_size
    )
    require_depth(settings, getattr(config, "num_hidden_layers", None) or 0)
    require_turns(settings, config)
    limit = None if settings.workload in WITHOUT_TOKENS else maximum_length(config)
    if limit is not None and settings.batch.sequence_length > limit and not has_rotary_positions(config):
        raise InvalidSettings(
            f"batch.sequence_length: {settings.model.name} has positions for {limit} tokens; found "
            f"{settings.batch.sequence_length}. Set it to {limit} or less, or choose a longer model."
        )
    return config


def workloads_of(config: Any) -> list[str]:
    """Workloads that the architecture has a head for."""
    return [workload for workload in WORKLOADS if _has_head(config, workload)]


def _mapping(workload: str) -> Any:
    from transformers.models.auto import modeling_auto as auto

    if workload == "image-classification":
        from forerun.models.dinov3_classifier import offer_classifiers

        offer_classifiers()
    if workload == "text-to-image":
        from forerun.models.denoiser import Denoiser, DenoiserConfig

        return {DenoiserConfig: Denoiser}
    return {
        "causal-lm": auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        "seeing": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        "masked-lm": auto.MODEL_FOR_MASKED_LM_MAPPING,
        "sequence-classification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        "token-classification": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
        "seq2seq-lm": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        "image-classification": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        "speech-seq2seq": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
        "speech-ctc": auto.MODEL_FOR_CTC_MAPPING,
        "audio-classification": auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING,
        "image-text-contrastive": auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING,
        "encoder": auto.MODEL_MAPPING,
    }[workload]


def sees(config: Any) -> bool:
    """Whether it is a language model with a part for images that transformers builds as a whole alone.

    So LLaVA and Qwen-VL; Gemma 3 and 4, Qwen 3.5 and Llama 4 are among its causal language models.
    """
    from transformers.models.auto import modeling_auto as auto

    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    is_whole = type(config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if not is_whole or getattr(causal, "config_class", None) is type(config) or "text_config" not in config.sub_configs:
        return False
    return not (config.is_encoder_decoder or config.get_text_config().is_encoder_decoder)


def _has_head(config: Any, workload: str) -> bool:
    if (config.model_type, workload) in NOT_OFFERED:
        return False
    if workload == "seq2seq-lm" and not config.is_encoder_decoder:
        return False  # decoders that hear (Voxtral, Qwen2-Audio): their labels stand beside what they read
    return type(config) in _mapping(workload) or (workload == "causal-lm" and sees(config))


def model_class(config: Any, workload: str) -> Any:
    """transformers' class of `config` with the head of `workload`.

    Raises:
        InvalidSettings: the architecture has no such head.
    """
    import transformers

    if workload not in WORKLOADS:
        raise InvalidSettings(f"workload: one of {', '.join(WORKLOADS)}; found {workload!r}.")
    if not _has_head(config, workload):
        offered = workloads_of(config)
        by_script = "" if set(offered) - {"encoder"} else BY_SCRIPT
        raise InvalidSettings(
            f"workload: {type(config).__name__.removesuffix('Config')} has no head for {workload}. "
            f"It has: {', '.join(offered) or 'none'}.{by_script}"
        )
    if workload == "encoder" and config.model_type in ENCODER_CLASSES:
        return getattr(transformers, ENCODER_CLASSES[config.model_type])
    is_seeing = workload == "causal-lm" and sees(config)
    kind = _mapping("seeing" if is_seeing else workload)[type(config)]
    return kind[0] if isinstance(kind, tuple) else kind
