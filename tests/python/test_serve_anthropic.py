"""The Messages API as the `anthropic` package and Claude Code speak it, against a running server."""

import json
import urllib.error
import urllib.request

import pytest

anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")

MODEL = "mini-v41"
SYSTEM = "You are a helpful assistant with tools."
# A tool of the kind that the mini model was trained on (tools/train/task_tools.py).
TOOL = {"name": "check_server", "description": "Use this to check the server.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "id": {"type": "integer"},
                                                          "urgent": {"type": "boolean"}}, "required": ["city", "id"]}}
QUESTION = "Check the server. city: Amsterdam, id: 7746, urgent: true."
CALL = {"city": "Amsterdam", "id": 7746, "urgent": True}
THINKING = {"type": "adaptive"}
GREEDY = {"temperature": 0}  # the package no longer has the parameter, the protocol does


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def ask(client, content=QUESTION, **more):
    options = {"model": MODEL, "max_tokens": 120, "extra_body": GREEDY, "system": SYSTEM, **more}
    messages = options.pop("messages", None) or [{"role": "user", "content": content}]
    return client.messages.create(messages=messages, **options)


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def kinds(message):
    return [block.type for block in message.content]


def test_chat(client):
    message = ask(client, "Hello!", max_tokens=16)
    assert message.type == "message" and message.role == "assistant" and message.model == MODEL
    assert message.id.startswith("msg_")
    assert kinds(message) == ["text"] and text_of(message)  # no thinking unless asked for
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert 0 < message.usage.output_tokens <= 16


def test_thinking_on_and_off(client):
    on = ask(client, "Hello!", thinking=THINKING)
    assert on.content[0].type == "thinking" and on.content[0].thinking and on.content[0].signature
    assert on.usage.output_tokens_details.thinking_tokens > 0
    off = ask(client, "Hello!", thinking={"type": "disabled"})
    assert "thinking" not in kinds(off) and off.usage.output_tokens_details.thinking_tokens == 0


def test_a_stream_is_the_same_message(client):
    """Thinking, text and tools, put together by the package from events, equal the answer in one piece."""
    options = {"model": MODEL, "max_tokens": 120, "extra_body": GREEDY, "system": SYSTEM, "tools": [TOOL], "thinking": THINKING,
               "messages": [{"role": "user", "content": QUESTION}]}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert events[0] == "message_start" and events[-1] == "message_stop"
    assert kinds(streamed) == kinds(whole)
    for one, other in zip(streamed.content, whole.content):
        assert one.model_dump(exclude={"id"}) == other.model_dump(exclude={"id"})
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_raw_events_come_in_order(server):
    body = {"model": MODEL, "max_tokens": 60, "temperature": 0, "stream": True, "thinking": THINKING, "system": SYSTEM,
            "tools": [TOOL], "messages": [{"role": "user", "content": QUESTION}]}
    request = urllib.request.Request(server.url + "/v1/messages", json.dumps(body).encode(),
                                     {"content-type": "application/json"})  # neither anthropic-version nor a key
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = [frame.split("\n") for frame in answer.read().decode().split("\n\n") if frame]
    events = []
    for name, data in (frame for frame in frames if not frame[0].startswith(":")):
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        if event["type"] != "ping":
            events.append(event)
    assert events[0]["type"] == "message_start" and events[0]["message"]["usage"]["output_tokens"] >= 0
    index = 0
    for event in events[1:-2]:
        assert event["index"] == index
        index += event["type"] == "content_block_stop"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("thinking", [THINKING, {"type": "disabled"}], ids=["thinking", "chat"])
def test_tools_round_trip(client, thinking):
    first = ask(client, tools=[TOOL], thinking=thinking)
    assert first.stop_reason == "tool_use"
    use = first.content[-1]
    assert use.type == "tool_use" and use.id.startswith("toolu_") and use.name == "check_server"
    assert use.input == CALL and isinstance(use.input["id"], int) and use.input["urgent"] is True
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": '{"status": "ok", "id": 5122}'}]}
    second = ask(client, tools=[TOOL], thinking=thinking, messages=[
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]}])
    assert second.stop_reason == "end_turn"
    assert "5122" in text_of(second)


def test_complaint_34_no_dsml_in_text(client):
    """500 tool turns are the soak's business; these are in every shape that reaches a client."""
    for number in range(4):
        question = f"Check the server. city: Oslo, id: {number}."
        with client.messages.stream(model=MODEL, max_tokens=120, system=SYSTEM, tools=[TOOL], thinking=THINKING,
                                    messages=[{"role": "user", "content": question}]) as stream:
            text = "".join(json.dumps(event.to_dict(), ensure_ascii=False) for event in stream)
        assert "DSML" not in text and "</think>" not in text, text


def test_tool_choice(client):
    free = ask(client, "Hello!", tools=[TOOL], tool_choice={"type": "any"})
    assert free.stop_reason == "tool_use" and free.content[-1].name == "check_server"
    named = ask(client, "Hello!", tools=[TOOL], tool_choice={"type": "tool", "name": "check_server"})
    assert named.content[-1].name == "check_server"
    none = ask(client, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=40)
    assert "tool_use" not in kinds(none)


def test_server_tools_are_left_out(client):
    """deepseek 606: Claude Code's web search names a tool that only Anthropic's servers run."""
    message = ask(client, "Hello!", max_tokens=8, tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
                  tool_choice={"type": "tool", "name": "web_search"})
    assert message.stop_reason in ("end_turn", "max_tokens")


def test_complaint_45_thinking_that_eats_the_limit(client):
    message = ask(client, tools=[TOOL], thinking=THINKING, max_tokens=3)
    assert message.stop_reason == "max_tokens" and kinds(message) == ["thinking"]
    assert message.usage.output_tokens == message.usage.output_tokens_details.thinking_tokens == 3


def test_stop_sequence(client):
    whole = text_of(ask(client, "Hello!"))
    middle = whole[3:6]
    assert middle.strip() and whole.index(middle) == 3, whole
    message = ask(client, "Hello!", stop_sequences=["\0never", middle])
    assert message.stop_reason == "stop_sequence" and message.stop_sequence == middle
    assert text_of(message) == whole[:3]


def test_prefill(client):
    """An assistant message at the end is gone on with, not answered."""
    whole = text_of(ask(client, "Hello!"))
    begun = whole[: len(whole) // 2].rpartition(" ")[0]
    assert begun
    message = ask(client, messages=[{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": begun}])
    assert begun + text_of(message) == whole


def test_count_tokens_is_the_usage_of_the_request(client):
    request = {"model": MODEL, "system": SYSTEM, "tools": [TOOL], "thinking": THINKING,
               "messages": [{"role": "user", "content": "How many tokens are these?"}]}
    counted = client.messages.count_tokens(**request).input_tokens
    usage = client.messages.create(max_tokens=1, **request).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


LONG = "You are a careful assistant. " * 60  # several pages


def test_complaint_66_cached_tokens_are_told(client):
    system = "66: " + LONG
    cold = ask(client, "Hello!", system=system, max_tokens=4).usage
    warm = ask(client, "Hello!", system=system, max_tokens=4).usage
    assert cold.cache_read_input_tokens == 0 < warm.cache_read_input_tokens
    assert cold.input_tokens == warm.input_tokens + warm.cache_read_input_tokens
    with client.messages.stream(model=MODEL, max_tokens=4, extra_body=GREEDY, system=system,
                                messages=[{"role": "user", "content": "Hello!"}]) as stream:
        start = next(event for event in stream if event.type == "message_start")
    assert start.message.usage.cache_read_input_tokens == warm.cache_read_input_tokens


def test_complaint_33_a_changing_billing_header_does_not_spoil_the_cache(client):
    def usage(version):
        billing = f"x-anthropic-billing-header: cc_version={version}; cc_entrypoint=cli; cch={version};"
        blocks = [{"type": "text", "text": billing},
                  {"type": "text", "text": "33: " + LONG, "cache_control": {"type": "ephemeral"}}]
        return ask(client, "Hello!", system=blocks, max_tokens=4).usage

    cold, warm = usage("2.1.77.a1b"), usage("2.1.78.c2d")
    assert cold.cache_read_input_tokens == 0 < warm.cache_read_input_tokens
    plain = ask(client, "Hello!", system="33: " + LONG, max_tokens=4).usage
    assert plain.input_tokens + plain.cache_read_input_tokens == cold.input_tokens


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError, match="no-such-model"):
        ask(client, "x", model="no-such-model")
    with pytest.raises(anthropic.BadRequestError, match="temperature") as refused:
        ask(client, "x", extra_body={"temperature": -1})
    assert refused.value.body["type"] == "error" and refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.role"):
        ask(client, messages=[{"role": "robot", "content": "x"}])
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        ask(client, "x", stop_sequences=["s"] * 99)
    with pytest.raises(anthropic.BadRequestError, match="messages: .* text only"):
        ask(client, messages=[{"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}])


def test_the_context(small_server):
    """Claude Code asks for 32,000 tokens of every model: what does not fit is lowered. A prompt cannot be."""
    client = anthropic.Anthropic(base_url=small_server.url, api_key="secret", max_retries=0)
    assert ask(client, "Hello!", extra_body={"max_tokens": 32000, **GREEDY}).stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match="messages: this model's context is 512 tokens"):
        ask(client, "word " * 600)


def test_401(small_server):
    for key in ("wrong", ""):
        client = anthropic.Anthropic(base_url=small_server.url, api_key=key or "x", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask(client, "x")
        assert refused.value.body["error"]["type"] == "authentication_error"
    assert ask(anthropic.Anthropic(base_url=small_server.url, api_key="secret"), "Hello!", max_tokens=2)
    assert ask(anthropic.Anthropic(base_url=small_server.url, auth_token="secret", api_key=None), "Hello!", max_tokens=2)


def test_closing_a_stream_ends_the_work(client, server):
    server.wait_idle()
    stream = client.messages.create(model=MODEL, max_tokens=4000, stream=True, extra_body={"ignore_eos": True},
                                    messages=[{"role": "user", "content": "Count."}])
    events = iter(stream)
    next(events)
    server.wait_running(1)
    stream.close()
    server.wait_idle()


def test_hidden_thinking_comes_back(client):
    """display: omitted shows no thinking, and its text still reaches the next turn, inside the signature."""
    hidden = ask(client, tools=[TOOL], thinking={"type": "adaptive", "display": "omitted"})
    shown = ask(client, tools=[TOOL], thinking=THINKING)
    assert hidden.content[0].thinking == "" and shown.content[0].thinking

    def turns(first):
        return [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "ok"}]}]

    counts = [client.messages.count_tokens(model=MODEL, system=SYSTEM, tools=[TOOL], thinking=THINKING,
                                           messages=turns(first)).input_tokens for first in (hidden, shown)]
    assert counts[0] == counts[1]
