"""Outputs of layers that are never trained, computed once for each text and kept in files.

Frozen layers run without dropout, so what they make of a text is a function of its ids alone. Each text is computed by
itself, without padding, so that the numbers do not depend on what it was batched with. Files hold the states of texts
that were new to one process; a second process, or a second run, reads them. They are named after the weights, the
number of layers, PyTorch's version and its threads; nothing else changes a number.

Not kept on disk: weights of a hub id (kept in memory alone), since a name does not say which weights it is.
"""

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from forerun.errors import UserNote
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.recipes.text_classifier.model import TransformerBackbone
from forerun.runs.prune import FROZEN_PATTERN, bound_files
from forerun.units import GIB

TIMED_TOKENS, TIMED_PASSES = 32, 10
SUFFIX = ".safetensors"
WEIGHTS = ("*.safetensors", "*.bin", "config.json")
MOST_BYTES = 8 * GIB
"""Of all files below the folder of frozen states; those that were read longest ago go first."""


class StatesNotWritten(UserNote):
    """States could not be kept on disk; the run goes on with those in memory."""


class Sample(Protocol):
    """Token ids of one text or pair, and which text each belongs to."""

    @property
    def ids(self) -> Sequence[int]:
        """Token ids."""
        ...

    @property
    def types(self) -> Sequence[int]:
        """0 for the first text, 1 for the second."""
        ...


@dataclass
class FrozenStates:
    """States (T, width) of texts below the first layer that is trained."""

    name: str
    """Name of the encoder in the catalogue."""
    build: Callable[[], TransformerBackbone]
    """The encoder with its weights; called when a text is new."""
    layers: int
    """Number of frozen layers."""
    width: int
    """Width of the states."""
    with_types: bool
    """Whether the encoder is told which text a token belongs to."""
    folder: Path | None = None
    """Folder of the files with states; states are held in memory alone without one."""
    sizes_only: bool = False
    """Give zeros in place of states: a forecast needs sizes alone."""
    _cache: dict[str, np.ndarray] = field(default_factory=dict)
    _backbone: TransformerBackbone | None = None

    def of(self, sample: Sample) -> np.ndarray:
        """States of one text; those missing from the cache are computed and not kept: augmented texts come up once."""
        if self.sizes_only:
            return np.zeros((len(sample.ids), self.width), dtype=np.float32)
        states = self._cache.get(_key(sample))
        return self._compute(sample) if states is None else states

    def fill(self, samples: Iterable[Sample]) -> int:
        """Read or compute the states of `samples` and cache them; returns how many were computed."""
        if self.sizes_only:
            return 0
        samples_by_key = {_key(sample): sample for sample in samples}
        self._read(samples_by_key)
        new = {key: self._compute(sample) for key, sample in samples_by_key.items() if key not in self._cache}
        self._cache |= new
        self._backbone = None  # only texts that augmentation makes need it again
        if new and self.folder is not None:
            try:
                _write(self.folder, new)
            except (OSError, SafetensorError) as error:
                warnings.warn(
                    f"States of frozen layers could not be kept in {self.folder}: {error}. They stay in memory, and "
                    f"the next run computes them again. Free space there (`forerun runs prune`) or change permissions.",
                    StatesNotWritten,
                    stacklevel=2,
                )
        return len(new)

    def seconds_of(self, tokens: float) -> float:
        """Seconds that computing the states of so many tokens takes on this machine."""
        return tokens * self.layers * seconds_per_token_and_layer(self.name) if tokens else 0.0

    def unknown_tokens(self, samples: Iterable[Sample]) -> int:
        """Tokens of the texts whose states would have to be computed."""
        lengths = {_key(sample): len(sample.ids) for sample in samples}
        stored_keys = {key for path in self._files() for key in _keys(path)} | set(self._cache)
        return sum(length for key, length in lengths.items() if key not in stored_keys)

    def _compute(self, sample: Sample) -> np.ndarray:
        if self._backbone is None:
            state = torch.get_rng_state()
            self._backbone = self.build().eval().requires_grad_(False)
            torch.set_rng_state(state)  # building draws weights, which must not shift the run's own
        ids = torch.tensor([list(sample.ids)])
        types = torch.tensor([list(sample.types)]) if self.with_types else None
        with torch.inference_mode():  # one text without padding: a batch would change the last bits of its sums
            return self._backbone.below(ids, torch.ones_like(ids), types, self.layers)[0].numpy()

    def _read(self, keys: Iterable[str]) -> None:
        missing = {key for key in keys if key not in self._cache}
        for path in self._files():
            if not missing:
                return
            try:
                with safe_open(path, "np") as file:
                    present = missing & set(file.keys())  # noqa: SIM118
                    self._cache |= {key: file.get_tensor(key) for key in present}
                if present:
                    os.utime(path)  # what is read stays: see `bound_files`
            except (OSError, SafetensorError):  # half written by a full disk: computed again
                continue
            missing -= present

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}")) if self.folder is not None and self.folder.is_dir() else []


def weights_folder(root: Path, weights: Path, layers: int) -> Path:
    """Folder under `root` for states of the first `layers` layers of the weights in a directory."""
    files = sorted({file for pattern in WEIGHTS for file in weights.glob(pattern)})
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    name = repr((str(weights), facts, layers, torch.__version__, torch.get_num_threads()))
    return root / hashlib.sha256(name.encode()).hexdigest()[:16]


@cache
def seconds_per_token_and_layer(name: str) -> float:
    """Seconds of one layer of encoder `name` for one token of a text computed by itself, measured once a process.

    The quickest of the passes counts: beside other processes, one that takes 3 ms can take five times as long.
    """
    config: Any = model_config(name, {"num_hidden_layers": 1}, "auto")
    state = torch.get_rng_state()
    backbone = TransformerBackbone(build_model(config, "encoder")).eval().requires_grad_(False)
    torch.set_rng_state(state)
    ids, times = torch.ones(1, TIMED_TOKENS, dtype=torch.long), []
    with torch.inference_mode():
        for _ in range(TIMED_PASSES):
            start = time.perf_counter()
            backbone.below(ids, torch.ones_like(ids), None, 1)
            times.append(time.perf_counter() - start)
    return min(times) / TIMED_TOKENS


def padded_states(arrays: Sequence[np.ndarray], length: int, width: int) -> Tensor:
    """States of several texts as one tensor (B, T, width), zeros where there is no token."""
    states = torch.zeros(len(arrays), length, width)
    for number, array in enumerate(arrays):
        states[number, : len(array)] = torch.from_numpy(array)
    return states


def _key(sample: Sample) -> str:
    return hashlib.sha256(np.asarray([sample.ids, sample.types], dtype=np.int32).tobytes()).hexdigest()[:24]


def _keys(path: Path) -> list[str]:
    try:
        with safe_open(path, "np") as file:
            return list(file.keys())
    except (OSError, SafetensorError):
        return []


def _write(folder: Path, new: dict[str, np.ndarray]) -> None:
    """One more file, there at once or not at all; named by the texts, so that two processes write the same one."""
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256("".join(sorted(new)).encode()).hexdigest()[:16]
    # the same folder, so that the rename stays on one file system and is atomic
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".new")
    os.close(handle)
    try:
        save_file({key: torch.from_numpy(states) for key, states in new.items()}, temporary)
        Path(temporary).replace(folder / f"{name}{SUFFIX}")
    finally:
        Path(temporary).unlink(missing_ok=True)
    bound_files(folder.parent, FROZEN_PATTERN, MOST_BYTES)
