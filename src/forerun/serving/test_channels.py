"""Of a model that writes in channels the answer is shown, and not what it thinks before."""

import pytest

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.serving.channels import channels_of
from forerun.serving.tool_answers import ToolAnswers

TOKENS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<user>"]
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role != 'assistant' %}<|message|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %} to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
THOUGHT = "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant"
CALL = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>'


def chat_of(template=HARMONY):
    tokenizer = small_tokenizer(["They ask. Yes."] * 3, 400)
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    tokenizer.chat_template = template
    return ChatTokens.around(tokenizer, "m")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<|channel|>final<|message|>Yes.<|return|>", "Yes."),
        (f"{THOUGHT}<|channel|>final<|message|>Yes, yes.<|return|>", "Yes, yes."),
        ("<|channel|>analysis<|message|>They as", "They as"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_the_answer_is_what_follows_its_opening(text, content):
    channels = channels_of(chat_of())
    assert channels is not None
    assert channels.opening == "<|channel|>final<|message|>"
    assert channels.content(text) == content
    pieces = [piece for part in text.split("|>") for piece in (f"{part}|>",)]
    pieces[-1] = pieces[-1].removesuffix("|>")
    assert "".join(channels.answer_pieces(iter(pieces))) == content


def test_pieces_come_as_soon_as_the_answer_has_begun():
    channels = channels_of(chat_of())
    assert channels is not None
    read: list[str] = []

    def pieces():
        for piece in ("<|channel|>", "final", "<|message|>", "Yes", ", yes.", "<|return|>"):
            read.append(piece)
            yield piece

    shown = channels.answer_pieces(pieces())
    assert (next(shown), read[-1]) == ("Yes", "Yes")
    assert list(shown) == [", yes."]


def test_a_call_is_read_out_of_its_channel_and_what_was_thought_is_its_text():
    chat = chat_of()
    assert set(chat.tokenizer.convert_ids_to_tokens(list(chat.end_ids))) >= {"<|return|>", "<|call|>"}
    answers = ToolAnswers(chat.call_grammar, chat.spelled, channels_of(chat))
    own = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + CALL.partition("<|message|>")[2]
    content, calls = answers.split(own, [{"function": {"name": "weather"}}])  # as gpt-oss writes without thinking
    assert (content, calls[0]["function"]["name"]) == ("", "weather")
    for text in (CALL, CALL.replace("commentary json", "commentary <|constrain|>json")):
        content, calls = answers.split(THOUGHT + text, [{"function": {"name": "weather"}}])
        assert (content, [call["function"]["arguments"] for call in calls]) == ("They ask.", ['{"city": "Rome"}'])


def test_a_template_without_special_tokens_before_answers_has_no_channels():
    assert channels_of(chat_of(HARMONY.replace("<|channel|>final<|message|>", "<think></think>"))) is None
