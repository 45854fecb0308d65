import json
from dataclasses import replace

import pytest

from forerun.data.own.inspection_record import ChatCount
from forerun.data.own.row_kinds import ChatRow, LabelledRow, PreferenceRow, Turn
from forerun.own.chat_encoder import ChatEncoder
from forerun.own.chat_lengths import SYSTEM_TOKENS, TURN_TOKENS, chat_lengths
from forerun.own.tokens import learned_tokenizer
from forerun.settings.schema import ModelSettings, Settings

QUESTION, ANSWER = Turn("user", "What is 25 plus 5?"), Turn("assistant", "25 plus 5 is 30.")
TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 400, "n_positions": 1024}


def settings(workload="causal-lm", name="tiny-gpt2", config=TINY):
    return Settings(name="x", workload=workload, model=ModelSettings(name=name, config=config))


def test_the_template_is_counted_as_training_counts_it():
    chats = [ChatRow((QUESTION, ANSWER)), ChatRow((QUESTION, ANSWER, QUESTION, ANSWER))]
    count = chat_lengths(settings(), chats)
    texts = [turn.content for chat in chats for turn in chat.messages]
    encoder = ChatEncoder(learned_tokenizer(settings(), texts), settings())
    assert (count.lengths, count.are_counted) == ([len(encoder.sample(chat).ids) for chat in chats], True)
    plain = chat_lengths(settings(), [ChatRow(chat.messages, is_plain=True) for chat in chats]).lengths
    assert all(one > other for one, other in zip(count.lengths, plain, strict=True))


def test_chats_are_counted_whole_whatever_the_model_has_positions_for():
    chats = [ChatRow((QUESTION, ANSWER) * 8)]
    few = chat_lengths(settings(config={**TINY, "n_positions": 64}), chats)
    assert few == chat_lengths(settings(), chats)
    assert (few.are_counted, few.lengths[0] > 64) == (True, True)


def test_of_a_preference_the_longer_side_counts():
    rows = [PreferenceRow((QUESTION,), (ANSWER,), (Turn("assistant", "No " * 40),))]
    (length,) = chat_lengths(settings("preference"), rows).lengths
    assert length > chat_lengths(settings(), [ChatRow((QUESTION, ANSWER))]).lengths[0] + 20


def test_without_the_tokenizer_a_template_is_estimated(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    contents = -(-(len(QUESTION.content) + len(ANSWER.content)) // 4)
    chat, system = ChatRow((QUESTION, ANSWER)), Turn("system", "")
    own = settings(name="/no/such/model", config={})
    assert chat_lengths(own, [chat]) == ChatCount(lengths=[contents + 2 * TURN_TOKENS + SYSTEM_TOKENS])
    assert chat_lengths(own, [ChatRow((system, *chat.messages))]).lengths == [contents + 3 * TURN_TOKENS]


@pytest.mark.parametrize("workload", ["sequence-classification", "causal-lm"])
def test_rows_that_are_no_chats_are_not_counted(workload):
    assert not chat_lengths(settings(workload), [LabelledRow("a", None, ("x",))]).lengths


def test_tools_are_among_the_tokens_and_calls_that_a_template_leaves_out_are_counted_as_text():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 25, "b": 5}}}
    chat = ChatRow((QUESTION, Turn("assistant", "", json.dumps({"tool_calls": [call]})), Turn("tool", "30"), ANSWER))
    tools = json.dumps([{"type": "function", "function": {"name": "add", "description": "Adds two numbers."}}])
    with_tools = chat_lengths(settings(), [replace(chat, tools=tools)])
    assert (with_tools.tools, with_tools.calls) == (1, 1)
    assert with_tools.are_tools_read
    assert with_tools.are_calls_read
    assert with_tools.lengths[0] > chat_lengths(settings(), [chat]).lengths[0] + 10
    rewriting = chat_lengths(settings("seq2seq-lm"), [chat])
    assert (rewriting.calls, rewriting.are_calls_read, rewriting.lengths) == (1, False, [])


def test_a_template_without_tools_is_named_and_calls_are_as_long_as_their_repair(monkeypatch):
    def plain_of(settings, texts):
        tokenizer = learned_tokenizer(settings, texts)
        tokenizer.chat_template = (
            "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}</s>\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>\n{% endif %}"
        )
        return tokenizer, ()

    monkeypatch.setattr("forerun.own.chat_lengths.tokenizer_of", plain_of)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 25}}}
    written = Turn("assistant", '<tool_call>\n{"name": "add", "arguments": {"a": 25}}\n</tool_call>')
    called = Turn("assistant", "", json.dumps({"tool_calls": [call]}))
    count = chat_lengths(settings(), [ChatRow((QUESTION, called), tools="[]"), ChatRow((QUESTION, written))])
    assert (count.are_tools_read, count.are_calls_read, count.calls) == (False, False, 1)
    assert count.lengths[0] == count.lengths[1]
