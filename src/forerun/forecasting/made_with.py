"""Versions that a forecast was made with: libraries, and a digest of our own code that it follows from.

Past runs teach by how far their forecast missed; a forecast of other code missed by something else.
"""

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import forerun

DECIDING = ("clock", "data", "forecasting", "hardware", "memory", "models", "step", "virtual")
"""Stages whose code or coefficients a forecast follows from."""
LIBRARIES = ("torch", "transformers")
KINDS = (".py", ".json", ".toml")
PACKAGE = os.path.dirname(forerun.__file__)
PARTS = ("peft", "bitsandbytes", "torchao", "numpy", "triton")
"""Libraries whose code a trace may run, or whose absence it may meet."""


@cache
def made_with() -> dict[str, str]:
    """Versions by name; `code` is the digest."""
    versions = {"python": platform.python_version(), "code": deciding_digest(PACKAGE)}
    return versions | {name: version(name) for name in LIBRARIES}


@cache
def traced_with() -> dict[str, str | None]:
    """Versions that a trace was made with; wider than `made_with`, as a stale trace would be wrong for ever."""
    rest = _digest(PACKAGE, [*_files_in(PACKAGE), *_files_below(os.path.join(PACKAGE, "settings"))])
    return made_with() | {"rest": rest} | {name: _version(name) for name in PARTS}


@cache
def package_digest() -> str:
    """Digest of all code and coefficients here, for what follows from more than a trace."""
    return _digest(PACKAGE, _files_below(PACKAGE))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def deciding_digest(package: str) -> str:
    """Digest of the code and coefficients of a package like this one that a forecast follows from."""
    return _digest(package, (path for stage in DECIDING for path in _files_below(os.path.join(package, stage))))


def _digest(package: str, paths: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            digest.update(path[len(package) :].replace(os.sep, "/").encode() + b"\0" + file.read())
    return digest.hexdigest()[:16]


def _files_below(folder: str) -> Iterator[str]:
    for place, folders, _ in os.walk(folder):
        folders.sort()
        yield from _files_in(place)


def _files_in(folder: str) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        if name.endswith(KINDS) and not name.startswith("test_"):
            yield os.path.join(folder, name)
