"""Beam search of transformers: it goes on to its greatest length, as a search without beams does.

It ends when no open beam can get better than those that are whole (`_beam_search_has_unfinished_sequences`,
transformers/generation/utils.py, 5.24). Nobody can know when, and "no" to "can any?" ended it at its first token.
Releases without these functions are left as they are.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.put_back import replaced

MODULE = "transformers.generation.utils"
WATCHED, ASKED = "_check_early_stop_heuristic", "_beam_search_has_unfinished_sequences"
"""What is told the length so far and the greatest one, after each token; and what is asked behind it."""


@contextlib.contextmanager
def searching_to_the_end(note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, a beam search ends at its greatest length; `note` hears of it."""
    with after_import(MODULE, lambda module: _change(module, note)):
        yield


def _change(module: ModuleType, note: Callable[[str, Any], None]) -> Callable[[], None]:
    owner, stack = module.GenerationMixin, contextlib.ExitStack()
    if not (hasattr(owner, WATCHED) and hasattr(owner, ASKED)):
        return stack.close
    watched, asks = getattr(owner, WATCHED), getattr(owner, ASKED)
    lengths = [0, 0]

    def watch(*args: Any, **kwargs: Any) -> Any:
        lengths[:] = kwargs.get("cur_len", 0), kwargs.get("max_length", 0)
        return watched(*args, **kwargs)

    def ask(*args: Any, **kwargs: Any) -> Any:
        goes_on, (length, most) = asks(*args, **kwargs), lengths
        if not 0 < length < most:
            return goes_on
        note("when a beam search is over", f"at {most:,} tokens")
        return True

    for name, function in ((WATCHED, watch), (ASKED, ask)):
        stack.enter_context(replaced(owner, name, staticmethod(function)))
    return stack.close
