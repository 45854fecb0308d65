"""Linear layers whose products are in float8: torchao's own, traced where the step is forecast, run where it trains.

Source: torchao 0.18, `float8/float8_linear.py` and `float8_linear_utils.py`: weights stay as they are and are cast,
with their scale, in every pass; the backward pass keeps operands in 16 bits. Compiling fuses casts and scales, without
it each is a kernel of its own. The output layer is left out, as in torchtitan's and Accelerate's examples, and so are
layers with a side that is no multiple of 16, which the hardware cannot multiply.

On a CPU the products are emulated, with the same rounding.

Over split layers `tensorwise` exchanges inputs in float8, as torchtitan does (`float8_tensor_parallel.py`).

Not covered: formats with scales of blocks (MXFP8, NVFP4), experts whose weights are one tensor.
"""

import contextlib
import fnmatch
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from forerun.errors import InvalidSettings, MissingExtra, nearest
from forerun.noise import quiet
from forerun.settings.schema import Settings

MULTIPLE = 16
"""Sides of a product in float8: `torch._scaled_mm` takes no others."""


def take_float8(model: nn.Module, settings: Settings, *, emulates: bool) -> None:
    """Put torchao's layers in the place of linear ones; `emulates` is for devices without such products.

    Raises:
        InvalidSettings: a pattern of `float8.skip` names no linear layer, or none is left.
        MissingExtra: torchao is not installed.
    """
    own = settings.float8
    if own.recipe == "none":
        return
    library = torchao()
    heads = {id(head) for head in [_output_layer(model)] if head is not None}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for pattern in own.skip:
        if not fnmatch.filter(linear, pattern):
            raise InvalidSettings(
                f"float8.skip: names linear layers of {settings.model.name}; found {pattern!r}, which none has. "
                f"Nearest: {nearest(pattern, list(linear))}."
            )
    targets = {
        name
        for name, module in linear.items()
        if id(module) not in heads
        and all(side % MULTIPLE == 0 for side in (module.in_features, module.out_features))
        and not any(fnmatch.fnmatchcase(name, pattern) for pattern in own.skip)
    }
    if not targets:
        raise InvalidSettings(
            f"float8.recipe: linear layers beside the output layer, with sides that are multiples of {MULTIPLE}; "
            f"{settings.model.name} has none left. Set float8.recipe to none."
        )
    config = library.Float8LinearConfig.from_recipe_name(own.recipe)
    config = replace(config, enable_fsdp_float8_all_gather=own.all_gather, emulate=emulates)
    library.convert_to_float8_training(model, config=config, module_filter_fn=lambda _, name: name in targets)


def _output_layer(model: nn.Module) -> nn.Module | None:
    find = getattr(model, "get_output_embeddings", None)
    return find() if find is not None else None


def find_scales(model: nn.Module, settings: Settings) -> None:
    """After an update: the scales of all weights at once, for the gathers of the next step."""
    if settings.float8.all_gather:
        torchao().precompute_float8_dynamic_scale_for_fsdp(model)


def split_float8(layer: nn.Module, way: str) -> Any:
    """torchao's style for a layer split `colwise` or `rowwise` that exchanges in float8; None where it is in 16 bits.

    Layers with one scale for a tensor exchange so: a row's scale is not known before the row is whole. Where products
    are emulated they do not: gloo sends no float8.
    """
    if not _exchanges_float8(layer):
        return None
    styles = importlib.import_module("torchao.float8.float8_tensor_parallel")
    return {"colwise": styles.Float8ColwiseParallel, "rowwise": styles.Float8RowwiseParallel}[way]


def cast_before_gather(layers: Sequence[nn.Module]) -> Callable[[Any], Any]:
    """What is done to the common input of `layers` before ranks gather it: their cast, if all of them exchange so."""
    if not all(_exchanges_float8(layer) for layer in layers):
        return lambda tensor: tensor
    scaling = importlib.import_module("torchao.float8.float8_scaling_utils")
    role = importlib.import_module("torchao.float8.float8_training_tensor").GemmInputRole.INPUT
    first: Any = layers[0]
    dtype, product = first.config.cast_config_input.target_dtype, first.linear_mm_config
    return lambda tensor: scaling.hp_tensor_to_float8_dynamic(tensor, dtype, product, gemm_input_role=role)


def _exchanges_float8(layer: Any) -> bool:
    own: Any = getattr(layer, "config", None)
    granularity = getattr(getattr(own, "cast_config_input", None), "scaling_granularity", None)
    return getattr(granularity, "name", "") == "TENSORWISE" and not own.emulate


def torchao() -> Any:
    """`torchao.float8`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        with _without_its_notes():
            return importlib.import_module("torchao.float8")
    except ImportError as error:
        raise MissingExtra(
            "float8.recipe: its layers are torchao's, which is not installed. pip install 'forerun[float8]', or set "
            "float8.recipe to none."
        ) from error


@contextlib.contextmanager
def _without_its_notes() -> Iterator[None]:
    """Import without what torchao says of compiled parts that this PyTorch has no use for here."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
