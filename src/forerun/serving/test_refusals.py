"""A request that the service cannot answer as asked gets 400 in OpenAI's form, and the field that is to blame."""

import pytest
from starlette.testclient import TestClient

from forerun.serving.app import TextServiceLimits, make_text_app
from forerun.serving.test_app import CHAT, FakeRows, writer

__all__ = ["writer"]
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "weather"}}
WHOLE_CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **TOOL}]}
WRONG_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": "Rome"}}]}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}


@pytest.fixture
def client(writer):
    with TestClient(make_text_app("tiny", writer=writer, hosts=["testserver"])) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "change", "field", "words"),
    [
        (CHAT_PATH, {"n": 2}, "n", "does not offer it. Leave it out"),
        (CHAT_PATH, {"top_k": 5}, "top_k", "does not offer it. Leave it out"),
        (CHAT_PATH, {"response_format": {"type": "json_object"}}, "response_format", "does not offer it"),
        (CHAT_PATH, {"stop": 5}, "stop", "valid string; or "),
        (CHAT_PATH, {"seed": 2**64}, "seed", "less than"),
        (CHAT_PATH, {"messages": [CALL]}, "messages.0.tool_calls.0.function", "required"),
        (CHAT_PATH, {"messages": [WHOLE_CALL]}, "messages", "writes tool_calls; found one that leaves them out"),
        (CHAT_PATH, {"messages": [{**WHOLE_CALL, "role": "user"}]}, "messages.0", "tool_calls are of the assistant"),
        (CHAT_PATH, {"messages": [{"role": "user"}]}, "messages.0", "found none"),
        (CHAT_PATH, {"messages": [WRONG_CALL]}, "messages.0.tool_calls.0.function.arguments", "JSON object"),
        (CHAT_PATH, {"tools": [TOOL]}, "tools", "the chat template of tiny writes none"),
        (CHAT_PATH, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        (CHAT_PATH, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content", "reads text only"),
        (TEXT_PATH, {"prompt": "one", "messages": None, "logprobs": 0}, "messages", "does not offer"),
        (TEXT_PATH, {"prompt": "one", "logprobs": 0}, "logprobs", "does not offer"),
    ],
)
def test_the_field_to_blame_is_named(client, path, change, field, words):
    response = client.post(path, json={**CHAT, **change} if path == CHAT_PATH else change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert words in error["message"]


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**64 - 1])
def test_every_seed_that_is_taken_works(client, seed):
    assert client.post(CHAT_PATH, json={**CHAT, "temperature": 1, "seed": seed}).status_code == 200


@pytest.mark.parametrize("sent", [{"data": {"a": "b"}}, {"json": [1]}, {}])
def test_what_is_no_json_object_is_told_what_to_send(client, sent):
    response = client.post(CHAT_PATH, **sent)
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


def test_a_wrong_path_or_method_or_model_has_its_own_status(client):
    assert client.get(CHAT_PATH).status_code == 405
    assert client.get("/v1/responses").json()["error"]["message"].endswith("/v1/models, /v1/models/{model_id}.")
    response = client.get("/v1/models/gpt")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_a_failure_of_ours_has_the_same_form():
    class Failing(FakeRows):
        def answer(self, rows):
            raise KeyError("secret")

    app = make_text_app("c", rows=Failing("labels"), hosts=["testserver"])
    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.post("/v1/classify", json={"input": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"headers": {"Authorization": "Bearer wrong"}}, 401, "invalid_api_key"),
        ({"headers": {"Authorization": "Bearer secret", "Host": "elsewhere"}}, 403, None),
        ({"json": {**CHAT, "user": "x" * 3000}}, 413, "request_too_large"),
    ],
)
def test_what_the_gate_refuses_has_openais_form_too(writer, change, status, code):
    limits = TextServiceLimits(body_bytes=2000)
    app = make_text_app("tiny", writer=writer, hosts=["testserver"], token="secret", limits=limits)
    with TestClient(app) as client:
        asked = {"headers": {"Authorization": "Bearer secret"}, "json": CHAT, **change}
        response = client.post(CHAT_PATH, **asked)
    assert response.status_code == status
    error = response.json()["error"]
    assert (set(error), error["code"], error["param"]) == ({"message", "type", "param", "code"}, code, None)


def test_who_asks_too_often_is_told_in_openais_form(writer):
    limits = TextServiceLimits(requests_per_second=0.1)
    with TestClient(make_text_app("tiny", writer=writer, hosts=["testserver"], limits=limits)) as client:
        answers = [client.get("/v1/models") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["type"] == "rate_limit_error"
    assert int(answers[1].headers["retry-after"]) > 0
