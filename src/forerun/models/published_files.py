"""How large are the weights that a hub repository or a folder holds, without reading them?

Input: an id or a folder. Output: bytes of its safetensors files, from their index (`model.safetensors.index.json`,
`metadata.total_size`) or the size of the one file; None where there are none, or nobody answers. It says beside a
count by building whether the files hold as many weights, and in how many bytes each.

Not covered: weights in other formats.
"""

import contextlib
import json
from pathlib import Path

from forerun.models.catalogue import hub_is_reachable
from forerun.models.hub_refusals import pinned
from forerun.models.rows import is_folder
from forerun.models.typed_ids import plain_id

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"


def published_bytes(name: str) -> int | None:
    """Bytes of the weights of a hub id or folder, as its files state them; None where none do."""
    if is_folder(name):
        return _bytes_in(Path(name))
    identity, revision = pinned(plain_id(name))
    if "/" not in identity:
        return None
    return _bytes_on_hub(identity, revision or "main")


def _bytes_in(folder: Path) -> int | None:
    if (folder / INDEX).is_file():
        return _total(folder / INDEX)
    files = list(folder.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files) if files else None


def _bytes_on_hub(identity: str, revision: str) -> int | None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    is_online = hub_is_reachable()
    with contextlib.suppress(HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        return _total(Path(hf_hub_download(identity, INDEX, revision=revision, local_files_only=not is_online)))
    if is_online:
        with contextlib.suppress(HfHubHTTPError, HFValidationError, OSError):
            return get_hf_file_metadata(hf_hub_url(identity, WHOLE, revision=revision)).size
    return None


def _total(index: Path) -> int | None:
    """What an index states; null where it is none."""
    try:
        total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return int(total) if isinstance(total, int | float) else None
