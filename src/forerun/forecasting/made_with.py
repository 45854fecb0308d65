"""Versions that a forecast was made with: libraries, and a digest of our own code that it follows from.

Past runs teach by how far their forecast missed; a forecast of other code missed by something else.
"""

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import forerun

DECIDING = ("clock", "data", "forecasting", "hardware", "memory", "models", "step", "virtual")
"""Stages whose code or coefficients a forecast follows from."""
LIBRARIES = ("torch", "transformers")
KINDS = (".py", ".json", ".toml")
PARTS = ("peft", "bitsandbytes", "torchao", "numpy", "triton")
"""Libraries whose code a trace may run, or whose absence it may meet."""


@cache
def made_with() -> dict[str, str]:
    """Versions by name; `code` is the digest."""
    versions = {"python": platform.python_version(), "code": _digest(Path(forerun.__file__).parent)}
    return versions | {name: version(name) for name in LIBRARIES}


@cache
def traced_with() -> dict[str, str | None]:
    """Versions that a trace was made with; wider than `made_with`, as a stale trace would be wrong for ever."""
    package = Path(forerun.__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(package.glob("*.py")), *_files(package / "settings")]:
        _add(digest, path, package)
    return made_with() | {"rest": digest.hexdigest()[:16]} | {name: _version(name) for name in PARTS}


@cache
def package_digest() -> str:
    """Digest of all code and coefficients here, for what follows from more than a trace."""
    package, digest = Path(forerun.__file__).parent, hashlib.sha256()
    for path in _files(package):
        _add(digest, path, package)
    return digest.hexdigest()[:16]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _digest(package: Path) -> str:
    digest = hashlib.sha256()
    for stage in DECIDING:
        for path in _files(package / stage):
            _add(digest, path, package)
    return digest.hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.suffix in KINDS and not p.name.startswith("test_")]


def _add(digest: "hashlib._Hash", path: Path, package: Path) -> None:
    digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
