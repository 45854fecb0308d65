"""Checkpoints that survive a crash at any byte: safetensors and a manifest of hashes, made durable before they count.

A checkpoint is written into a temporary folder beside its place, every file and the folder flushed to disk, then
renamed to `step-00000123` in one go, and the parent flushed. Whatever a crash leaves is a temporary folder, which is
skipped, or a folder whose manifest does not match, which is skipped with a warning. Nothing is unpickled.
"""

import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.errors import CheckpointDamaged, InvalidSettings, UserNote
from forerun.step.parallel import of_all_ranks, whole
from forerun.step.training_step import TrainingStep
from forerun.train.checkpoint_files import (
    FORMAT,
    MANIFEST,
    TEMPORARY,
    checkpoints,
    digest_of,
    flush,
    manifest_of,
    put_in_place,
    seal,
)
from forerun.train.generators import device_generators, host_generators, restore_generators
from forerun.train.parts import Parts, apart, is_first_copy, is_sharded, parts_of
from forerun.train.ranks import from_first, rank

MODEL, OPTIMIZER, GENERATORS = "model.safetensors", "optimizer.safetensors", "rng.safetensors"

Progress = dict[str, Any]
"""Progress of a run as JSON: its step, and seconds spent so far."""


class DamagedCheckpointWarning(UserNote):
    """A checkpoint was skipped because it does not match its manifest."""


@dataclass(frozen=True)
class Contents:
    """Contents of a checkpoint: tensors by file, and the manifest."""

    tensors: dict[str, dict[str, Tensor]]
    manifest: dict[str, Any]


def contents_of(step: TrainingStep, progress: Progress, *, copied: bool) -> Contents:
    """State of `step` on the host; `copied` tensors do not change when training goes on.

    A collective: all ranks must call it. Each gets whole tensors, or its own parts where checkpoints are sharded.
    """
    sharded = writes_parts(step)
    tensors = {
        name: {key: value.detach().to("cpu", copy=copied) for key, value in own.items()}
        for name, own in _tensors(step, sharded=sharded).items()
    }
    manifest = {
        "parts": places_of(step, {MODEL: model_tensors(step), OPTIMIZER: _optimizer_tensors(step)})
        if sharded
        else None,
        "format": FORMAT,
        "settings_hash": step.settings.resumable_hash,
        "progress": progress,
        "scaler": None if step.scaler is None else step.scaler.state_dict(),
        "random": of_all_ranks(host_generators()),
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
    target = place_of(folder, contents)
    _write(target, contents.tensors, contents.manifest, after_file)
    return target


def place_of(folder: Path, contents: Contents) -> Path:
    """Path of a checkpoint under `folder`."""
    return folder / f"step-{contents.manifest['progress']['step']:08d}"


def writes_parts(step: TrainingStep) -> bool:
    """Whether every rank writes what it holds."""
    parallel = step.settings.parallel
    return parallel.pipeline > 1 or (step.settings.checkpoints.sharded and parallel.kind == "fsdp")


def write_parts(folder: Path, contents: Contents) -> str | None:
    """Make a sharded checkpoint durable: every rank its files, then the first one the manifest.

    A collective: all ranks must call it. Returns the message of a failure, or None.
    """
    target, temporary, failure = place_of(folder, contents), "", None
    digests: dict[str, str] = {}
    try:
        if rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.mkdtemp(prefix=TEMPORARY, dir=folder)
    except OSError as error:
        failure = str(error)
    temporary = from_first(temporary)
    try:
        if temporary:
            digests = _fill_files(Path(temporary), contents.tensors, lambda name: None)
    except OSError as error:
        failure = str(error)
    results = of_all_ranks((failure, digests))
    failure = next((message for message, _ in results if message is not None), None)
    if rank() == 0 and failure is None:
        try:
            seal(Path(temporary), contents.manifest, {n: d for _, files in results for n, d in files.items()})
            put_in_place(Path(temporary), target)
        except OSError as error:
            failure = str(error)
    failure = from_first(failure)
    if rank() == 0 and failure is not None and temporary:
        shutil.rmtree(temporary, ignore_errors=True)
    return failure


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
    put_in_place(temporary, target)


def _fill(
    folder: Path, tensors: dict[str, dict[str, Tensor]], manifest: dict[str, Any], after_file: Callable[[str], None]
) -> None:
    """Write and flush every file of a checkpoint, the manifest last.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    seal(folder, manifest, _fill_files(folder, tensors, after_file))
    after_file(MANIFEST)


def _fill_files(
    folder: Path, tensors: dict[str, dict[str, Tensor]], after_file: Callable[[str], None]
) -> dict[str, str]:
    """Write and flush files of tensors; returns their hashes."""
    for name, own in tensors.items():
        try:
            save_file(apart(own), folder / name)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(f"{name}: {error}") from error
        flush(folder / name)
        after_file(name)
    return {name: digest_of(folder / name) for name in tensors}


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
    remedy = "Resume with the settings it was started with, or start in another folder."
    manifest = own_manifest(path, step, remedy)
    restore_model(step, source_of(path, MODEL, manifest["parts"]))
    _restore_optimizer(step, source_of(path, OPTIMIZER, manifest["parts"]))
    restore_generators(load_file(path / GENERATORS), manifest["random"])
    if step.scaler is not None and manifest["scaler"] is not None:
        step.scaler.load_state_dict(manifest["scaler"])
    return manifest["progress"]


def own_manifest(path: Path, step: TrainingStep, remedy: str) -> dict[str, Any]:
    """The manifest of `path`, which must be of the run of `step`: InvalidSettings with the `remedy` otherwise."""
    manifest, own = manifest_of(path), step.settings.resumable_hash
    if manifest["settings_hash"] != own:
        theirs = manifest["settings_hash"]
        raise InvalidSettings(f"Checkpoint {path} belongs to settings {theirs}, the run has {own}. {remedy}")
    return manifest


def _tensors(step: TrainingStep, *, sharded: bool) -> dict[str, dict[str, Tensor]]:
    """Tensors by file: whole ones, or what this rank holds of those that are sharded, the first one of all others."""
    generators: dict[str, Tensor] = {}
    for number, states in enumerate(of_all_ranks(device_generators())):
        generators |= {f"{number}:{name}": state for name, state in states.items()}
    model, optimizer = model_tensors(step), _optimizer_tensors(step)
    if not sharded:
        whole_model = {name: whole(tensor) for name, tensor in model.items()}
        whole_optimizer = {name: whole(tensor).contiguous() for name, tensor in optimizer.items()}
        return {MODEL: whole_model, OPTIMIZER: whole_optimizer, GENERATORS: generators}
    own = dict([local_parts(step, MODEL, model), local_parts(step, OPTIMIZER, optimizer)])
    return own | ({GENERATORS: generators} if rank() == 0 else {})


def local_parts(step: TrainingStep, kind: str, tensors: dict[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """This rank's file of a kind, and the parts of `tensors` that it writes into it."""
    return _file(kind, rank()), {key: part for key, (part, _) in _own_parts(step, tensors).items()}


def places_of(step: TrainingStep, kinds: dict[str, dict[str, Tensor]]) -> dict[str, dict[str, list[int]]]:
    """File → tensor → where its part begins, over all ranks. A collective: all ranks must call it."""
    own = {
        _file(kind, rank()): {key: begin for key, (_, begin) in _own_parts(step, tensors).items()}
        for kind, tensors in kinds.items()
    }  # fmt: skip
    return {file: places for each in of_all_ranks(own) for file, places in each.items()}


def _own_parts(step: TrainingStep, tensors: dict[str, Tensor]) -> dict[str, tuple[Tensor, list[int]]]:
    """Key → a part that this rank writes, and where it begins."""
    return {
        key: part for name, t in tensors.items() if _is_own(step, t) for key, part in parts_of(name, t).items()
    }  # fmt: skip


def _is_own(step: TrainingStep, tensor: Tensor) -> bool:
    """Whether this rank writes its part of `tensor`."""
    parallel = step.settings.parallel
    return is_first_copy(tensor, max(1, parallel.world_size // parallel.pipeline))


def _file(kind: str, number: int) -> str:
    """Name of a rank's file: `model-00003.safetensors`."""
    return kind.replace(".", f"-{number:05d}.")


def source_of(path: Path, kind: str, parts: dict[str, dict[str, list[int]]] | None) -> Parts:
    """The tensors of a kind in a checkpoint, whole or in parts."""
    if parts is None:
        with safe_open(path / kind, "pt") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        return Parts({path / kind: {name: [0] * len(shape) for name, shape in shapes.items()}})
    stem = kind.partition(".")[0]
    return Parts({path / file: places for file, places in parts.items() if file.startswith(f"{stem}-")})


def model_tensors(step: TrainingStep) -> dict[str, Tensor]:
    """Parameters and buffers to save, each shared tensor once; of a model with adapters only what is ever updated."""
    adapted = step.settings.adapter.kind != "none"
    updated = {id(p) for p in _optimizer_parameters(step)}  # frozen for some epochs or not
    tensors: list[tuple[str, Tensor]] = [
        (n, p) for n, p in step.model.named_parameters() if id(p) in updated or not adapted
    ]
    if not adapted:
        tensors += [(f"buffer:{n}", b) for n, b in step.model.named_buffers()]
    return dict(tensors)


def restore_model(step: TrainingStep, source: Parts) -> None:
    """Put the weights of `source` into the model of `step`."""
    own = model_tensors(step)
    other = set(own) - source.names if step.pipeline is not None else set(own) ^ source.names
    if other:  # a stage has a part of the tensors
        raise CheckpointDamaged(f"The checkpoint's model has other tensors: {sorted(other)[:3]}.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(source.read_like(name, tensor))


NUMBER = "number"
"""Marks state that an optimizer keeps as a Python number."""


def _optimizer_parameters(step: TrainingStep) -> list[torch.nn.Parameter]:
    return [p for group in step.optimizer.param_groups for p in group["params"]]


def _optimizer_tensors(step: TrainingStep) -> dict[str, Tensor]:
    """State by name of the parameter and its own; scalars that optimizers keep as numbers become tensors.

    Names are the same under every layout; places in the optimizer are not.
    """
    tensors, names = {}, step.parameter_names
    for parameter in _optimizer_parameters(step):
        for name, value in step.optimizer.state.get(parameter, {}).items():
            key = f"{names[id(parameter)]}:{name}"
            if isinstance(value, Tensor):
                tensors[key] = value
            elif isinstance(value, int | float):
                tensors[f"{key}:{NUMBER}"] = torch.tensor(value, dtype=torch.float64)
    return tensors


def _restore_optimizer(step: TrainingStep, source: Parts) -> None:
    # not Optimizer.load_state_dict: torch/optim/optimizer.py (2.13) casts state to the parameter's dtype
    trained = _optimizer_parameters(step)
    parameters = {step.parameter_names[id(parameter)]: parameter for parameter in trained}
    parameters |= {str(index): p for index, p in enumerate(trained)}  # as checkpoints of before 2026-11-25 have it
    step.optimizer.state.clear()
    for key in sorted(source.names):
        owner, name, *number = key.split(":")
        if owner not in parameters and step.pipeline is not None:
            continue  # another stage has it
        parameter = parameters[owner]
        state = step.optimizer.state[parameter]
        shape = source.shape(key)
        if number:
            plain = float(source.read(key, shape, [0] * len(shape)).item())
            state[name] = int(plain) if plain.is_integer() else plain
        elif is_sharded(parameter) and shape == list(parameter.shape):
            state[name] = source.read_like(key, parameter)
        else:
            state[name] = source.read(key, shape, [0] * len(shape)).to(parameter.device)
