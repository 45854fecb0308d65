"""The service speaks OpenAI's dialect: whole and streamed answers, vectors, labels; refusals name what is wrong."""

import base64
import json
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from starlette.testclient import TestClient
from transformers import LlamaConfig, LlamaForCausalLM

from forerun.data.chat_tokens import small_tokenizer
from forerun.errors import NotSupported
from forerun.serving.app import TextServiceLimits, make_text_app
from forerun.serving.writing import Writer

TEXTS = ["one two three four five", "six seven eight nine ten"]
CHAT = {"messages": [{"role": "user", "content": "one two"}], "max_tokens": 6}


class FakeRows:
    """The label is the first letter, the vector the number of words."""

    def __init__(self, kind):
        self.kind, self.calls = kind, []

    def answer(self, rows):
        self.calls.append(len(rows))
        return [
            {"label": text[:1], "vector": [float(len(text.split())), 0.0], "tokens": 3, "truncated": len(text) > 4}
            for text, _ in rows
        ]


@pytest.fixture(scope="module")
def writer():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    return Writer(LlamaForCausalLM(config), small_tokenizer(TEXTS * 3, 300), "tiny")


@pytest.fixture
def client(writer):
    with TestClient(make_text_app("tiny", writer=writer, hosts=["testserver"])) as client:
        yield client


def events(response):
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_streams_as_it_comes_at_once(client):
    whole = client.post("/v1/chat/completions", json=CHAT).json()
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 6
    streamed = events(
        client.post("/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    )
    assert streamed[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in streamed if e["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert streamed[-2]["choices"][0]["finish_reason"] == "length"
    assert streamed[-1]["usage"] == whole["usage"]


def test_a_text_is_continued(client):
    body = {"prompt": ["six seven"], "max_tokens": 4, "temperature": 1.0, "seed": 5}
    first, second = (client.post("/v1/completions", json=body).json() for _ in range(2))
    assert first["object"] == "text_completion"
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    text = "".join(
        e["choices"][0]["text"] for e in events(client.post("/v1/completions", json={**body, "stream": True}))
    )
    assert text == first["choices"][0]["text"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 2}, "n: this service does not offer it"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(client, change, words):
    response = client.post("/v1/chat/completions", json={**CHAT, **change})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_an_error_names_the_field_as_it_was_sent_and_all_that_it_may_be(client):
    error = client.post("/v1/completions", json={"prompt": ["a", "b"]}).json()["error"]
    assert (error["param"], "string" in error["message"], "at most 1" in error["message"]) == ("prompt", True, True)
    sent = {"content": "{bad", "headers": {"content-type": "application/json"}}
    error = client.post("/v1/completions", **sent).json()["error"]
    assert (error["param"], error["message"][:28]) == (None, "body: JSON must be sent; fou")


def test_fields_that_ask_for_nothing_are_taken(client):
    more = {"n": 1, "frequency_penalty": 0, "user": "me", "logprobs": None, "response_format": {"type": "text"}}
    assert client.post("/v1/chat/completions", json={**CHAT, **more}).status_code == 200


def test_a_prompt_that_is_too_long_is_refused_before_the_stream(client):
    body = {"prompt": "six " * 100, "stream": True}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "64 tokens together" in response.json()["error"]["message"]


def test_rows_that_come_together_share_a_batch():
    rows = FakeRows("labels")
    with TestClient(make_text_app("c", rows=rows, hosts=["testserver"])) as client, ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: client.post("/v1/classify", json={"input": [f"{n} a", f"{n} b"]}).json(), range(8))
        )
    assert [[one["label"] for one in answer["data"]] for answer in answers] == [[str(n)] * 2 for n in range(8)]
    assert sum(rows.calls) == 16


@pytest.mark.parametrize("error", [NotSupported("needs a mask. Put one in."), KeyError("x")])
def test_one_bad_text_fails_nobody_elses(error):
    class Picky(FakeRows):
        def answer(self, rows):
            if any(text == "bad" for text, _ in rows):
                raise error
            return super().answer(rows)

    app = make_text_app("c", rows=Picky("labels"), hosts=["testserver"])
    with TestClient(app, raise_server_exceptions=False) as client, ThreadPoolExecutor(8) as pool:
        texts = ["bad" if n == 3 else f"{n}" for n in range(8)] * 2
        codes = list(pool.map(lambda text: client.post("/v1/classify", json={"input": text}).status_code, texts))
    assert codes == [(400 if isinstance(error, NotSupported) else 500) if text == "bad" else 200 for text in texts]


def test_hidden_words_are_filled_with_as_many_candidates_as_asked():
    class Filling(FakeRows):
        def answer(self, rows):
            words = [{"token": name, "id": place, "probability": 0.5} for place, name in enumerate("abc")]
            return [{"filled": text.replace("<mask>", "a"), "masks": [words]} for text, _ in rows]

    with TestClient(make_text_app("m", rows=Filling("masks"), hosts=["testserver"])) as client:
        answer = client.post("/v1/fill-mask", json={"input": "b <mask>", "top_k": 2}).json()["data"]
        assert [(one["filled"], [word["token"] for word in one["masks"][0]]) for one in answer] == [("b a", ["a", "b"])]
        assert client.post("/v1/fill-mask", json={"input": "b <mask>", "top_k": 0}).status_code == 400


def test_vectors_come_in_openais_form():
    with TestClient(make_text_app("e", rows=FakeRows("vectors"), hosts=["testserver"])) as client:
        answer = client.post("/v1/embeddings", json={"input": ["a b c", "a"], "model": "x"}).json()
        assert [row["embedding"][0] for row in answer["data"]] == [3.0, 1.0]
        assert answer["usage"]["total_tokens"] == 6
        assert [row["truncated"] for row in answer["data"]] == [True, False]
        packed = client.post("/v1/embeddings", json={"input": "a b", "encoding_format": "base64"}).json()["data"][0]
        assert struct.unpack("<2f", base64.b64decode(packed["embedding"])) == (2.0, 0.0)
        assert client.post("/v1/classify", json={"input": "a"}).status_code == 404


def test_foreign_names_and_origins_are_refused(client):
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
    assert client.post("/v1/chat/completions", json=CHAT, headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.get("/v1/models", headers={"Origin": "http://localhost:3000", "Host": "[::1]:80"}).status_code == 200


def test_a_token_is_asked_for(writer):
    with TestClient(make_text_app("t", writer=writer, token="secret")) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_too_many_at_once_are_sent_away(writer):
    limits = TextServiceLimits(waiting=0)
    body = {**CHAT, "max_tokens": 40}
    app = make_text_app("t", writer=writer, hosts=["testserver"], limits=limits)
    with TestClient(app) as client, ThreadPoolExecutor(6) as pool:
        codes = list(pool.map(lambda _: client.post("/v1/chat/completions", json=body).status_code, range(6)))
    assert set(codes) <= {200, 429}
    assert codes.count(200) >= 1
    assert codes.count(429) >= 1


PAIR = {"text": "b", "pair": "c"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "found a list of 0"), ("  ", "found an empty text."), (["a", ""], "an empty text at place 1"),
        (["a", None], "null at place 1"), (3, "found a number"), ([["a", "b"]], "a list at place 0"),
        ({"text": "a"}, "an object with text"), ({**PAIR, "pair": ""}, "an empty text"), ([PAIR, "d"], None),
        ("half \ud800", "half a surrogate pair"), ("x" * 400_001, "400,001 characters"), (["a"] * 513, "a list of 513"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_with_its_place(value, words):
    with TestClient(make_text_app("c", rows=FakeRows("labels"), hosts=["testserver"])) as client:
        kind = {"content-type": "application/json"}
        answer = client.post("/v1/classify", content=json.dumps({"input": value}), headers=kind)
        assert answer.status_code == (200 if words is None else 400)
        if words is not None:
            error = answer.json()["error"]
            assert error["param"] == "input"
            assert words in error["message"]


def test_openais_client_can_ask_for_the_model(client):
    assert client.get("/v1/models/tiny").json()["id"] == client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert "The model tiny is served here" in client.get("/v1/models/gpt").json()["error"]["message"]
