"""Claims files that ship with the package: the five documents that this product comes from, and an example."""

from importlib.resources import files
from pathlib import Path

from forerun.errors import InvalidSettings

EXAMPLE = "example"


def shipped_documents() -> dict[str, Path]:
    """Documents by name, in their order."""
    folder = Path(str(files("forerun.audit"))) / "origins"
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem != EXAMPLE}


def claims_path(name: str) -> Path:
    """A file of the user's, or one that ships, by its name.

    Raises:
        InvalidSettings: neither.
    """
    paths = shipped_documents() | {EXAMPLE: Path(str(files("forerun.audit"))) / "origins" / f"{EXAMPLE}.yaml"}
    if Path(name).is_file():
        return Path(name)
    if name in paths:
        return paths[name]
    raise InvalidSettings(f"CLAIMS: no file {name!r}. Shipped: {', '.join(paths)}; origins means all but the last.")
