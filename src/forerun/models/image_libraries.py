"""Image models of timm and torchvision by name: `timm/resnet50.a1_in1k`, `torchvision/resnet50`, `efficientnet_b0`.

timm's go through transformers' own wrapper (`TimmWrapperForImageClassification`), built from what timm says of them, so
that neither a hub nor weights are needed; torchvision's through a wrapper of the same kind here. Both packages are the
user's: a name without its package is refused with the line that installs it. A bare name is looked for in those that
are installed, torchvision first; hyphens and capitals are as people type them.
"""

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from forerun.errors import NotSupported, UnknownModel, nearest
from forerun.models.guard import guarded
from forerun.models.library_import import import_library
from forerun.spelling import NameNote

LIBRARIES = ("timm", "torchvision")
IMAGENET_CLASSES = 1000
AUXILIARY = ("googlenet", "inception_v3")
"""Models of torchvision that return several results in training, which each script adds up in its own way."""


WRITTEN = (("hf_hub:timm/", "timm/"), ("hf-hub:timm/", "timm/"), ("torchvision.models.", "torchvision/"))
"""Beginnings as programs have them, and ours."""


def library_of(name: str) -> str | None:
    """`timm` or `torchvision` where a name begins so; None for every other name."""
    library, slash, _ = name.partition("/")
    return library if slash and library in LIBRARIES else None


def library_name(name: str) -> str | None:
    """`timm/…` or `torchvision/…` for a name as people write it; None where neither package has such a model.

    A bare name is taken with a note that says whose model it is.
    """
    for beginning, ours in WRITTEN:
        if name.startswith(beginning):
            return ours + name.removeprefix(beginning)
    if library_of(name):
        return name
    if "/" in name or not name.strip():
        return None
    for library in reversed(LIBRARIES):
        if find_spec(library) is not None and (ours := _own_name(library, name)) is not None:
            warnings.warn(f"model.name: {name} is taken as {library}/{ours}.", NameNote, stacklevel=4)
            return f"{library}/{ours}"
    return None


def libraries_hint() -> str:
    """What to do where a bare name may be that of a package which is not there; empty where both are."""
    missing = [library for library in LIBRARIES if find_spec(library) is None]
    return (
        f" Models of {' and '.join(missing)} are known where installed (pip install {' '.join(missing)})."
        if missing
        else ""
    )


@cache
def _names(library: str) -> dict[str, str]:
    """Bare letters and digits → the package's own name."""
    package = import_library(library)
    names = package.list_models() if library == "timm" else package.models.list_models(module=package.models)
    return {_letters(name): name for name in names}


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _own_name(library: str, name: str) -> str | None:
    """The package's own name of a model, with the tag of its weights where one is written; None where it has none."""
    architecture, dot, tag = name.partition(".")
    if dot and library != "timm":
        return None
    ours = _names(library).get(_letters(architecture))
    return None if ours is None else f"{ours}{dot}{tag}"


def image_config(name: str, image_size: int | None = None) -> Any:
    """The configuration of a model of timm or torchvision; `image_size` is pixels of a side, its own without.

    Raises:
        UnknownModel: the package is not there, or has no such model.
        NotSupported: the model returns several results.
    """
    library, _, model = name.partition("/")
    package = import_library(library)
    model = _own_name(library, model) or model
    return (_timm_config if library == "timm" else _torchvision_config)(package, model, image_size)


def _timm_config(timm: Any, name: str, image_size: int | None) -> Any:
    from transformers import TimmWrapperConfig

    architecture = name.partition(".")[0]
    if not timm.models.is_model(architecture):
        close = nearest(architecture, timm.list_models())
        raise UnknownModel(f"model.name: timm {timm.__version__} has no model {architecture!r}. Nearest: {close}.")
    with guarded(UnknownModel, f"model.name: timm {timm.__version__} does not know {name!r}", "Leave the tag out."):
        weights = timm.models.get_pretrained_cfg(name)
    channels, _, own = getattr(weights, "input_size", (3, 224, 224))
    needs_size = image_size is not None and image_size != own and getattr(weights, "fixed_input_size", False)
    config: Any = TimmWrapperConfig(
        architecture=architecture, model_args={"img_size": image_size} if needs_size else None
    )
    config.num_labels = getattr(weights, "num_classes", None) or IMAGENET_CLASSES
    config.image_size, config.num_channels = image_size or own, channels
    return config


def _torchvision_config(torchvision: Any, name: str, image_size: int | None) -> Any:
    from forerun.models.torchvision_wrapper import TorchvisionConfig

    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise UnknownModel(
            f"model.name: torchvision {torchvision.__version__} has no classification model {name!r}. Nearest: "
            f"{nearest(name, names)}."
        )
    if name in AUXILIARY:
        raise NotSupported(
            f"model.name: models of one result; found torchvision/{name}, which returns several in training. Put the "
            f"training script, which says how they are added up, under forerun exec."
        )
    crop = torchvision.models.get_model_weights(name).DEFAULT.transforms().crop_size
    own = crop[0] if isinstance(crop, list | tuple) else crop
    config = TorchvisionConfig(architecture=name, image_size=image_size or own)
    config.num_labels = IMAGENET_CLASSES
    return config
