"""An answer and a call of a tool end where the chat template says, or where the next message begins."""

import pytest

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.data.template_ends import first_special
from forerun.data.token_data import IGNORED

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
CHAT = [
    {"role": "user", "content": "Is it warm?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "It is thirty.", "name": "weather"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Thanks."},
    {"role": "assistant", "content": "Bye."},
]
WRITTEN = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
ROLE = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}" + WRITTEN
ASK = "{% if add_generation_prompt %}<assistant>{% endif %}"
HARMONY = ROLE + "{{ '<call_end>' if m.tool_calls else '<end>' }}{% endfor %}" + ASK
GEMMA4 = ROLE + "{{ '<call_end><tool>' if m.tool_calls else '' if m.role == 'tool' else '<end>' }}{% endfor %}" + ASK
GEMMA4 = GEMMA4.replace("<{{ m.role }}>", "{{ '' if m.role == 'tool' else '<' + m.role + '>' }}")
GLM = ROLE + "{% endfor %}" + ASK
CHATML = ROLE + "<end>\n{% endfor %}" + ASK


def chat_of(template):
    tokenizer = small_tokenizer(["Is it warm? Yes. thirty"] * 3, 400)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>", "<assistant>", "<tool>", "<call_end>"]})
    tokenizer.chat_template = template
    return ChatTokens.around(tokenizer, "m")


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (CHATML, {"<end>"}),
        (HARMONY, {"<end>", "<call_end>"}),
        (GEMMA4, {"<end>", "<tool>"}),
        (GLM, {"<user>", "<tool>", "<end>"}),
    ],
    ids=["ChatML", "gpt-oss", "Gemma 4", "GLM 4.5"],
)
def test_generation_stops_where_answers_and_calls_end_and_both_ends_are_learned(template, ends):
    chat = chat_of(template)
    assert set(chat.tokenizer.convert_ids_to_tokens(list(chat.end_ids))) == ends
    (row,) = chat.conversation_rows(CHAT, tools=())
    sample = chat.conversation_sample([chat._plain(text) for text in row])
    learned = [label for label in sample.target if label != IGNORED]
    assert sum(label in chat.end_ids for label in learned) == 3
    assert learned[-1] in chat.end_ids
    whole = chat.tried(CHAT, ()) or ""
    assert "".join(row).startswith(whole.rstrip())


def test_a_text_begins_with_a_special_token_or_not():
    tokenizer = chat_of(CHATML).tokenizer
    assert [first_special(text, tokenizer) for text in ("<user>a", "a<user>", "")] == ["<user>", "", ""]
