"""What older libraries do differently in a step, for users who are not on today's: `versions` of the settings.

Read in the released packages: transformers 4.35.2 to 4.41.2 (only which attention a model has), 4.42.4, 4.44.2, 4.45.2,
4.46.3, 4.47.1, 4.48.3, 4.49.0, 4.50.3, 4.51.3, 4.52.4, 4.57.1 and 5.0.0 to 5.6.0 (only what bitsandbytes packs); peft
0.10.0, 0.11.1, 0.12.0 and 0.13.2; trl 0.8.6, 0.11.4, 0.13.0, 0.15.2, 0.19.1, 0.23.0, 0.24.0, 0.25.1, 0.26.0, 0.27.0,
1.0.0 and 1.16.0. What a version is known to do is in the step, the rest is said.

No torch is imported here, as the forecast reads what is said.

Not covered: PyTorch's own changes but for the context of its CUDA, the update and attention that its first version 2
brought, cuDNN's attention, and masks (a causal model without padding has none in any version read).
"""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Literal

from forerun.models.catalogue import model_config
from forerun.settings.schema import Library, Settings

SHIFTS_LOGITS = "shifts_logits"
"""Attribute of models whose library copies the logits in fp32 without the last token, rather than moving the labels."""
KEEPS_NARROW = "keeps_narrow_logits"
"""Attribute of such models whose output holds the logits as they are, beside the loss's fp32 copy."""
WIDENS_IN_LOSS_FROM = (4, 46)
"""transformers/loss/loss_utils.py, ForCausalLMLoss: from 4.46 on the loss makes the fp32 copy, before it the model."""
PADS_LABELS_FROM = (4, 49)
"""transformers/loss/loss_utils.py: ForCausalLMLoss moves labels from 4.49.0 on, and copies logits up to 4.48.3; before
4.46 each model does so itself, after `logits = logits.float()`."""
UPCASTING = frozenset({
    "cohere", "gemma", "gemma2", "jamba", "llama", "mistral", "mixtral", "nemotron", "olmo", "phi", "phi3", "qwen2",
    "qwen2_moe", "starcoder2",
})  # fmt: skip
"""Types whose modelling file says `logits = logits.float()` in 4.44.2 and takes ForCausalLMLoss from 4.46 on."""
WIDENED_LATER: dict[str, tuple[int, ...]] = {"gpt_bigcode": (4, 48)}
"""Types that leave the logits as they are until they take ForCausalLMLoss: gpt_bigcode in 4.48.3, not yet in 4.47.1."""
WIDE_ADAPTERS_FROM = (0, 12)
"""peft/mapping.py: `get_peft_model` has autocast_adapter_dtype, true by default, from 0.12.0 on and not in 0.11.1."""
OLDEST = {"transformers": (4, 42), "peft": (0, 10), "trl": (0, 8)}
"""First versions that were read."""
FUSED_EXPERTS_FROM = (5,)
"""transformers/models/mixtral/modeling_mixtral.py: a list of linear layers in 4.57.1, one tensor in 5.23."""
PLAIN_LAYERS_FROM = (5, 5)
"""transformers/integrations/bitsandbytes.py: `isinstance(module, (nn.Linear, Conv1D))` up to 5.4.0, from 5.5.0 on
`type(module) is nn.Linear`."""
OF_EXPERTS = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "deepseek_v2", "deepseek_v3", "jamba"})
"""Types whose modelling file has a `ModuleList` of experts in 4.57.1."""
NARROW_ADAPTERS_FROM = (0, 26)
"""trl/trainer/sft_trainer.py: up to 0.25.1 it calls peft's preparation, from 0.26.0 on it makes adapters bf16 alone."""
NARROW_TUNERS_BEFORE = (0, 11)
"""trl/trainer/utils.py, peft_module_casting_to_bf16: adapters too in 0.8.6, not in 0.11.4."""
LAZY_FROM = (1, 13)
"""First PyTorch that loads kernels when they are needed (pytorch/pytorch#86509); every build before it is for CUDA 11.6
or older."""
CUDA_BEFORE_LAZY = "11.6"
LISTS_FROM = (2, 0)
"""First PyTorch whose optimizers update lists of tensors unless they are told otherwise, and that has a fused AdamW
(torch/optim/adamw.py: 1.13 goes tensor by tensor)."""
IN_LISTS = ("adamw", "sgd", "adafactor")
"""PyTorch's optimizers that have a form for lists."""
FUSED_ATTENTION_FROM = (2, 1, 1)
"""First PyTorch with which transformers takes `scaled_dot_product_attention` (`is_torch_sdpa_available`, 4.36.2)."""
CUDNN_FIRST_FROM = (2, 11)
"""First PyTorch whose wheels all take cuDNN's attention by themselves on Hopper and data-centre Blackwell: 2.10 has the
order too (sdp_utils.cpp, check_prefer_cudnn_attention), for a cuDNN from 9.15.1 on; those of 2.11 have 9.19
(huggingface/transformers#48163). 2.5.1 to 2.8 ask for a switch (#138522); only 2.5.0 did so before."""
CUDNN_FIRST_OF_CUDA_13 = (2, 9)
"""The same of wheels for CUDA 13: those of 2.9 have 9.13, where 9.9 was enough, and of 2.10 9.15.1 (#171189). For CUDA
12, which is what both have unless asked, cuDNN is too old (#165801)."""
SDPA_FROM: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("bart", "falcon", "gpt_bigcode", "llama", "whisper"), (4, 36)),
    **dict.fromkeys(("mistral", "mixtral"), (4, 37)),
    **dict.fromkeys(("phi", "stablelm"), (4, 39)),
    **dict.fromkeys(("bert", "deit", "hubert", "videomae", "vit", "vit_mae", "wav2vec2"), (4, 41)),
    **dict.fromkeys(("gpt2", "gpt_neox"), (4, 42)),
    **dict.fromkeys(("clip", "siglip"), (4, 43)),
    **dict.fromkeys(("albert", "biogpt", "camembert", "dinov2", "m2m_100", "mbart", "roberta", "xlm-roberta"), (4, 45)),
    **dict.fromkeys(("distilbert", "opt"), (4, 46)),
    "beit": (4, 48),
}
"""First transformers whose modelling file has `_supports_sdpa` or an attention class of that name, of types that it had
before without; read in 4.35.2 to 4.48.3."""
Preparation = Literal["none", "peft", "sft-trainer", "narrow-adapters"]
"""What becomes of a quantised model before training: nothing; all that is not packed fp32; that, and embeddings and
head bf16 again; adapters bf16."""


def number_of(version: str) -> tuple[int, ...]:
    """A version's numbers: "4.44.2" is (4, 44, 2)."""
    return tuple(int(part) for part in version.split("."))


def copies_logits(versions: Mapping[Library, str], model_type: str) -> bool:
    """Whether the loss of a causal model copies its logits in fp32, as transformers did before 4.49."""
    stated = versions.get("transformers")
    if stated is None or number_of(stated) >= PADS_LABELS_FROM:
        return False
    return model_type in UPCASTING or number_of(stated) >= WIDENED_LATER.get(model_type, PADS_LABELS_FROM)


def keeps_narrow_logits(versions: Mapping[Library, str]) -> bool:
    """Whether 16-bit logits live beside their fp32 copy until the loss is there."""
    stated = versions.get("transformers")
    return stated is not None and number_of(stated) >= WIDENS_IN_LOSS_FROM


def has_narrow_adapters(settings: Settings) -> bool:
    """Whether adapters have the dtype of 16-bit weights under them, as before peft 0.12; later ones are fp32."""
    stated = settings.versions.get("peft")
    return stated is not None and number_of(stated) < WIDE_ADAPTERS_FROM and kbit_preparation(settings) == "none"


def packs_own_classes(settings: Settings) -> bool:
    """Whether layers that are a kind of `nn.Linear` are packed as well (Falcon's), as before transformers 5.5."""
    stated = settings.versions.get("transformers")
    return stated is not None and number_of(stated) < PLAIN_LAYERS_FROM


def has_linear_experts(settings: Settings, model_type: str) -> bool:
    """Whether the experts of a mixture are linear layers, one after another, as before transformers 5."""
    stated = settings.versions.get("transformers")
    return stated is not None and number_of(stated) < FUSED_EXPERTS_FROM and model_type in OF_EXPERTS


def kbit_preparation(settings: Settings) -> Preparation:
    """How a quantised model is prepared for training; a setting of its own goes before what trl does."""
    stated = settings.versions.get("trl")
    if settings.quantization == "none" or (stated is None and not settings.kbit_preparation):
        return "none"
    if settings.kbit_preparation or stated is None:
        return "peft"
    if number_of(stated) >= NARROW_ADAPTERS_FROM:
        return "narrow-adapters"
    is_cast_back = settings.quantization != "int8" and settings.precision == "bf16-mixed"
    return "sft-trainer" if is_cast_back else "peft"


def cuda_of(versions: Mapping[Library, str]) -> str:
    """The version of CUDA that PyTorch was built for, as far as it decides the size of the context; empty: today's."""
    torch = versions.get("torch")
    is_old = torch is not None and number_of(torch) < LAZY_FROM
    return versions.get("cuda", CUDA_BEFORE_LAZY if is_old else "")


def prefers_cudnn(versions: Mapping[Library, str]) -> bool:
    """Whether PyTorch takes cuDNN's attention by itself where the card has it; today's does."""
    torch, cuda = versions.get("torch"), versions.get("cuda", "")
    is_of_13 = bool(cuda) and number_of(cuda) >= (13,)
    return torch is None or number_of(torch) >= (CUDNN_FIRST_OF_CUDA_13 if is_of_13 else CUDNN_FIRST_FROM)


def has_fused_attention(settings: Settings) -> bool:
    """Whether the stated PyTorch and transformers have `scaled_dot_product_attention` for the model."""
    torch, transformers = settings.versions.get("torch"), settings.versions.get("transformers")
    if torch is not None and number_of(torch) < FUSED_ATTENTION_FROM:
        return False
    if transformers is None or number_of(transformers) >= max(SDPA_FROM.values()):
        return True
    kind = model_config(settings.model.name, settings.model.config, settings.model.attention).model_type
    return number_of(transformers) >= SDPA_FROM.get(kind, ())


def as_of_versions(settings: Settings) -> Settings:
    """Settings with what `auto` meant in the stated versions: plain attention, an update tensor by tensor."""
    torch = settings.versions.get("torch")
    if settings.model.attention == "auto" and not has_fused_attention(settings):
        settings = settings.model_copy(update={"model": settings.model.model_copy(update={"attention": "eager"})})
    is_in_lists = torch is None or number_of(torch) >= LISTS_FROM
    if settings.optimizer.implementation == "auto" and settings.optimizer.name in IN_LISTS and not is_in_lists:
        update = {"optimizer": settings.optimizer.model_copy(update={"implementation": "for-loop"})}
        settings = settings.model_copy(update=update)
    return settings


def _newest_known(library: Library) -> str:
    """The version that is installed, on which a step of today is traced; empty where none is."""
    try:
        return "" if library == "cuda" else re.match(r"[\d.]*\d", installed_version(library))[0]  # type: ignore[index]
    except PackageNotFoundError:
        return ""


def version_warnings(settings: Settings) -> list[str]:
    """What of the stated versions is in the forecast, and what is not; none where none is stated."""
    warnings = []
    for name, version in settings.versions.items():
        number = number_of(version)
        newest = _newest_known(name)
        if newest and number > number_of(newest):
            warnings.append(f"versions: {name} {version} is newer than {newest}, which is here; it is taken as that.")
        elif name == "torch":
            warnings.append(
                f"versions: kernels and allocator are those of today's PyTorch; of {version} the size of the CUDA "
                f"context is modelled, which kernel attention takes, and what `auto` means for it and the update."
            )
        elif name == "cuda":
            continue
        elif number < OLDEST[name]:
            oldest = ".".join(map(str, OLDEST[name]))
            warnings.append(f"versions: {name} before {oldest} was not read; {version} is taken as {oldest}.")
    if settings.versions.get("trl") and settings.quantization != "none" and settings.precision.endswith("-true"):
        warnings.append(
            f"versions: the trainer's bf16 and fp16 are autocast; {settings.precision} has none, so trl is taken to "
            f"train without them. With bf16=True write precision: bf16-mixed."
        )
    if not has_fused_attention(settings) and settings.model.attention in ("auto", "eager"):
        warnings.append("versions: attention is plain operators, as the model had no other then (model.attention).")
    old = settings.versions.get("transformers")
    if old is None or number_of(old) >= FUSED_EXPERTS_FROM:
        return warnings
    kind = model_config(settings.model.name, settings.model.config, settings.model.attention).model_type
    was_read = kind in UPCASTING or number_of(old) >= WIDENED_LATER.get(kind, PADS_LABELS_FROM)
    if not was_read and settings.workload == "causal-lm":
        warnings.append(f"versions: what transformers {old} does with the logits of {kind} was not read; as today.")
    return warnings
