"""What older libraries do differently in a step, for users who are not on today's: `versions` of the settings.

Read in the released packages: transformers 4.42.4, 4.44.2, 4.45.2, 4.46.3, 4.47.1, 4.48.3, 4.49.0, 4.50.3, 4.51.3,
4.52.4 and 4.57.1; peft 0.10.0, 0.11.1, 0.12.0 and 0.13.2. What a version is known to do is in the step, the rest is
said.

No torch is imported here, as the forecast reads what is said.

Not covered: PyTorch's own changes, masks (a causal model without padding has none in any version read), experts that
are linear layers before transformers 5, which bitsandbytes then packs.
"""

from collections.abc import Mapping

from forerun.models.catalogue import model_config
from forerun.settings.schema import Library, Settings

SHIFTS_LOGITS = "shifts_logits"
"""Attribute of models whose library copies the logits in fp32 without the last token, rather than moving the labels."""
PADS_LABELS_FROM = (4, 49)
"""transformers/loss/loss_utils.py: ForCausalLMLoss moves labels from 4.49.0 on, and copies logits up to 4.48.3; before
4.46 each model does so itself, after `logits = logits.float()`."""
UPCASTING = frozenset({
    "cohere", "gemma", "gemma2", "jamba", "llama", "mistral", "mixtral", "nemotron", "olmo", "phi", "phi3", "qwen2",
    "qwen2_moe", "starcoder2",
})  # fmt: skip
"""Types whose modelling file says `logits = logits.float()` in 4.44.2 and takes ForCausalLMLoss from 4.46 on."""
WIDE_ADAPTERS_FROM = (0, 12)
"""peft/mapping.py: `get_peft_model` has autocast_adapter_dtype, true by default, from 0.12.0 on and not in 0.11.1."""
OLDEST = {"transformers": (4, 42), "peft": (0, 10)}
"""First versions that were read."""
FUSED_EXPERTS_FROM = (5,)
"""transformers/models/mixtral/modeling_mixtral.py: a list of linear layers in 4.57.1, one tensor in 5.23."""
OF_EXPERTS = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "deepseek_v2", "deepseek_v3", "jamba"})


def number_of(version: str) -> tuple[int, ...]:
    """A version's numbers: "4.44.2" is (4, 44, 2)."""
    return tuple(int(part) for part in version.split("."))


def copies_logits(versions: Mapping[Library, str], model_type: str) -> bool:
    """Whether the loss of a causal model copies its logits in fp32, as transformers did before 4.49."""
    stated = versions.get("transformers")
    return stated is not None and number_of(stated) < PADS_LABELS_FROM and model_type in UPCASTING


def has_narrow_adapters(settings: Settings) -> bool:
    """Whether adapters have the dtype of 16-bit weights under them, as before peft 0.12; later ones are fp32."""
    stated = settings.versions.get("peft")
    return stated is not None and number_of(stated) < WIDE_ADAPTERS_FROM and not settings.kbit_preparation


def version_warnings(settings: Settings) -> list[str]:
    """What of the stated versions is in the forecast, and what is not; none where none is stated."""
    warnings = []
    for name, version in settings.versions.items():
        number = number_of(version)
        if name == "torch":
            warnings.append(
                f"versions: kernels and allocator are those of today's PyTorch; nothing of {version} is modelled."
            )
        elif number < OLDEST[name]:
            oldest = ".".join(map(str, OLDEST[name]))
            warnings.append(f"versions: {name} before {oldest} was not read; {version} is taken as {oldest}.")
    old = settings.versions.get("transformers")
    if old is None or number_of(old) >= FUSED_EXPERTS_FROM:
        return warnings
    kind = model_config(settings.model.name, settings.model.config, settings.model.attention).model_type
    if number_of(old) < PADS_LABELS_FROM and kind not in UPCASTING and settings.workload == "causal-lm":
        warnings.append(f"versions: what transformers {old} does with the logits of {kind} was not read; as today.")
    if settings.quantization != "none" and kind in OF_EXPERTS:
        warnings.append(
            f"versions: experts were linear layers in transformers {old}, which bitsandbytes packs; here they are as "
            f"today's, unpacked."
        )
    return warnings
