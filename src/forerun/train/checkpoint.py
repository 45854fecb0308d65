"""Checkpoints that survive a crash at any byte: safetensors and a manifest of hashes, made durable before they count.

A checkpoint is written into a temporary folder beside its place, every file and the folder flushed to disk, then
renamed to `step-00000123` in one go, and the parent flushed. Whatever a crash leaves is a temporary folder, which is
skipped, or a folder whose manifest does not match, which is skipped with a warning. Nothing is unpickled.
"""

import hashlib
import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.errors import CheckpointDamaged, InvalidSettings
from forerun.step.parallel import like, of_all_ranks, whole
from forerun.step.training_step import TrainingStep
from forerun.train.ranks import rank

FORMAT = "forerun.checkpoint/2"
MANIFEST, MODEL, OPTIMIZER, GENERATORS = (
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
)
TEMPORARY = ".partial-"

Progress = dict[str, Any]
"""What else a run must remember, as JSON: its step, and seconds spent so far."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was skipped because it does not match its manifest."""


@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds: tensors by file, and the manifest."""

    tensors: dict[str, dict[str, Tensor]]
    manifest: dict[str, Any]


def contents_of(step: TrainingStep, progress: Progress, *, copied: bool) -> Contents:
    """What must be kept of `step`, on the host; `copied` tensors do not change when training goes on.

    Of several ranks all must ask; each gets whole tensors.
    """
    tensors = {
        name: {key: value.detach().to("cpu", copy=copied) for key, value in own.items()}
        for name, own in _tensors(step).items()
    }
    manifest = {
        "format": FORMAT,
        "settings_hash": step.settings.resumable_hash,
        "progress": progress,
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
        "random": of_all_ranks(_host_generators()),
    }
    return Contents(tensors, manifest)


def save_checkpoint(
    folder: Path, step: TrainingStep, progress: Progress, *, after_file: Callable[[str], None] = lambda name: None
) -> Path:
    """Write a durable checkpoint of `step` under `folder`; returns its path. `after_file` is for tests of crashes.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    return write_checkpoint(folder, contents_of(step, progress, copied=False), after_file=after_file)


def write_checkpoint(
    folder: Path, contents: Contents, *, after_file: Callable[[str], None] = lambda name: None
) -> Path:
    """Make `contents` durable under `folder`; returns the path.

    Raises:
        OSError: the disk is full or the folder cannot be written; what was there before is untouched.
    """
    target = folder / f"step-{contents.manifest['progress']['step']:08d}"
    _write(target, contents.tensors, contents.manifest, after_file)
    return target


def _write(
    target: Path, tensors: dict[str, dict[str, Tensor]], manifest: dict[str, Any], after_file: Callable[[str], None]
) -> None:
    folder = target.parent
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=folder))
    try:
        _fill(temporary, tensors, manifest, after_file)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk gets its space back
        raise
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    _flush(folder)


def _fill(
    folder: Path, tensors: dict[str, dict[str, Tensor]], manifest: dict[str, Any], after_file: Callable[[str], None]
) -> None:
    """Write and flush every file of a checkpoint, the manifest last.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    for name, own in tensors.items():
        try:
            save_file({key: value.contiguous() for key, value in own.items()}, folder / name)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(f"{name}: {error}") from error
        _flush(folder / name)
        after_file(name)
    manifest = {**manifest, "files": {name: _digest(folder / name) for name in tensors}}
    (folder / MANIFEST).write_text(_sealed(manifest))
    _flush(folder / MANIFEST)
    after_file(MANIFEST)
    _flush(folder)


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what crashes left behind."""
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    for rest in folder.glob(f"{TEMPORARY}*"):
        shutil.rmtree(rest)


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first; not checked."""
    return sorted(folder.glob("step-*"))


def load_newest(folder: Path, step: TrainingStep) -> Progress | None:
    """Restore `step` from the newest good checkpoint under `folder`; None when there is none.

    Raises:
        InvalidSettings: the checkpoint was made with other settings.
    """
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path, step)
        except CheckpointDamaged as error:
            warnings.warn(f"{error} Falling back to the one before.", DamagedCheckpointWarning, stacklevel=2)
    return None


def load_checkpoint(path: Path, step: TrainingStep) -> Progress:
    """Restore model, optimizer, loss scale and random generators from `path`; returns the progress.

    Raises:
        CheckpointDamaged: a file is missing, cut or changed.
        InvalidSettings: it was made with other settings.
    """
    manifest = _manifest(path)
    if manifest["settings_hash"] != step.settings.resumable_hash:
        raise InvalidSettings(
            f"Checkpoint {path} belongs to settings {manifest['settings_hash']}, the run has "
            f"{step.settings.resumable_hash}. "
            f"Resume with the settings it was started with, or start in another folder."
        )
    _restore_model(step, load_file(path / MODEL))
    _restore_optimizer(step, load_file(path / OPTIMIZER))
    _restore_generators(load_file(path / GENERATORS), manifest["random"])
    if step.scaler is not None and manifest["scaler"] is not None:
        step.scaler.load_state_dict(manifest["scaler"])
    return manifest["progress"]


def _sealed(manifest: dict[str, Any]) -> str:
    """A manifest as JSON on its second line; the first is its hash."""
    body = json.dumps(manifest)
    return f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of `path`, after checking it and every file against their hashes.

    Raises:
        CheckpointDamaged: one does not match.
    """
    try:
        seal, _, body = (path / MANIFEST).read_bytes().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != seal:
            raise CheckpointDamaged(f"Checkpoint {path} is damaged: {MANIFEST} does not match its hash.")
        manifest = json.loads(body)
        for name, digest in manifest["files"].items():
            if _digest(path / name) != digest:
                raise CheckpointDamaged(f"Checkpoint {path} is damaged: {name} does not match its hash.")
    except OSError as error:
        raise CheckpointDamaged(f"Checkpoint {path} is damaged: {error}.") from error
    if manifest["format"] != FORMAT:
        raise CheckpointDamaged(
            f"Checkpoint {path} is a {manifest['format']}, not a {FORMAT}: another version wrote it."
        )
    return manifest


def _tensors(step: TrainingStep) -> dict[str, dict[str, Tensor]]:
    model = {name: whole(tensor) for name, tensor in model_tensors(step).items()}
    generators: dict[str, Tensor] = {}
    for number, states in enumerate(of_all_ranks(_device_generators())):
        generators |= {f"{number}:{name}": state for name, state in states.items()}
    return {MODEL: model, OPTIMIZER: _optimizer_tensors(step), GENERATORS: generators}


def model_tensors(step: TrainingStep) -> dict[str, Tensor]:
    """What must be kept of the model, each shared tensor once: adapters alone when the base is frozen for good."""
    adapted = step.settings.adapter.kind != "none"
    named: list[tuple[str, Tensor]] = [
        (n, p) for n, p in step.model.named_parameters() if p.requires_grad or not adapted
    ]
    if not adapted:
        named += [(f"buffer:{n}", b) for n, b in step.model.named_buffers()]
    return dict(named)


def _restore_model(step: TrainingStep, tensors: dict[str, Tensor]) -> None:
    own = model_tensors(step)
    if set(own) != set(tensors):
        raise CheckpointDamaged(f"The checkpoint's model has other tensors: {sorted(set(own) ^ set(tensors))[:3]}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(like(tensors[name], tensor))


NUMBER = "number"
"""Marks state that an optimizer keeps as a Python number."""


def _optimizer_parameters(step: TrainingStep) -> list[torch.nn.Parameter]:
    return [p for group in step.optimizer.param_groups for p in group["params"]]


def _optimizer_tensors(step: TrainingStep) -> dict[str, Tensor]:
    """State by position of the parameter and name; scalars that optimizers keep as numbers become tensors."""
    found = {}
    for index, parameter in enumerate(_optimizer_parameters(step)):
        for name, value in step.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{index}:{name}"] = whole(value).contiguous()
            elif isinstance(value, int | float):
                found[f"{index}:{name}:{NUMBER}"] = torch.tensor(value, dtype=torch.float64)
    return found


def _restore_optimizer(step: TrainingStep, tensors: dict[str, Tensor]) -> None:
    parameters = _optimizer_parameters(step)
    step.optimizer.state.clear()
    for key, value in tensors.items():
        index, name, *number = key.split(":")
        parameter = parameters[int(index)]
        state = step.optimizer.state[parameter]
        if number:
            state[name] = int(plain) if (plain := float(value.item())).is_integer() else plain
        else:
            state[name] = like(value.to(parameter.device), parameter) if value.ndim else value.to(parameter.device)


def _device_generators() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _host_generators() -> dict[str, Any]:
    name, keys, position, has_gauss, gauss = np.random.get_state()
    version, internal, gauss_next = random.getstate()
    return {
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "python": [version, list(internal), gauss_next],
    }


def _restore_generators(tensors: dict[str, Tensor], hosts: list[Any]) -> None:
    """This rank's own; a rank that was not there before starts from rank 0's, moved on by its number."""
    known = rank() < len(hosts)
    mine = f"{rank() if known else 0}:"
    for name, state in ((n.removeprefix(mine), s) for n, s in tensors.items() if n.startswith(mine)):
        if name == "cpu":
            torch.set_rng_state(state)
        elif torch.cuda.is_available():
            torch.cuda.set_rng_state(state)
    host = hosts[rank() if known else 0]
    name, keys, position, has_gauss, gauss = host["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = host["python"]
    random.setstate((version, tuple(internal), gauss_next))
    if not known:
        for _ in range(rank()):
            torch.manual_seed(int(torch.randint(2**62, ()).item()))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    """Make a file or the entries of a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
