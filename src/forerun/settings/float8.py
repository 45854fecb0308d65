"""Which linear layers multiply in 8 bits, and how their operands are scaled: torchao's float8 training."""

from typing import Literal

from forerun.settings.section import PlainSection


class Float8Settings(PlainSection):
    """Products of linear layers in float8 beside weights that stay as `precision` has them."""

    recipe: Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"] = "none"
    """torchao's recipe: one scale for each tensor, one for each row, or that with the weights' gradients in 16 bits."""
    all_gather: bool = False
    """With `tensorwise` and `parallel.kind: fsdp`: weights are gathered in float8, their scales found once a step."""
    skip: list[str] = []
    """Linear layers that stay as they are, by name, beside the output layer; `*` stands for any part of a name."""


def float8_conflicts(
    own: Float8Settings, precision: str, adapter: str, quantization: str, parallel: str
) -> list[tuple[bool, str]]:
    """Pairs of (is broken, rule · found · remedy)."""
    is_on = own.recipe != "none"
    adapted = f"adapter.kind={adapter!r}, quantization={quantization!r}"
    return [
        (
            is_on and (adapter != "none" or quantization != "none"),
            f"float8.recipe: torchao multiplies for the gradients of frozen weights too, so adapters gain nothing by "
            f"it; found {own.recipe!r} with {adapted}. Set float8.recipe to none, or train all parameters.",
        ),
        (
            is_on and precision not in ("bf16-mixed", "bf16-true"),
            f"float8.recipe: its layers take and give bfloat16; found precision={precision!r}. Set precision to "
            f"bf16-mixed.",
        ),
        (
            own.all_gather and (own.recipe != "tensorwise" or parallel != "fsdp"),
            f"float8.all_gather: weights with one scale each, gathered by FSDP; found float8.recipe={own.recipe!r} and "
            f"parallel.kind={parallel!r}. Set it to false, or float8.recipe to tensorwise over parallel.shard ranks.",
        ),
        (
            own.recipe == "none" and bool(own.skip),
            "float8.skip: names layers that a recipe leaves out; found float8.recipe='none'. Leave it out.",
        ),
    ]
