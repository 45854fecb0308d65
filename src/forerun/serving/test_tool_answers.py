import asyncio
import json

import pytest
import torch
from starlette.testclient import TestClient
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.data.chat_tokens import small_tokenizer
from forerun.own.tokens import CHAT_TEMPLATE
from forerun.serving.app import make_text_app
from forerun.serving.test_app import events
from forerun.serving.tool_answers import before_calls, split_calls
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
    content, calls = split_calls(f"So. {CALL}\n{CALL}")
    assert content == "So."
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"city": "Rom"}] * 2
    assert len({call["id"] for call in calls}) == 2
    for text in ("<tool_call>now()</tool_call>", "<tool_call>{", "no call <"):
        assert split_calls(text) == (text, [])


@pytest.mark.parametrize("size", [1, 4, 100])
def test_nothing_of_a_call_streams_and_all_else_does(size):
    async def run(text):
        async def pieces():
            for at in range(0, len(text), size):
                yield text[at : at + size]

        rest: list[str] = []
        return "".join([piece async for piece in before_calls(pieces(), rest)]), "".join(rest)

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
