import asyncio
import json
import re

import pytest
import torch
from starlette.testclient import TestClient
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.data.chat_tokens import ChatTokens, small_tokenizer
from forerun.own.tokens import CHAT_TEMPLATE
from forerun.serving.app import make_text_app
from forerun.serving.test_app import events
from forerun.serving.tool_answers import ToolAnswers
from forerun.serving.writing import Writer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CHAT = {"messages": [{"role": "user", "content": "Is it warm in Rome?"}], "max_tokens": 40}
ANSWERED = [
    {"role": "assistant", "content": None,
     "tool_calls": [{"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rom"}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "It is."},
]  # fmt: skip


class Caller(Writer):
    """Writes a sentence and a call, whatever it is asked; the prompt is what the model would read."""

    def write(self, ids, sampling):
        writing = super().write(ids, sampling)
        writing.pieces = iter(["Let me", " see <", "3 <tool", CALL.removeprefix("<tool")])
        return writing


@pytest.fixture(scope="module")
def client():
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=1024,
    )  # fmt: skip
    tokenizer = small_tokenizer(["one two three four five"] * 3, 320)
    tokenizer.chat_template = CHAT_TEMPLATE.replace("</s>", "<end>").replace("<system>", "<user>")
    writer = Caller(LlamaForCausalLM(config), tokenizer, "tiny")
    torch.manual_seed(0)
    with TestClient(make_text_app("tiny", writer=writer, hosts=["testserver"])) as client:
        yield client


def test_calls_are_taken_out_of_a_text_and_others_stay():
    content, calls = ToolAnswers().split(f"So. {CALL}\n{CALL}")
    assert content == "So."
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Rom"}] * 2
    assert len({call["id"] for call in calls}) == 2
    for text in ("<tool_call>now()</tool_call>", "<tool_call>{", "<tool_call>[]</tool_call>", "no call <"):
        assert ToolAnswers().split(text) == (text, [])


@pytest.mark.parametrize("size", [1, 4, 100])
def test_nothing_of_a_call_streams_and_all_else_does(size):
    async def run(text):
        async def pieces():
            for at in range(0, len(text), size):
                yield text[at : at + size]

        rest: list[str] = []
        return "".join([piece async for piece in ToolAnswers().before_calls(pieces(), rest)]), "".join(rest)

    assert asyncio.run(run(f"a < b <tools> {CALL} and")) == ("a < b <tools> ", f"{CALL} and")
    assert asyncio.run(run("a <tool")) == ("a ", "<tool")


def test_tools_are_in_the_prompt_and_calls_come_back_as_such(client):
    told = client.post("/v1/chat/completions", json={**CHAT, "tools": TOOLS}).json()
    choice = told["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Let me see <3")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rom"}'}
    untold = client.post("/v1/chat/completions", json=CHAT).json()
    assert untold["choices"][0]["message"]["content"].endswith("</tool_call>")
    assert told["usage"]["prompt_tokens"] > untold["usage"]["prompt_tokens"] + 20
    none = client.post("/v1/chat/completions", json={**CHAT, "tools": TOOLS, "tool_choice": "none"}).json()
    assert none["usage"]["prompt_tokens"] == untold["usage"]["prompt_tokens"]


def test_a_stream_gives_the_calls_at_its_end(client):
    streamed = events(client.post("/v1/chat/completions", json={**CHAT, "tools": TOOLS, "stream": True}))
    deltas = [event["choices"][0]["delta"] for event in streamed]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see <3 "
    (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert (calls[0]["index"], calls[0]["function"]["name"]) == (0, "weather")
    assert streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_and_results_are_sent_back(client):
    body = {"messages": [*CHAT["messages"], *ANSWERED], "max_tokens": 4}
    whole = client.post("/v1/chat/completions", json=body).json()
    asked = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 4}).json()
    assert whole["usage"]["prompt_tokens"] > asked["usage"]["prompt_tokens"] + 20


SPECIAL = ["<mark>", "<call_end>"]
MARKED = "<mark>[{{ c.function.name }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}"
MARKED += "{{ ', ' if not loop.last }}{% endfor %})]"
BARE = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<{{ 'assistant' if m.role == "
)
TEMPLATE += "'assistant' else 'user' }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}CALL{% endfor %}"
TEMPLATE += (
    "{{ '<call_end>' if m.tool_calls else '<end>' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def answers_of(call):
    """How answers are read, with a template that writes calls so, and its tokenizer."""
    tokenizer = small_tokenizer(["one two three"] * 3, 320)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, "<user>", "<assistant>"]})
    tokenizer.chat_template = TEMPLATE.replace("CALL", call)
    chat = ChatTokens.around(tokenizer, "m")
    return ToolAnswers(chat.call_grammar, chat.spelled), chat


@pytest.mark.parametrize(
    ("call", "text", "content"),
    [
        (MARKED, 'See [1].<mark>[weather(city="Rom")]<call_end>', "See [1]."),
        (BARE, '{"name": "weather", "parameters": {"city": "Rom"}}<call_end>', ""),
        (BARE, '<mark>{"name": "weather", "parameters": {"city": "Rom"}}', ""),
    ],
    ids=["special token", "bare", "bare after a special token"],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_are_read_in_the_form_of_the_template_and_special_tokens_do_not_show(call, text, content, size):
    answers, chat = answers_of(call)
    assert "<call_end>" in chat.tokenizer.convert_ids_to_tokens(list(chat.end_ids))
    message, has_calls = answers.message(text, TOOLS)
    assert has_calls
    assert message["content"] == (content or None)
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rom"}'}

    async def run():
        async def pieces():  # a special token comes whole
            for part in re.split("(<[a-z_]+>)", text):
                for at in range(0, len(part), len(part) if part.startswith("<") else size):
                    yield part[at : at + (len(part) if part.startswith("<") else size)]

        rest: list[str] = []
        shown = "".join([piece async for piece in answers.before_calls(pieces(), rest)])
        return shown, answers.split("".join(rest), TOOLS)

    shown, (left, calls) = asyncio.run(run())
    assert (shown + left, len(calls)) == (content, 1)


def test_text_that_is_no_call_streams_in_every_form():
    for call in (MARKED, BARE):
        answers, _ = answers_of(call)
        assert answers.message("It is {warm} [2].<end>", TOOLS)[0]["content"] == "It is {warm} [2]."
        assert answers.message('{"not": "a call"}', TOOLS)[0]["content"] == '{"not": "a call"}'


def test_special_tokens_of_a_call_reach_the_reader_and_end_it():
    """A real model is made to write a call whose marks are special tokens; generation stops at its end."""
    _, chat = answers_of(MARKED)
    text = 'Wait<mark>[weather(city="Rom")]<call_end>'
    answer_ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]

    class Told(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            self.step = getattr(self, "step", -1) + 1
            token = answer_ids[self.step] if self.step < len(answer_ids) else 0
            output.logits[:, -1] = torch.nn.functional.one_hot(torch.tensor([token]), output.logits.shape[-1]) * 1e4
            return output

    config = LlamaConfig(
        vocab_size=len(chat.tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=64, max_position_embeddings=1024,
    )  # fmt: skip
    writer = Writer(Told(config), chat.tokenizer, "told")
    with TestClient(make_text_app("told", writer=writer, hosts=["testserver"])) as told:
        body = {**CHAT, "tools": TOOLS, "max_tokens": 100}
        answer = told.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "Wait"
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] == len(answer_ids)
