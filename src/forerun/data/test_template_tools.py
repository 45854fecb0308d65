import json

import pytest

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.template_tools import TOOL
from forerun.data.token_data import IGNORED
from forerun.errors import BadData
from forerun.own.tokens import CHAT_TEMPLATE, PLAIN_TEMPLATE

BEGIN = "{% for m in messages %}<{{ m['role'] if m['role'] == 'assistant' else 'user' }}>\n{{ m['content'] or '' }}"
END = "<end>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
TOLD = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
QWEN25 = (
    '{% for c in m[\'tool_calls\'] or [] %}\n<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
DEEPSEEK = (
    "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] + ' ' + c['function']['arguments'] }}{% endfor %}"
)
CODER = (
    "{% for c in m['tool_calls'] or [] %}<function={{ c.function.name }}>"
    "{% for key, value in c.function.arguments | items %}<parameter={{ key }}>{{ value }}</parameter>{% endfor %}"
    "</function>{% endfor %}"
)
GEMMA4 = (
    "{% for c in m['tool_calls'] or [] %}call:{{ c.function.name }}{{ '{' }}{% if c.function.arguments is mapping %}"
    "{% for key, value in c.function.arguments | items %}{{ key }}:{{ value }}{% endfor %}"
    "{% else %}{{ c.function.arguments }}{% endif %}{{ '}' }}{% endfor %}"
)
PRINTED = "{% for c in m['tool_calls'] or [] %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}"
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome<end>"}}}
CHAT = [
    {"role": "user", "content": "Is it warm?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "It is thirty."},
    {"role": "assistant", "content": "Yes."},
]


def chat_of(template):
    tokenizer = small_tokenizer([json.dumps([TOOL, CHAT])] * 3, 400)
    tokenizer.chat_template = template
    return ChatTokens.around(tokenizer, "m")


@pytest.mark.parametrize(
    ("template", "reads", "form"),
    [
        (BEGIN + END, False, None),
        (TOLD + BEGIN + END, True, None),
        (TOLD + BEGIN + QWEN25 + END, True, "mapping"),
        (TOLD + BEGIN + DEEPSEEK + END, True, "text"),
        (BEGIN + CODER + END, False, "mapping"),
        (TOLD + BEGIN + GEMMA4 + END, True, "mapping"),
        (TOLD + BEGIN + PRINTED + END, True, "text"),
        (CHAT_TEMPLATE.replace("</s>", "<end>"), True, "mapping"),
        (PLAIN_TEMPLATE, True, "mapping"),
    ],
    ids=[
        "ignores both",
        "tools alone",
        "Qwen2.5",
        "DeepSeek",
        "Qwen3-Coder, no tools",
        "Gemma 4",
        "a mapping as Python prints it",
        "learned",
        "without a template",
    ],
)
def test_what_a_template_writes_is_told_by_trying(template, reads, form):
    chat = chat_of(template)
    assert (chat.reads_tools, chat.call_form) == (reads, form)


@pytest.mark.parametrize("calls", [QWEN25, DEEPSEEK, CODER])
def test_calls_carry_loss_and_their_results_and_the_tools_do_not(calls):
    chat = chat_of(TOLD + BEGIN + calls + END)
    texts = chat.conversation_rows(CHAT, tools=[TOOL])[0]
    sample = chat.conversation_sample([chat._plain(text) for text in texts])
    assert len(texts) == 4
    learned = chat.text([label for label in sample.target if label != IGNORED])
    shown = chat.text([token for token, label in zip(sample.ids, sample.target, strict=True) if label == IGNORED])
    assert "weather" in learned
    assert "Rome<end>" in learned  # a token of control in an argument is text
    assert "Yes." in learned
    assert "thirty" not in learned
    assert "probe_name" not in learned
    assert "thirty" in shown
    assert "probe_name" in shown
    assert [token for token in sample.ids if token in chat.end_ids] == [chat.end_ids[0]] * 4


def test_calls_that_a_template_leaves_out_are_an_error_with_a_remedy():
    with pytest.raises(BadData, match="needs a chat template that writes tool_calls; found one that leaves them out"):
        chat_of(BEGIN + END).conversation_rows(CHAT)


def test_a_template_that_writes_the_first_of_several_calls_is_refused():
    """As gpt-oss's does."""
    first = QWEN25.replace("m['tool_calls'] or []", "(m['tool_calls'] or [])[:1]")
    chat = chat_of(TOLD + BEGIN + first + END)
    assert len(chat.conversation_rows(CHAT, tools=[TOOL])) == 1
    both = [CHAT[0], {**CHAT[1], "tool_calls": [CALL, CALL]}]
    with pytest.raises(BadData, match="found 2 calls in one, of which that of this tokenizer leaves out one of 'weath"):
        chat.conversation_rows(both, tools=[TOOL])


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, PLAIN_TEMPLATE], ids=["learned", "without a template"])
def test_our_own_templates_put_each_tool_and_call_on_lines_of_its_own(template):
    """Jinja drops a line's end after a tag, and so does transformers' environment."""
    chat = chat_of(template)
    called = {**CHAT[1], "content": "Let me see.", "tool_calls": [CALL, CALL]}
    text = "".join(chat.conversation_rows([CHAT[0], called], tools=[TOOL, TOOL])[0])
    schema = json.dumps(TOOL)
    assert f"\n{schema}\n{schema}" in text
    function = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome'
    assert text.count(f"\n{function}") == 2
    assert "</tool_call>\n<tool_call>" in text
