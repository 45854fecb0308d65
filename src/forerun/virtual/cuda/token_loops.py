"""transformers' loop over tokens: where what a token costs is known, one turn of it can stand for many.

`GenerationMixin._sample` (transformers/generation/utils.py, 4.57 to 5.24) calls the model, adds a token to what it
gives the model next (`_update_model_kwargs_for_generation`) and to its ids (`torch.cat`). Where the model call stood
for several tokens, both add as many, and what the loop did in that turn counts as often. Loops that keep something of
each token (scores, attentions), or that hand tokens on (a streamer), take turn by turn, and so do releases that add one
token at a time.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.put_back import replaced
from forerun.virtual.recorder import Recorder

MODULE, LOOP, UPDATE = "transformers.generation.utils", "_sample", "_update_model_kwargs_for_generation"
ENDS = "_has_unfinished_sequences"
GOES_ON = "where an answer ends"
"""What nobody can know of a loop that a token may end."""
ADDS_SEVERAL = "attention_mask.shape[0], num_new_tokens"
"""What the source of that function says where it lengthens masks by several tokens at once."""
KEEPS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
"""Settings with which a loop keeps something of each token."""


@dataclass
class TokenLoop:
    """A loop over tokens that runs."""

    recorder: Recorder
    left: int
    """Tokens that it adds at most; 0 where turns cannot stand for several."""
    turn_tokens: int = 1
    """Those of this turn."""
    turn_begin: int = 0
    """Number of operators when the model call of this turn was over."""
    turn_calls: int = 0
    """Calls of models in this turn; where there is more than one (guidance), a turn is always one token."""
    asks: bool = False
    """Whether it is asking if it is over."""

    def next_turn(self) -> None:
        """The turn is over: what it did beside the model call counts for each of its tokens."""
        if self.turn_tokens > 1:
            repeat_operators(self.recorder, self.turn_begin, self.turn_tokens)
        self.turn_tokens = 1

    def stand_for(self, tokens: int) -> None:
        """The model call of this turn was one for each of so many tokens."""
        self.turn_tokens, self.turn_begin = tokens, len(self.recorder.trace.ops)

    def cat(self, tensors: list[Tensor] | tuple[Tensor, ...], *args: Any, **kwargs: Any) -> Tensor:
        """`torch.cat` as the loop calls it: with a turn's tokens behind the ids."""
        if len(tensors) == 2 and tensors[1].dim() == 2 and tensors[1].shape[1] == 1 and self.left:
            tensors = [tensors[0], tensors[1].expand(-1, self.turn_tokens)]
            self.left = max(0, self.left - self.turn_tokens) if self.turn_calls <= 1 else 0
            self.turn_calls = 0
        return torch.cat(tensors, *args, **kwargs)


def repeat_operators(recorder: Recorder, begin: int, times: int) -> None:
    """Count each operator from number `begin` on so often."""
    trace = recorder.trace
    for index in range(begin, len(trace.ops)):
        op = trace.ops[index]
        trace.ops[index] = replace(op, call=times_as_often(recorder, op.call, times))


def times_as_often(recorder: Recorder, call: int, times: int) -> int:
    """The number of a call that stands for `times` like that of number `call`."""
    before = recorder.trace.calls[call]
    more = replace(before, times=before.times * times)
    return recorder.number_of(more, lambda: more)


_LOOPS: list[TokenLoop] = []


def innermost_loop() -> TokenLoop | None:
    """The loop over tokens that runs now."""
    return _LOOPS[-1] if _LOOPS else None


def loop_asks_for_its_end() -> bool:
    """Whether a loop is asking if a token has ended it, which nobody can know: it goes on to its greatest length."""
    return bool(_LOOPS) and _LOOPS[-1].asks


@contextlib.contextmanager
def following_token_loops(recorder: Recorder, note: Callable[[str, Any], None]) -> Iterator[None]:
    """While it is active, loops over tokens are known to those who play their model calls.

    `note` hears of each that goes on to its greatest length, as nobody can know where it ends.
    """
    with after_import(MODULE, lambda module: _change(module, recorder, note)):
        yield


def _change(module: ModuleType, recorder: Recorder, note: Callable[[str, Any], None]) -> Callable[[], None]:
    owner, stack = module.GenerationMixin, contextlib.ExitStack()
    if not all(hasattr(owner, name) for name in (LOOP, UPDATE, ENDS)):
        return stack.close
    sample, update, ends = (getattr(owner, name) for name in (LOOP, UPDATE, ENDS))
    adds_several = ADDS_SEVERAL in inspect.getsource(update)

    def follow(model: Any, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        most = _most_tokens(input_ids, kwargs)
        if most and any(hasattr(each, "eos_token_id") for each in kwargs["stopping_criteria"]):
            note(GOES_ON, f"{most:,} new tokens")
        takes_each = args or not adds_several or _takes_each(kwargs)
        _LOOPS.append(TokenLoop(recorder, 0 if takes_each else most))
        try:
            return sample(model, input_ids, *args, **kwargs)
        finally:
            _LOOPS.pop().next_turn()

    def add_tokens(*args: Any, **kwargs: Any) -> Any:
        loop = innermost_loop()
        if loop is None:
            return update(*args, **kwargs)
        more = {"num_new_tokens": loop.turn_tokens} if loop.turn_tokens > 1 else {}
        with replaced(module, "torch", torch):  # what it adds has all tokens already
            return update(*args, **kwargs, **more)

    def goes_on(*args: Any, **kwargs: Any) -> Any:
        loop = innermost_loop()
        if loop is None:
            return ends(*args, **kwargs)
        with replaced(loop, "asks", True):
            return ends(*args, **kwargs)

    for name, function in ((LOOP, follow), (UPDATE, add_tokens), (ENDS, goes_on)):
        stack.enter_context(replaced(owner, name, function))
    stack.enter_context(replaced(module, "torch", _Torch()))
    return stack.close


class _Torch:
    """`torch` as that module sees it: all of it, but for `cat` in a loop."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @property
    def cat(self) -> Any:
        """That of the loop that runs, else PyTorch's own."""
        loop = innermost_loop()
        return torch.cat if loop is None else loop.cat


def _most_tokens(input_ids: Tensor, options: dict[str, Any]) -> int:
    """How many tokens a loop adds at most; 0 where it does not say."""
    most = getattr(options.get("stopping_criteria"), "max_length", None)
    return 0 if most is None else max(0, int(most) - input_ids.shape[1])


def _takes_each(options: dict[str, Any]) -> bool:
    """Whether something of each token goes somewhere."""
    settings = options.get("generation_config")
    keeps = settings is None or any(getattr(settings, name, None) for name in KEEPS)
    return keeps or options.get("streamer") is not None
