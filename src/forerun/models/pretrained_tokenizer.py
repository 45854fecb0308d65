"""Tokenizers of pretrained models: a local directory, the hub's cache, or the hub where it can be reached."""

from pathlib import Path
from typing import Any

from forerun.errors import UnknownModel
from forerun.models.catalogue import hub_is_reachable
from forerun.models.hub_refusals import pinned


def load_tokenizer(source: str | Path, *, purpose: str, instead: str, local_only: bool = False) -> Any:
    """The Hugging Face tokenizer at `source`, a directory or hub id.

    Raises:
        UnknownModel: it cannot be loaded; `purpose` says whose it is and what it is for, `instead` what would work.
    """
    from transformers import AutoTokenizer

    is_here = Path(source).is_dir()
    local = local_only or is_here or not hub_is_reachable()
    place, revision = (source, None) if is_here else pinned(str(source))
    try:
        return AutoTokenizer.from_pretrained(
            place, revision=revision or "main", local_files_only=local, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UnknownModel(
            f"model.name: the tokenizer of {purpose}; loading it from {source} failed: {reason} {instead}"
        ) from error
