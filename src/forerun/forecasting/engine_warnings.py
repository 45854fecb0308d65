"""A warning where Megatron-Core's layout is forecast without what comes nearest to its fused layers."""

from forerun.settings.schema import Settings

NOT_COMPILED = (
    "parallel.engine: Megatron's fused layers are nearest to compiled blocks. Without compile each operator of a block "
    "is a kernel of its own here, and what split layers gathered is held. Set compile to default and compile_unit to "
    "blocks."
)


def engine_warnings(settings: Settings) -> list[str]:
    """Sentences for the reader of a forecast; none with PyTorch's own layouts."""
    return [NOT_COMPILED] if settings.parallel.engine == "megatron" and settings.compile == "none" else []
