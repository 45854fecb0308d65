"""Configurations pasted into a page: each becomes a folder with a `config.json`, named as any local model.

The folder's name is a digest of the text, so the same text is the same model, and an address that names it works again
on this machine. The newest `MOST_CONFIGS` stay.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from forerun.disk_cache import cache_root
from forerun.errors import InvalidSettings

MOST_CONFIGS = 64
LARGEST_TEXT = 2**20
"""Characters; those with a name for each of 20,000 classes have a million."""


def keep_config(text: str, root: Path | None = None) -> str:
    """The folder of a pasted `config.json`, as a model's name; written unless it is there.

    Raises:
        InvalidSettings: it is no JSON object with a `model_type`.
    """
    if len(text) > LARGEST_TEXT:
        raise InvalidSettings(f"config.json: at most {LARGEST_TEXT:,} characters; found {len(text):,}. Paste less.")
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError) as error:
        cause = str(error).splitlines()[0]
        raise InvalidSettings(
            f"config.json: JSON, as save_pretrained writes it; found {cause}. Paste it whole."
        ) from error
    if not isinstance(stated, dict) or not isinstance(stated.get("model_type"), str):
        raise InvalidSettings(
            "config.json: an object that names its model_type; found none. Paste the file that save_pretrained wrote."
        )
    root = root or cache_root() / "pasted"
    canonical = json.dumps(stated, sort_keys=True)
    folder = root / hashlib.sha256(canonical.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    if file.exists():
        os.utime(folder)
    else:
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
            part.write(canonical)
        os.replace(part.name, file)
    _drop_oldest(root)
    return str(folder)


def _drop_oldest(root: Path) -> None:
    def age(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except FileNotFoundError:  # another process dropped it
            return 0.0

    for folder in sorted(root.iterdir(), key=age, reverse=True)[MOST_CONFIGS:]:
        (folder / "config.json").unlink(missing_ok=True)
        if folder.is_dir():
            folder.rmdir()
