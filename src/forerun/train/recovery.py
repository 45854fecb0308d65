"""A step that runs out of memory is run again in smaller pieces, and means the same.

The gradients of the failed attempt are dropped, the random generators are put back to where the step began, and the
micro-batch that was too large is cut in two, again and again. What the loss is divided by stays that of the whole step,
so loss and gradient are those of the uncut step up to rounding; only masks of dropout are drawn anew for other shapes.
Micro-batches at least as large as one that failed are cut before they are tried from then on.

Not covered: running out of memory in the optimizer's update, which no smaller micro-batch cures, and with several
ranks, whose peers would wait.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from forerun.errors import DeviceFailed, OutOfMemory
from forerun.step.training_step import StepObserver, StepResult, TrainingStep, generator_states, restore_generators
from forerun.step.workload import Batch, halves
from forerun.trace import Phase
from forerun.train.checkpoint_files import newest_of

SIGNS = (
    "CUDA error: out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Parts of messages that mean out of memory: c10/core/impl/alloc_cpu.cpp, and cuBLAS and cuDNN on a full GPU."""
T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the device has no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    )


def padded_tokens(batch: Batch) -> int:
    """Padded tokens of a micro-batch."""
    return batch["input_ids"].numel()


@contextlib.contextmanager
def failures_told(folder: Path) -> Iterator[None]:
    """What a device that failed raises, as our error; checkpoints are in `folder`.

    Nothing can be saved then: after such an error CUDA answers every call of the process with it.

    Raises:
        DeviceFailed: the device failed or disappeared.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error) or not _is_of_device(error):
            raise
        raise DeviceFailed(
            f"The device failed while the run trained on it: {str(error).splitlines()[0]}. Last good checkpoint: "
            f"{newest_of(folder)}; the run can go on from there with --resume {folder.parent.name}. A device-side "
            f"assert is an index or a label out of range; for any other look at `nvidia-smi` and for Xid in `dmesg`."
        ) from error


def _is_of_device(error: RuntimeError) -> bool:
    return isinstance(error, torch.AcceleratorError) or str(error).startswith("CUDA error:")


class _Watching(StepObserver):
    """Passes everything on and remembers where the step is."""

    def __init__(self, observer: StepObserver):
        self.observer = observer
        self.phase_now, self.micro_step = Phase.FORWARD, 0

    @contextlib.contextmanager
    def phase(self, phase: Phase, micro_step: int = -1) -> Iterator[None]:
        self.phase_now = phase
        self.micro_step = micro_step if micro_step >= 0 else self.micro_step
        with self.observer.phase(phase, micro_step):
            yield

    def accepts(self, loss: torch.Tensor, norm: torch.Tensor | None) -> bool:
        return self.observer.accepts(loss, norm)


class Recovery:
    """Runs the steps of one run; remembers what did not fit."""

    def __init__(self, step: TrainingStep):
        self.step = step
        self.too_large: int | None = None
        """Padded tokens of the smallest micro-batch that did not fit."""
        self.times = 0
        """How often the last step ran out of memory."""

    def run(self, micro_batches: Sequence[Batch], observer: StepObserver) -> StepResult:
        """One optimizer step over `micro_batches`, in smaller pieces where they do not fit.

        Raises:
            OutOfMemory: a single sample does not fit, or the update does not.
        """
        self.times = 0
        if not self.step.settings.parallel.is_alone:
            return self.step.run(micro_batches, observer)
        counted = self.step.counted(micro_batches)
        states = generator_states(self.step.device_type)
        pieces = self._cut_to_fit(micro_batches)
        while True:
            watching = _Watching(observer)
            try:
                return self.step.run(pieces, watching, counted)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                message = str(error).splitlines()[0]
            self._clean_up(states)  # the error is gone by now, and with it every tensor of the failed attempt
            self.times += 1
            pieces = self._smaller(pieces, watching, message)

    def _smaller(self, pieces: Sequence[Batch], watching: _Watching, message: str) -> list[Batch]:
        failed = pieces[min(watching.micro_step, len(pieces) - 1)]
        if watching.phase_now is Phase.OPTIMIZER or halves(failed) is None:
            where = "in the optimizer's update" if watching.phase_now is Phase.OPTIMIZER else "with a single sample"
            raise OutOfMemory(
                f"Training ran out of memory {where} ({padded_tokens(failed):,} padded tokens): {message} "
                f"Set activation_checkpointing to blocks, an 8-bit or paged optimizer, or an adapter; "
                f"`forerun forecast --explain` says what each saves."
            )
        self.too_large = padded_tokens(failed)
        return self._cut_to_fit(pieces)

    def _cut_to_fit(self, pieces: Sequence[Batch]) -> list[Batch]:
        """`pieces`, those at least as large as what failed cut in two until they are smaller."""
        if self.too_large is None:
            return list(pieces)
        fitting: list[Batch] = []
        for piece in pieces:
            cut = halves(piece) if padded_tokens(piece) >= self.too_large else None
            fitting += [piece] if cut is None else self._cut_to_fit(cut)
        return fitting

    def _clean_up(self, states: list[torch.Tensor]) -> None:
        self.step.optimizer.zero_grad(set_to_none=True)
        restore_generators(self.step.device_type, states)
        gc.collect()
        if self.step.device_type == "cuda":
            torch.cuda.empty_cache()


def in_pieces(score: Callable[[Batch], T], batch: Batch) -> list[T]:
    """`score` of a batch without gradients, or of its halves in order where the whole does not fit.

    Raises:
        OutOfMemory: a single sample does not fit.
    """
    try:
        return [score(batch)]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        message = str(error).splitlines()[0]
    cut = halves(batch)
    if cut is None:
        raise OutOfMemory(f"A single sample of {padded_tokens(batch):,} tokens cannot be scored: {message}")
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return [result for part in cut for result in in_pieces(score, part)]
