"""The OpenAI routes as the `openai` package speaks them, against a running server."""

import json
import re
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import BINARY, ROOT

openai = pytest.importorskip("openai", reason="the openai package is not installed")

MODEL = "mini-v41"
# A tool of the kind that the mini model was trained on (tools/train/task_tools.py).
TOOL = {"type": "function", "function": {
    "name": "check_server", "description": "Use this to check the server.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "id": {"type": "integer"}},
                   "required": ["city", "id"]}}}
SYSTEM = {"role": "system", "content": "You are a helpful assistant with tools."}
QUESTION = {"role": "user", "content": "Check the server. city: Amsterdam, id: 7746."}
CALL = {"city": "Amsterdam", "id": 7746}
HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def chat(client, messages=HELLO, **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 120, **more})


def test_models(client, server):
    models = client.models.list().data
    assert [model.id for model in models] == [MODEL] and models[0].max_model_len > 1000
    assert client.models.retrieve(MODEL).id == MODEL
    assert "version" in json.loads(server.get("/version"))
    info = json.loads(server.get("/server_info"))
    assert re.fullmatch("[0-9a-f]{16,}", info["build"]) and re.fullmatch("[0-9a-f]{8}", info["boot_id"])
    assert info["settings"]["backend"] == "cpu"
    assert not {"model", "host", "port", "api_key", "disk_kv"} & set(info["settings"])
    assert json.loads(server.get("/health"))["status"] == "ok"


def test_chat_with_and_without_thinking(client):
    thinking = chat(client)
    message = thinking.choices[0].message
    assert message.role == "assistant" and message.content and thinking.choices[0].finish_reason == "stop"
    assert message.reasoning_content and message.reasoning == message.reasoning_content
    assert thinking.usage.completion_tokens_details.reasoning_tokens > 0
    for switch in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
                   {"extra_body": {"thinking": {"type": "disabled"}}}):
        plain = chat(client, **switch)
        assert plain.choices[0].message.content
        assert not hasattr(plain.choices[0].message, "reasoning_content")
        assert plain.usage.completion_tokens_details.reasoning_tokens == 0


def test_stream_with_usage(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-2].choices[0].finish_reason == "stop"
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == whole.choices[0].message.reasoning
    assert chunks[-1].usage.model_extra["speculation"]["steps"] > 0


def test_a_repeated_prompt_reports_cached_tokens(client):
    """Complaint 29."""
    messages = [{"role": "user", "content": "Remember this list. " + "item, " * 400}]
    first, second = (chat(client, messages, max_tokens=1).usage for _ in range(2))
    assert first.prompt_tokens == second.prompt_tokens > 256
    assert second.prompt_tokens_details.cached_tokens >= 128


def streamed_calls(chunks):
    calls, content = {}, ""
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls), "indices count up"
                calls[call.index] = [call.id, call.function.name, ""]
            calls[call.index][2] += call.function.arguments or ""
    return calls, content


@pytest.mark.parametrize("effort", ["none", "low", "max"])
def test_tools_round_trip(client, effort):
    whole = chat(client, [SYSTEM, QUESTION], tools=[TOOL], reasoning_effort=effort)
    choice = whole.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "check_server" and json.loads(call.function.arguments) == CALL

    chunks = list(chat(client, [SYSTEM, QUESTION], tools=[TOOL], reasoning_effort=effort, stream=True))
    calls, content = streamed_calls(chunks)
    assert "DSML" not in content  # complaint 34
    assert [(name, json.loads(arguments)) for _, name, arguments in calls.values()] == [("check_server", CALL)]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"

    # The answer goes back as the client has it, without the reasoning (complaint 44).
    history = [SYSTEM, QUESTION, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "all good"}]
    assert chat(client, history, tools=[TOOL], reasoning_effort=effort).choices[0].finish_reason in ("stop", "tool_calls")


def test_tool_choice(client):
    forced = chat(client, tools=[TOOL], tool_choice="required", reasoning_effort="none")
    assert forced.choices[0].message.tool_calls[0].function.name == "check_server"
    never = chat(client, [SYSTEM, QUESTION], tools=[TOOL], tool_choice="none", reasoning_effort="none")
    assert never.choices[0].message.tool_calls is None and never.choices[0].finish_reason != "tool_calls"
    assert "DSML" not in never.choices[0].message.content


def test_choices_seeds_and_logprobs(client):
    many = chat(client, n=3, temperature=1, seed=5, max_tokens=12, logprobs=True, top_logprobs=3)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    for choice in many.choices:
        assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in choice.logprobs.content)
        said = b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode()
        assert said.startswith(choice.message.reasoning)
    again = chat(client, n=3, temperature=1, seed=5, max_tokens=12)
    assert [c.message.reasoning for c in again.choices] == [c.message.reasoning for c in many.choices]


def test_stop(client):
    cut = chat(client, stop=["politely", "never"])
    assert cut.choices[0].finish_reason == "stop"
    text = (cut.choices[0].message.content or "") + getattr(cut.choices[0].message, "reasoning", "")
    assert "politely" not in text


def test_completions(client):
    made = client.completions.create(model=MODEL, prompt=["def main():", "import "], max_tokens=8, temperature=0, logprobs=2)
    assert [choice.index for choice in made.choices] == [0, 1]
    assert all(len(choice.logprobs.tokens) <= 8 for choice in made.choices)
    chunks = list(client.completions.create(model=MODEL, prompt="def main():", max_tokens=8, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == made.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_completions_score_a_prompt(client):
    """What likelihood evaluations need: echo and logprobs of a prompt of token ids, nothing generated."""
    ids = [0, 100, 200, 300]
    made = client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0, echo=True, logprobs=1).choices[0]
    scores = made.logprobs
    assert len(scores.token_logprobs) == 5 and scores.token_logprobs[0] is None
    for token, best, score in list(zip(scores.tokens, scores.top_logprobs, scores.token_logprobs))[1:]:
        assert best[token] == score <= max(best.values())
    assert scores.text_offset == sorted(scores.text_offset)
    only = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, temperature=0, echo=True, logprobs=1).choices[0]
    assert only.logprobs.token_logprobs == scores.token_logprobs[:4]


def test_completions_agree_with_score(client):
    page = ROOT / "CONTRIBUTING.md"
    done = subprocess.run([BINARY, "score", "-m", ROOT / "models" / MODEL, "--file", page, "--json"],
                          capture_output=True, text=True, timeout=60, check=True)
    score = json.loads(done.stdout)
    made = client.completions.create(model=MODEL, prompt=page.read_text(), max_tokens=0, echo=True, logprobs=0).choices[0]
    assert made.text == page.read_text()
    assert made.logprobs.token_logprobs[1:] == pytest.approx(score["logprobs"], rel=1e-9)


@pytest.mark.parametrize("change, status, param, code", [
    ({"model": "gpt-9"}, openai.NotFoundError, "model", "model_not_found"),
    ({"messages": [{"role": "user", "content": 5}]}, openai.BadRequestError, "messages[0].content", None),
    ({"temperature": -1}, openai.BadRequestError, "temperature", None),
    ({"max_tokens": 10_000_000}, openai.BadRequestError, "messages", "context_length_exceeded"),
    ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format.type", None),
])
def test_errors(client, change, status, param, code):
    with pytest.raises(status) as caught:
        chat(client, **change)
    assert caught.value.param == param and caught.value.code == code and caught.value.type == "invalid_request_error"


def test_unusual_bodies(server):
    def post(body, path="/v1/chat/completions"):
        request = urllib.request.Request(server.url + path, data=body, headers={"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            assert json.loads(error.read())["error"]["message"]
            return error.code

    assert post(b"{") == post(b"[]") == post(b"\xff") == post(b"{}") == 400
    assert post(b"[" * 100_000) == 400
    assert post(b"{}", "/v1/nothing") == 404
    assert post(b"{}", "/v1/models") == 405


def test_keys(start_server):
    server = start_server("--api-key", "secret")

    def client(key):
        return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)

    with pytest.raises(openai.AuthenticationError):
        client("wrong").models.list()
    assert client("secret").models.list().data
    assert json.loads(server.get("/health"))["status"] == "ok"


def test_a_closed_stream_ends_the_generation(client, server):
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=20_000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert server.running() == 1
    stream.close()
    server.wait_idle()


def test_text_of_requests_is_not_logged(client, server):
    chat(client, [{"role": "user", "content": "a very secret sentence"}], max_tokens=2)
    server.wait_idle()
    assert any("POST /v1/chat/completions 200" in line for line in server.log)
    assert not any("secret sentence" in line for line in server.log)


def test_signals_and_a_port_in_use(start_server):
    server = start_server("--drain-seconds", 20)
    with pytest.raises(RuntimeError, match="Address already in use"):
        start_server("--port", server.port)
    # A running answer ends before the server does.
    with socket.create_connection((server.host, server.port)) as connection:
        body = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True})
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = connection.recv(1 << 16)
        server.process.terminate()
        while data := connection.recv(1 << 16):
            answer += data
    assert b"[DONE]" in answer
    assert server.process.wait(30) == 0
