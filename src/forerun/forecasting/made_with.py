"""Versions that a forecast was made with: libraries, and a digest of our own code that it follows from.

Past runs teach by how far their forecast missed; a forecast of other code missed by something else.
"""

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import forerun

DECIDING = ("clock", "data", "forecasting", "hardware", "memory", "models", "step", "virtual")
"""Stages whose code or coefficients a forecast follows from."""
LIBRARIES = ("torch", "transformers")
KINDS = (".py", ".json", ".toml")


@cache
def made_with() -> dict[str, str]:
    """Versions by name; `code` is the digest."""
    versions = {"python": platform.python_version(), "code": _digest(Path(forerun.__file__).parent)}
    return versions | {name: version(name) for name in LIBRARIES}


def _digest(package: Path) -> str:
    digest = hashlib.sha256()
    for stage in DECIDING:
        for path in sorted((package / stage).rglob("*")):
            if path.suffix in KINDS and not path.name.startswith("test_"):
                digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
