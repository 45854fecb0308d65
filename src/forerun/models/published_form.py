"""Does a configuration say something of the published files that a forecast of training leaves out?

Input: a configuration as transformers read it, and the fields that its file states. Packed weights (GPTQ, AWQ …) are
refused: kernels that multiply them are not modelled, and nothing trains them as they are. Weights of 8 bits or less
that training unpacks (fp8, mxfp4) and those of bitsandbytes are said by a note. So is a file without sizes, as folders
of GGUF files have: transformers takes its class's defaults then.

Names of methods: transformers/quantizers/auto.py (5.24).
"""

import warnings
from collections.abc import Mapping
from typing import Any

from forerun.errors import UnknownModel
from forerun.settings.plain import in_short
from forerun.spelling import NameNote

RUN_ONLY = frozenset(
    ["aqlm", "auto-round", "awq", "eetq", "fp_quant", "gptq", "higgs", "hqq", "quanto", "quark", "sinq", "spqr", "vptq"]
)
"""Methods whose weights are multiplied as they are packed."""
BITSANDBYTES = ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")
NO_SIZES = frozenset(
    ["model_type", "architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "_name_or_path"]
)
"""Fields that say nothing of how large a model is."""


def check_published_form(config: Any, stated: Mapping[str, Any], name: str) -> None:
    """Say or refuse what is stated of packed weights; say where no size is.

    Raises:
        UnknownModel: weights that are packed for running.
    """
    packed = stated.get("quantization_config")
    method = packed.get("quant_method") if isinstance(packed, Mapping) else None
    if method in RUN_ONLY:
        raise UnknownModel(
            f"model.name: the weights of {in_short(name)} are packed for running ({method}), which nothing trains as "
            f"they are. Name the model that they were made from; quantization: nf4 forecasts QLoRA of it."
        )
    if method in BITSANDBYTES:
        bits = "int8" if packed is not None and packed.get("load_in_8bit") else "nf4"
        text = f"The weights of {in_short(name)} are packed by bitsandbytes: quantization: {bits} forecasts them so."
        warnings.warn(text, NameNote, stacklevel=4)
    elif method is not None:
        warnings.warn(
            f"The published weights of {in_short(name)} are packed ({in_short(method)}). The forecast is of weights "
            f"that are unpacked to the settings' precision.",
            NameNote,
            stacklevel=4,
        )
    if not set(stated) - NO_SIZES:
        warnings.warn(
            f"The configuration of {in_short(name)} states no size: those of transformers' {type(config).__name__} are "
            f"taken. Folders of GGUF files have such; name the model that they were made from.",
            NameNote,
            stacklevel=4,
        )
