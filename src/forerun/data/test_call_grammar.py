"""The form of a call is told from the template, and calls in that form are read back as they were."""

import pytest

from forerun.data.call_grammar import HERMES, call_grammar
from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.template_tools import call_of
from forerun.data.test_template_tools import BEGIN, CODER, DEEPSEEK, END, GEMMA4, QWEN25
from forerun.data.written_calls import split_written

ONE = "{% for c in m['tool_calls'] or [] %}ONE{% endfor %}"
LISTED = (
    '{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{{ \'{\' }}"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"{{ \'}\' }}'
    "{{ ', ' if not loop.last }}{% endfor %}]{% endif %}"
)
BLOCKS = (
    "{% if m.tool_calls %}<calls>{% for c in m.tool_calls %}{{ '\n' if not loop.first }}<call>function<sep>"
    "{{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```</call>{% endfor %}</calls>{% endif %}"
)
FORMS = {
    "Qwen2.5": QWEN25,
    "Llama 3": ONE.replace("ONE", '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'),
    "Mistral 7B v0.3": LISTED,
    "Mistral Small 3.2": ONE.replace("ONE", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"),
    "DeepSeek": DEEPSEEK,
    "DeepSeek-V3": BLOCKS,
    "Qwen3-Coder": CODER,
    "Gemma 4": GEMMA4.replace("{{ key }}:{{ value }}", "{{ key }}:<q>{{ value }}<q>{{ ',' if not loop.last }}"),
    "Command R": ONE.replace(
        "ONE", 'Action: ```json\n[{"tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}]```'
    ),
    "Llama 4": ONE.replace(
        "ONE", "[{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %})]"
    ),
    "GLM 4.5": ONE.replace(
        "ONE", "\n<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}\n<arg_key>{{ k }}</arg_key>"
        "\n<arg_value>{{ v }}</arg_value>{% endfor %}\n</tool_call>"
    ),
}  # fmt: skip
TEXTS = {"city": 'Rome, the "eternal"\n{a: [1]}', "when": "3"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get-weather.v2", "parameters": {"properties": {"when": {"type": "string"}}}},
    }
]


def chat_of(calls):
    tokenizer = small_tokenizer(["a b c"] * 3, 400)
    tokenizer.chat_template = BEGIN + calls + END
    return ChatTokens.around(tokenizer, "m")


def written(chat, *calls, content=""):
    """What the template makes of an answer."""
    asked = [{"role": "user", "content": "?"}]
    prompt = chat._question(asked, (), "own")
    whole = chat._checked([*asked, {"role": "assistant", "content": content, "tool_calls": list(calls)}])
    return whole[len(prompt) :]


def called(arguments, identity="probecall"):
    call = call_of(arguments, identity)
    call["function"]["name"] = "get-weather.v2"
    return call


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_calls_come_back_as_they_were(form):
    chat = chat_of(form)
    both = [called(TEXTS), called({"city": "Bonn"}, "probecal2")]
    for calls in (both[:1], both):
        if form == DEEPSEEK and len(calls) == 2:  # two names and two texts follow each other without a mark
            continue
        left, got = split_written(written(chat, *calls), chat.call_grammar, TOOLS)
        expected = [("get-weather.v2", call["function"]["arguments"]) for call in calls]
        assert got == expected
        assert left.replace("<end>", "").strip() == ""


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_is_said_before_a_call_stays(form):
    chat = chat_of(form)
    text = written(chat, called(TEXTS), content="Let me see.")
    left, got = split_written(text, chat.call_grammar, TOOLS)
    if not chat.call_grammar.head:  # Llama 3 calls or speaks; a call that nothing announces begins an answer
        assert (left, got) == (text, [])
        return
    assert len(got) == 1
    assert left.replace("<end>", "").strip() == "Let me see."


def test_a_template_without_calls_is_read_as_hermes():
    chat = chat_of("")
    assert chat.call_grammar is HERMES
    assert call_grammar(chat.tried, None, ()) is None
