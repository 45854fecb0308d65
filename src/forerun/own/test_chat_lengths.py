import pytest

from forerun.data.own.row_kinds import ChatRow, LabelledRow, PreferenceRow, Turn
from forerun.own.chat_lengths import SYSTEM_TOKENS, TURN_TOKENS, chat_lengths
from forerun.own.language import ChatEncoder
from forerun.own.tokens import learned_tokenizer
from forerun.settings.schema import ModelSettings, Settings

QUESTION, ANSWER = Turn("user", "What is 25 plus 5?"), Turn("assistant", "25 plus 5 is 30.")
TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 400, "n_positions": 1024}


def settings(workload="causal-lm", name="tiny-gpt2", config=TINY):
    return Settings(name="x", workload=workload, model=ModelSettings(name=name, config=config))


def test_the_template_is_counted_as_training_counts_it():
    chats = [ChatRow((QUESTION, ANSWER)), ChatRow((QUESTION, ANSWER, QUESTION, ANSWER))]
    lengths, are_counted = chat_lengths(settings(), chats)
    texts = [turn.content for chat in chats for turn in chat.messages]
    encoder = ChatEncoder(learned_tokenizer(settings(), texts), settings())
    assert (lengths, are_counted) == ([len(encoder.sample(chat).ids) for chat in chats], True)
    plain, _ = chat_lengths(settings(), [ChatRow(chat.messages, is_plain=True) for chat in chats])
    assert all(one > other for one, other in zip(lengths, plain, strict=True))


def test_of_a_preference_the_longer_side_counts():
    rows = [PreferenceRow((QUESTION,), (ANSWER,), (Turn("assistant", "No " * 40),))]
    (length,), _ = chat_lengths(settings("preference"), rows)
    assert length > chat_lengths(settings(), [ChatRow((QUESTION, ANSWER))])[0][0] + 20


def test_without_the_tokenizer_a_template_is_estimated(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    contents = -(-(len(QUESTION.content) + len(ANSWER.content)) // 4)
    chat, system = ChatRow((QUESTION, ANSWER)), Turn("system", "")
    own = settings(name="/no/such/model", config={})
    assert chat_lengths(own, [chat]) == ([contents + 2 * TURN_TOKENS + SYSTEM_TOKENS], False)
    assert chat_lengths(own, [ChatRow((system, *chat.messages))]) == ([contents + 3 * TURN_TOKENS], False)


@pytest.mark.parametrize("workload", ["sequence-classification", "causal-lm"])
def test_rows_that_are_no_chats_are_not_counted(workload):
    assert chat_lengths(settings(workload), [LabelledRow("a", None, ("x",))]) == ([], False)
