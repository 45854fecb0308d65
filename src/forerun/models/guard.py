"""The one place where what transformers, peft or PyTorch raise becomes an error of ours, and where models end.

Code of others is given what a user wrote; it refuses by whatever exception it comes to, from hundreds of places. Under
`guarded` each of them becomes one paragraph: what was attempted, what was raised and where, what to do.
"""

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import ForerunError, InvalidSettings

if TYPE_CHECKING:  # the catalogue of models is read without PyTorch
    from torch import nn

MOST_MODULES = 100_000
"""Parts of one model: DeepSeek-V3 with every expert a module of its own has 46,000. Building so many takes seconds."""
LONGEST_CAUSE = 300


@contextlib.contextmanager
def guarded(
    refusal: type[ForerunError], attempt: str | Callable[[], str], remedy: str | Callable[[Exception], str]
) -> Iterator[None]:
    """Raise what code of others raises inside as a `refusal` with its cause; errors of ours pass.

    Functions are asked what was attempted, and what helps, only where it failed.

    Raises:
        ForerunError: `attempt`, the cause and where it came from, `remedy`.
    """
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):  # for who can train in smaller pieces
            raise
        words = attempt if isinstance(attempt, str) else attempt()
        advice = remedy if isinstance(remedy, str) else remedy(error)
        raise refusal(f"{words}: {cause_of(error)}. {advice}") from error


def _is_out_of_memory(error: Exception) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def cause_of(error: BaseException) -> str:
    """The first line of an error with its type and the file and line that raised it; never empty."""
    lines = [line.strip() for line in _message(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1]).rstrip(".")
    if len(text) > LONGEST_CAUSE:
        text = text[:LONGEST_CAUSE] + "…"
    frames = traceback.extract_tb(error.__traceback__)
    place = f", {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"{text or 'no message'} ({type(error).__name__}{place})"


def _message(error: BaseException) -> str:
    """Its own words, or those of its cause where a wrapper has none of a reader's."""
    inner = error.__cause__
    return str(error) or (_message(inner) if inner is not None else "")


@contextlib.contextmanager
def limited_parts(name: str) -> Iterator[None]:
    """Refuse to go on building a model with more modules than any has.

    Raises:
        InvalidSettings: naming the model and the limit.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    count = 0

    def register(parent: "nn.Module", part: str, child: "nn.Module | None") -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise InvalidSettings(
                f"model.config: at most {MOST_MODULES:,} modules in a model; {name} with these settings has more, "
                f"{type(parent).__name__} among them. Lower its number of layers or experts."
            )

    hook = register_module_module_registration_hook(register)
    try:
        yield
    finally:
        hook.remove()
