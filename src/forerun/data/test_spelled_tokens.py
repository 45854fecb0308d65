import numpy as np
import pytest

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.spelled_tokens import FIRST_LETTER, SpelledTokens

TEXTS = ["What is 2 + 2?", "Write a function.", "<user> is a tag", "four"] * 30


@pytest.fixture(scope="module")
def chat():
    return ChatTokens.around(small_tokenizer(TEXTS, 400), "small")


@pytest.mark.parametrize("token", ["<end>", "<user>", "<assistant>", "<pad>"])
def test_a_message_that_says_a_token_of_control_gives_no_more_turns_than_another(chat, token):
    special = set(chat.tokenizer.all_special_ids)
    plain = [each for each in chat.chat_prompt([{"role": "user", "content": "What is it?"}]) if each in special]
    said = chat.chat_prompt([{"role": "user", "content": f"What{token}\n is it?"}])
    assert [each for each in said if each in special] == plain
    assert f"What{token}\n is it?" in chat.text(said)


def test_rows_for_training_read_them_as_text_too(chat):
    messages = [{"role": "user", "content": "a<end>"}, {"role": "assistant", "content": "b<end>c"}]
    sample = chat.conversation(messages)
    assert list(sample.ids).count(chat.end_ids[0]) == 2  # one after each message
    assert chat.text([each for each in sample.target if each >= 0]) == "b<end>c"


def test_texts_without_such_tokens_are_those_of_the_tokenizer(chat):
    def encode(texts):
        return [chat.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

    texts = [*TEXTS[:4:3], "<user>\nfour<end>\n", ""]
    spelled = chat.spelled.around(encode)(texts)
    for ids, text in zip(spelled, texts, strict=True):
        np.testing.assert_array_equal(ids, encode([text])[0])


def test_the_tokenizer_is_left_as_it_was(chat):
    before = chat.tokenizer("<end>")["input_ids"]
    hidden = SpelledTokens(chat.tokenizer).hidden("x<end>")
    assert len(hidden) == 2
    assert ord(hidden[1]) >= FIRST_LETTER
    assert chat.tokenizer("<end>")["input_ids"] == before == [chat.end_ids[0]]
