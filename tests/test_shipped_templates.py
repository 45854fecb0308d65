"""The chat templates that TRL ships: their calls of tools are read back, and their chats of several answers are trained.

Skipped where TRL, of the extra `scripts`, is not installed.
"""

import re
from pathlib import Path

import pytest

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.template_tools import call_of
from forerun.data.token_data import IGNORED
from forerun.data.written_calls import split_written
from forerun.errors import BadData

trl = pytest.importorskip("trl")
FOLDER = Path(trl.__file__).parent / "chat_templates"
TEMPLATES = sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith("_training"))
WRITES_ANEW = ("gptoss", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6")
"""Those whose chats of plain answers are several rows."""
TEXTS = {"city": "Rome", "days": 3, "more": {"a": [1, True, None, "x"]}}
SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "description": "Where."}}}
TOOLS = [{"type": "function", "function": {"name": "get-weather.v2", "description": "Weather.", "parameters": SCHEMA}}]
QUESTION = [{"role": "user", "content": "Is it warm?"}]


def chat_of(name):
    text = (FOLDER / f"{name}.jinja").read_text()
    tokenizer = small_tokenizer(["Is it warm? yes no"] * 3, 400)
    tokenizer.bos_token = "<pad>"
    tokens = set(re.findall(r"<[|｜][^|｜<>]*[|｜]>|<\|?(?:turn|tool_call|tool_response)\|?>", text))
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(tokens - {"<tool_call>", "<tool_response>"})})
    tokenizer.chat_template = text
    return ChatTokens.around(tokenizer, name)


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_that_a_template_writes_are_read(name):
    chat = chat_of(name)
    if chat.call_form is None:
        pytest.skip("writes no calls")
    call = call_of(TEXTS)
    call["function"]["name"] = "get-weather.v2"
    rows = chat.conversation_rows([*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}], tools=TOOLS)
    answer = rows[0][1]
    left, calls = split_written(answer, chat.call_grammar, TOOLS)
    assert calls == [("get-weather.v2", TEXTS)]
    assert "Rome" not in left
    ids = chat._plain(answer)
    place = next(place for place, token in enumerate(ids) if token in chat.end_ids)
    assert split_written(chat.tokenizer.decode(ids[: place + 1]), chat.call_grammar, TOOLS)[1] == calls


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_of_several_answers_are_trained_whole(name):
    """Each answer carries loss once, with its end, behind what the model is asked with."""
    chat = chat_of(name)
    messages = [*QUESTION, {"role": "assistant", "content": "It is: yes."}]
    messages += [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "It is: no."}]
    rows = chat.conversation_rows(messages)
    learned = []
    for row in rows:
        sample = chat.conversation_sample([chat._plain(text) for text in row])
        learned += [label for label in sample.target if label != IGNORED]
    text = chat.text(learned)
    assert [text.count(answer) for answer in ("It is: yes.", "It is: no.", "warm")] == [1, 1, 0]
    assert sum(token in chat.end_ids for token in learned) >= 2
    assert (len(rows) > 1) == (name in WRITES_ANEW)
    way = chat.asks_before(messages)
    assert way is not None
    assert chat.tokenizer.decode(chat._plain("".join(rows[-1][:-1]))).endswith(
        chat.tokenizer.decode(chat._plain(chat._question(messages[:3], (), way)))[-20:]
    )


def test_what_no_template_of_these_can_do_is_said():
    with pytest.raises(BadData, match="needs a chat template that writes tool_calls"):
        chat_of("gemma").conversation_rows([*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call_of()]}])
