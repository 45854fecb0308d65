"""Pieces come as soon as their characters are whole, and together they are the text that is decoded at once."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from forerun.data.chat_tokens import small_tokenizer
from forerun.serving.pieces import PieceStreamer

TEXTS = [
    "こんにちは、せかい。さようなら", "สวัสดีชาวโลก", "🎉👍🏽👩‍👩‍👧 é", "one  two\n\n    three\tfour", "zwölf", "Donaudampfschiff",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer(["one two three", "drei vier"] * 3, 300)


def pieces_of(tokenizer, ids, prompt=(1, 2)):
    streamer = PieceStreamer(tokenizer, skip_prompt=True)
    streamer.put(torch.tensor([prompt]))
    for token in ids:
        streamer.put(torch.tensor([token]))
    streamer.end()
    return list(streamer)


@pytest.mark.parametrize("text", TEXTS)
def test_each_character_comes_when_it_is_whole(tokenizer, text):
    pieces = pieces_of(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert max(map(len, pieces)) < 4


def test_broken_characters_read_as_in_the_whole_text(tokenizer):
    draw = random.Random(1)
    for _ in range(50):
        ids = [draw.randrange(len(tokenizer)) for _ in range(30)]
        assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_line_keeps_its_indentation_where_a_first_space_is_dropped():
    vocabulary = {"<unk>": 0, "\u2581if": 1, "\n": 2, "\u2581": 3, "\u2581go": 4}
    bare = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    bare.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )  # as LLaMA 2's
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="<unk>")
    assert "".join(pieces_of(tokenizer, [1, 2, 3, 4])) == "if\n  go" == tokenizer.decode([1, 2, 3, 4])
