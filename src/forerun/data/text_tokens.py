"""Text to token ids for classification, one text or two: byte pairs learned here, or a Hugging Face tokeniser."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from forerun.data.byte_pairs import learn_byte_pairs

PAD, START, END = "<pad>", "<start>", "<end>"
PAD_ID, START_ID, END_ID = range(3)
PIECES = r" ?[\p{L}']+| ?\p{N}| ?[^\s\p{L}\p{N}']+|\s+"
"""Words with the blank before them, digits, runs of symbols."""
MINIMUM_COUNT = 3
TEXTS_AT_ONCE = 4096
Texts = Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one sample, and which of its texts each belongs to (all 0 without a second one)."""

    ids: Sequence[int]
    types: Sequence[int]


class TextTokens(Protocol):
    """Turns texts into ids."""

    pad_id: int

    def encode(self, texts: Texts, sequence_length: int) -> list[Encoded]:
        """Ids of each sample with its special tokens, cut at `sequence_length`; of two texts the longer is cut."""
        ...

    def save(self, folder: Path) -> None:
        """Write it into `folder`."""
        ...


class LearnedTokens:
    """Byte pairs of the training texts, lower case."""

    pad_id = PAD_ID

    def __init__(self, texts: Iterable[str], vocabulary_size: int):
        self._tokenizer = learn_byte_pairs(
            (text.lower() for text in texts), vocabulary_size, [PAD, START, END], pieces=PIECES,
            minimum_count=MINIMUM_COUNT,
        )  # fmt: skip

    def encode(self, texts: Texts, sequence_length: int) -> list[Encoded]:
        """`<start>` text `<end>`, and after it the second text `<end>`."""
        firsts = self._tokenizer.encode_batch([text.lower() for text, _ in texts])
        seconds = self._tokenizer.encode_batch([(pair or "").lower() for _, pair in texts])
        samples = []
        for first, second, (_, pair) in zip(firsts, seconds, texts, strict=True):
            one, other = first.ids, second.ids if pair is not None else []
            over = len(one) + len(other) + (3 if pair is not None else 2) - sequence_length
            while over > 0 and (one or other):  # transformers cuts from the longer too (LONGEST_FIRST)
                longer = one if len(one) >= len(other) else other
                cut = max(1, min(over, abs(len(one) - len(other))))
                del longer[-cut:]
                over -= cut
            ids = [START_ID, *one, END_ID]
            types = [0] * len(ids)
            if pair is not None:
                types += [1] * (len(other) + 1)
                ids += [*other, END_ID]
            samples.append(Encoded(ids[:sequence_length], types[:sequence_length]))
        return samples

    def save(self, folder: Path) -> None:
        """Content of the file `tokenizer.json`."""
        (folder / "tokenizer.json").write_text(self._tokenizer.to_str(), encoding="utf-8")


class BorrowedTokens:
    """A Hugging Face tokeniser."""

    def __init__(self, tokeniser: Any):
        self._tokeniser = tokeniser
        self.pad_id = tokeniser.pad_token_id

    def encode(self, texts: Texts, sequence_length: int) -> list[Encoded]:
        """Token ids and types of each text, with the model's own special tokens."""
        samples = []
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            some = texts[first : first + TEXTS_AT_ONCE]
            pairs = None if some[0][1] is None else [pair for _, pair in some]
            encoded = self._tokeniser(
                [text for text, _ in some], pairs, truncation=True, max_length=sequence_length, verbose=False,
                return_token_type_ids=True,
            )  # fmt: skip
            samples += [Encoded(i, t) for i, t in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)]
        return samples

    def save(self, folder: Path) -> None:
        """Write the files that transformers reads."""
        self._tokeniser.save_pretrained(folder)
