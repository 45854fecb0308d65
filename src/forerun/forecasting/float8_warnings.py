"""Warnings about products in float8: casts that nothing fuses, and kernels that are slower than those priced here."""

from forerun.settings.schema import Settings

NOT_COMPILED = (
    "float8.recipe: without compile every cast and scale of torchao is a kernel of its own, which can take longer than "
    "float8 saves. Set compile to default with compile_unit: blocks."
)
ROWS = (
    "float8.recipe: products with a scale for each row are priced as those with one scale, as PyTorch 2.11 ran them on "
    "an H100. PyTorch 2.7's were slower: LLaMA-3-8B over 8 H100 gained 10 % by rowwise where tensorwise gained 25 % "
    "(torchao's README, 0.10)."
)


def float8_warnings(settings: Settings) -> list[str]:
    """Sentences for the reader of a forecast; none without such products."""
    own = settings.float8.recipe
    listed = [(settings.compile == "none", NOT_COMPILED), (own.startswith("rowwise"), ROWS)]
    return [text for applies, text in listed if own != "none" and applies]
