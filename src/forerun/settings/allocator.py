"""How PyTorch's caching allocator is set, by the names that `PYTORCH_ALLOC_CONF` has for it."""

from pydantic import Field

from forerun.settings.section import PlainSection


class AllocatorSettings(PlainSection):
    """The words that move memory; the defaults are PyTorch's."""

    expandable_segments: bool = False
    """Grow segments page by page: little memory is reserved that nothing uses. Not on AMD."""
    max_split_size_mb: int | None = Field(default=None, gt=20)
    """Blocks from this size on, in MiB, are never split."""
    garbage_collection_threshold: float = Field(default=0.0, ge=0, lt=1)
    """Share of the card from which on cached segments are given back; 0 never."""
    roundup_power2_divisions: int = Field(default=0, ge=0)
    """Requests are rounded up to so many steps between two powers of two; 0 does not."""

    @property
    def conf(self) -> str:
        """As the environment variable has it; empty for PyTorch's defaults."""
        changed = self.model_dump(exclude_defaults=True)
        return ",".join(f"{name}:{value}" for name, value in changed.items())
