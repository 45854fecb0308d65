"""Calls of tools in what a model has written → `tool_calls` of OpenAI's API.

Read is the form that the model's chat template writes (`data/call_grammar.py`), and the form of Hermes and Qwen2.5
where a template writes none, as the repair `tool-calls` does. What is no call stays text. Special tokens, which may be
part of a call (Mistral's `[TOOL_CALLS]`), are taken out of the rest.
"""

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.data.call_grammar import HERMES, CallGrammar
from forerun.data.spelled_tokens import SpelledTokens
from forerun.data.written_calls import FIRST_OBJECT, Tools, beginning_of, split_written
from forerun.serving.channels import Channels


@dataclass(frozen=True)
class ToolAnswers:
    """How one model's answers are read."""

    grammar: CallGrammar = HERMES
    special: SpelledTokens | None = None
    """The special tokens of its tokenizer."""
    channels: Channels | None = None
    """Where the answer is, if special tokens say so."""

    def split(self, text: str, tools: Tools = ()) -> tuple[str, list[dict[str, Any]]]:
        """The text without its calls and special tokens, and the calls as OpenAI's API has them."""
        left, calls = split_written(text, self.grammar, tools)
        functions = [
            {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)} for name, arguments in calls
        ]
        named = [{"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function} for function in functions]
        return (self.plain(left) if self.channels is None else self.channels.content(left)), named

    def plain(self, text: str) -> str:
        """`text` without special tokens."""
        return text if self.special is None else self.special.left_out(text)

    async def before_calls(self, pieces: AsyncIterator[str], rest: list[str]) -> AsyncIterator[str]:
        """Pieces up to where a call may begin; what comes from there on is put into `rest`."""
        waiting, is_start = "", True
        if self.channels is not None:  # which channel is the answer is told at its end
            rest += [piece async for piece in pieces]
            return
        async for piece in pieces:
            waiting += piece
            begin = self._begin(waiting, is_start=is_start)
            if begin:
                is_start = False
                yield self.plain(waiting[:begin])
            waiting = waiting[begin:]
        rest.append(waiting)

    def _begin(self, text: str, *, is_start: bool) -> int:
        """Where in `text` a call may begin; its length where none may."""
        mark = beginning_of(self.grammar)
        if mark:
            place = text.find(mark)
            ends = range(max(0, len(text) - len(mark)), len(text))
            return place if place >= 0 else next((at for at in ends if mark.startswith(text[at:])), len(text))
        if self.grammar.style != "object":  # any answer may begin with the name of a tool
            return 0
        may_begin = is_start and (not self.plain(text).strip() or FIRST_OBJECT.match(text) is not None)
        return 0 if may_begin or (is_start and text.lstrip().startswith("<") and ">" not in text) else len(text)

    def message(self, text: str, tools: Sequence[Any]) -> tuple[dict[str, Any], bool]:
        """The assistant's message, and whether it calls tools; without tools the text is as it is."""
        content, calls = self.split(text, tools) if tools else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message |= {"content": content.strip() or None, "tool_calls": calls}
        return message, bool(calls)
