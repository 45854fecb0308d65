"""The library versions that measured runs used: a step is only forecast to the byte with the code that made it.

Each set is installed once, without dependencies, into a folder beside this file that git ignores, and put before the
installed packages in the search path of the process that makes the forecasts of its rows.
"""

import subprocess
import sys
import threading
from pathlib import Path

FOLDER = Path(__file__).parent / ".libraries"
INSTALLED = "installed"
"""The set that means: what is installed beside forerun."""
COMMON = ["requests==2.32.3", "urllib3==2.2.3", "charset-normalizer==3.4.0", "idna==3.10", "certifi==2024.8.30"]
_INSTALLING = threading.Lock()
SETS: dict[str, list[str]] = {
    INSTALLED: [],
    "transformers-4.42": [
        "transformers==4.42.4", "tokenizers==0.19.1", "huggingface-hub==0.24.7", "numpy==1.26.4", *COMMON,
    ],
    "transformers-4.45": [
        "transformers==4.45.2", "tokenizers==0.20.3", "huggingface-hub==0.26.2", "peft==0.13.2", "accelerate==1.0.1",
        *COMMON,
    ],
    "transformers-4.48": [
        "transformers==4.48.3", "tokenizers==0.21.0", "huggingface-hub==0.26.2", "peft==0.14.0", "accelerate==1.0.1",
        *COMMON,
    ],
    "timm": ["timm==1.0.31", "torchvision==0.28.0"],
    "transformers-4.47": ["transformers==4.47.1", "tokenizers==0.21.0", "huggingface-hub==0.26.2", *COMMON],
}  # fmt: skip


def search_path(name: str) -> Path | None:
    """The folder of a set, installed if it is not there; None for what is installed anyway.

    Raises:
        RuntimeError: pip cannot install it.
    """
    packages = SETS[name]
    if not packages:
        return None
    with _INSTALLING:  # two workers may want the same set
        return _installed(name, packages)


def _installed(name: str, packages: list[str]) -> Path:
    folder = FOLDER / name
    marker = folder / "complete.txt"
    requirements = "\n".join(packages)
    if marker.exists() and marker.read_text() == requirements:
        return folder
    command = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--no-deps", "--target", str(folder)]
    process = subprocess.run([*command, *packages], capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"pip cannot install the libraries of {name}: {process.stderr.strip()[-300:]}")
    marker.write_text(requirements)
    return folder
