"""The Responses API as the `openai` package and Codex speak it, against a running server."""

import json
import urllib.request

import pytest

openai = pytest.importorskip("openai", reason="the openai package is not installed")

MODEL = "mini-v41"
SYSTEM = "You are a helpful assistant with tools."
# A tool of the kind that the mini model was trained on (tools/train/task_tools.py).
TOOL = {"type": "function", "name": "check_server", "description": "Use this to check the server.", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "id": {"type": "integer"}},
                       "required": ["city", "id"]}}
QUESTION = "Check the server. city: Amsterdam, id: 7746."
CALL = {"city": "Amsterdam", "id": 7746}
NO_THINKING = {"effort": "none"}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def ask(client, input=QUESTION, **more):
    return client.responses.create(**{"model": MODEL, "input": input, "instructions": SYSTEM, "temperature": 0,
                                      "max_output_tokens": 120, **more})


def kinds(response):
    return [item.type for item in response.output]


def test_chat(client):
    response = ask(client, "Hello!", reasoning=NO_THINKING)
    assert response.object == "response" and response.status == "completed" and response.model == MODEL
    assert response.id.startswith("resp_") and kinds(response) == ["message"]
    assert response.output_text and response.output[0].id.startswith("msg_")
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_thinking_is_on_unless_turned_off(client):
    response = ask(client, "Hello!")
    assert kinds(response)[0] == "reasoning"
    assert response.output[0].content[0].type == "reasoning_text" and response.output[0].content[0].text
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_complaint_46_every_effort_is_taken(client):
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        assert ask(client, "Hello!", reasoning={"effort": effort}, max_output_tokens=2).status == "incomplete"


def bare(item):
    """An item without what is new in every answer."""
    return {key: value for key, value in item.model_dump().items() if key not in ("id", "call_id")}


def test_a_stream_is_the_same_response(client):
    whole = ask(client, tools=[TOOL])
    with client.responses.stream(model=MODEL, input=QUESTION, instructions=SYSTEM, temperature=0, max_output_tokens=120,
                                 tools=[TOOL]) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [bare(item) for item in whole.output] == [
        {key: value for key, value in bare(item).items() if key != "parsed_arguments"} for item in streamed.output]
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def as_codex(server, input, key="none", **more):
    """What Codex sends and reads: the items of output_item.done, and the response of the last event."""
    body = {"model": MODEL, "instructions": SYSTEM, "input": input, "tool_choice": "auto", "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0197", "text": {"verbosity": "medium"},
            "tools": [TOOL, {"type": "web_search", "external_web_access": False},
                      {"type": "custom", "name": "apply_patch", "description": "Edits files.",
                       "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}],
            "temperature": 0, **more}
    request = urllib.request.Request(server.url + "/v1/responses", json.dumps(body).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer " + key})
    items, last, states = [], None, {}
    with urllib.request.urlopen(request, timeout=60) as answer:
        for frame in answer.read().decode().split("\n\n"):
            if not frame or frame.startswith(":"):
                continue
            name, data = frame.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == "event: " + event["type"]
            last = event
            if event["type"] == "response.output_item.added":
                states[event["item"]["id"]] = "added"
            if event["type"].endswith(".delta"):
                assert states[event["item_id"]] == "added"  # Codex has no use for a delta without an active item
            if event["type"] == "response.output_item.done":
                states[event["item"]["id"]] = "done"
                items.append(event["item"])
    return items, last


def codex_history(items):
    """Codex sends items back without ids, and reasoning only as encrypted_content."""
    kept = []
    for item in items:
        item = {key: value for key, value in item.items() if key not in ("id", "status")}
        if item["type"] == "reasoning":
            del item["content"]
        kept.append(item)
    return kept


def test_a_tool_loop_as_codex_runs_it(server):
    question = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    items, last = as_codex(server, [question])
    assert last["type"] == "response.completed" and last["response"]["id"]
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    call = items[1]
    assert call["name"] == "check_server" and json.loads(call["arguments"]) == CALL
    assert call["call_id"].startswith("call_") and call["id"].startswith("fc_")

    output = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"status": "ok", "id": 5122}'}
    answer, last = as_codex(server, [question, *codex_history(items), output])
    assert "5122" in answer[-1]["content"][0]["text"]
    # The reasoning came back, so that the prompt goes on exactly where the first turn ended.
    without, _ = as_codex(server, [question, call, output]), None
    assert last["response"]["usage"]["input_tokens"] > without[1]["response"]["usage"]["input_tokens"]


def test_tools_round_trip_with_the_package(client):
    first = ask(client, tools=[TOOL], reasoning=NO_THINKING)
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == CALL
    second = ask(client, [{"role": "user", "content": QUESTION}, *first.output,
                          {"type": "function_call_output", "call_id": call.call_id, "output": '{"found": 12}'}],
                 tools=[TOOL], reasoning=NO_THINKING)
    assert "12" in second.output_text


def test_tool_choice(client):
    assert kinds(ask(client, "Hello!", tools=[TOOL], tool_choice="required"))[-1] == "function_call"
    named = ask(client, "Hello!", tools=[TOOL], tool_choice={"type": "function", "name": "check_server"})
    assert named.output[-1].name == "check_server"
    assert "function_call" not in kinds(ask(client, tools=[TOOL], tool_choice="none", max_output_tokens=40))


def test_custom_tools_take_text(client):
    tool = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
    response = ask(client, "Hello!", tools=[tool], tool_choice={"type": "custom", "name": "apply_patch"}, max_output_tokens=400)
    call = response.output[-1]
    assert call.type == "custom_tool_call" and call.name == "apply_patch" and isinstance(call.input, str)


def test_complaint_34_no_dsml_in_text(client):
    for number in range(4):
        events = client.responses.create(model=MODEL, input=f"Check the server. city: Oslo, id: {number}.", instructions=SYSTEM,
                                         tools=[TOOL], max_output_tokens=120, stream=True)
        text = "".join(json.dumps(event.to_dict(), ensure_ascii=False) for event in events)
        assert "DSML" not in text and "</think>" not in text, text


def test_complaint_45_reasoning_that_eats_the_limit(client):
    response = ask(client, tools=[TOOL], max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    assert kinds(response) == ["reasoning"] and response.output[0].status == "incomplete"
    assert response.usage.output_tokens == response.usage.output_tokens_details.reasoning_tokens == 3


def test_complaint_66_cached_tokens_are_told(client):
    instructions = "Responses: " + "You are a careful assistant. " * 60
    cold, warm = (ask(client, "Hello!", instructions=instructions, max_output_tokens=4).usage for _ in range(2))
    assert cold.input_tokens_details.cached_tokens == 0 < warm.input_tokens_details.cached_tokens
    assert cold.input_tokens == warm.input_tokens


def test_errors(client):
    with pytest.raises(openai.NotFoundError, match="no-such-model") as refused:
        ask(client, "x", model="no-such-model")
    assert refused.value.code == "model_not_found"
    cases = [({"temperature": -1}, "temperature"), ({"max_output_tokens": 0}, "max_output_tokens"),
             ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"input": []}, "input"),
             ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
             ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
             ({"tools": [{"type": "function"}]}, "tools[0].name"), ({"reasoning": {"effort": 101}}, "reasoning.effort"),
             ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "y"}}, "tool_choice.name"),
             ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"stream": "yes"}, "stream")]
    for fields, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{"input": "x", "extra_body": fields})
        assert refused.value.param == param, refused.value
        assert param in refused.value.message


def test_a_prompt_that_is_too_long(small_server):
    """In one piece it is refused; in a stream it is told, because only then does Codex shorten its history."""
    client = openai.OpenAI(base_url=small_server.url + "/v1", api_key="secret", max_retries=0)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "word " * 600)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "input"
    items, last = as_codex(small_server, "word " * 600, key="secret")
    assert items == [] and last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "context_length_exceeded"


def test_401(small_server):
    for key, fits in (("wrong", False), ("secret", True)):
        client = openai.OpenAI(base_url=small_server.url + "/v1", api_key=key, max_retries=0)
        if fits:
            assert ask(client, "Hello!", max_output_tokens=2)
        else:
            with pytest.raises(openai.AuthenticationError):
                ask(client, "Hello!", max_output_tokens=2)


def test_closing_a_stream_ends_the_work(client, server):
    server.wait_idle()
    stream = client.responses.create(model=MODEL, input="Count.", stream=True, extra_body={"ignore_eos": True})
    for event in stream:
        if event.type.endswith(".delta"):
            break
    server.wait_running(1)
    stream.close()
    server.wait_idle()
