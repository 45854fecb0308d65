"""What a model says to the user, where its chat template puts special tokens before it (gpt-oss's channels).

Told by rendering an answer: what the template writes between its generation prompt and the answer's text is the
opening (`<|channel|>final<|message|>`). Where special tokens are in it, an answer is what follows the last opening;
what stands in other channels (reasoning) is not shown. Where the opening never comes, as before a call of a tool, it
is the texts of all channels, each of which follows the last special token of the opening.

Reasoning that no special token marks (`<think>` of Qwen3) stays part of the answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from forerun.data.chat_tokens import ChatTokens
from forerun.data.spelled_tokens import SpelledTokens

QUESTION, ANSWER = "QUESTION", "ANSWER"


@dataclass(frozen=True)
class Channels:
    """Where the answer is in the text that a model writes, special tokens included."""

    opening: str
    special: SpelledTokens

    def content(self, text: str) -> str:
        """The answer, without special tokens."""
        if self.opening in text:
            return self.special.left_out(text.rpartition(self.opening)[2])
        begin, *texts = self.special.split_at(text, self.special.last_in(self.opening))
        return "\n".join(filter(None, texts)) if texts else begin

    def answer_pieces(self, pieces: Iterator[str]) -> Iterator[str]:
        """Pieces of the answer, as soon as it has begun; a special token comes in one piece."""
        text, is_open = "", False
        for piece in pieces:
            if is_open:
                yield from filter(None, [self.special.left_out(piece)])
                continue
            text += piece
            is_open = self.opening in text
            if is_open:
                yield from filter(None, [self.content(text)])
        if not is_open:
            yield from filter(None, [self.content(text)])


def channels_of(chat: ChatTokens) -> Channels | None:
    """Where answers are; None where the template puts no special token before them."""
    exchange = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    prompt = chat.tried(exchange[:1], (), add_generation_prompt=True) or ""
    whole = chat.tried(exchange, ()) or ""
    opening = whole[len(prompt) :].partition(ANSWER)[0]
    has_opening = whole.startswith(prompt) and ANSWER in whole and chat.spelled.are_in(opening)
    return Channels(opening, chat.spelled) if has_opening else None
