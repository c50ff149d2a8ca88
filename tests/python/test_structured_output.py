"""Structured output as the `openai` and `anthropic` packages ask for it, against a running server."""

import concurrent.futures
import enum
import json
import re
from typing import Literal, Optional

import pytest

openai = pytest.importorskip("openai", reason="the openai package is not installed")
anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")
from pydantic import BaseModel, Field  # comes with both

from conftest import needs_grammar

pytestmark = needs_grammar

MODEL = "mini-v41"
MESSAGES = [{"role": "user", "content": "Tell me about Zoë from Oslo."}]


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


class Place(BaseModel):
    city: str = Field(max_length=12)
    lat: float
    known: bool


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)
    mood: Mood
    home: Place
    nick: Optional[Literal["zo", "zë"]]
    friends: list[Place] = Field(max_length=2)


class Tree(BaseModel):
    value: int = Field(ge=0, le=9)
    children: list["Tree"] = Field(max_length=2)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def options(**more):
    return {"model": MODEL, "messages": MESSAGES, "max_tokens": 600, "reasoning_effort": "none", "seed": 1, **more}


@pytest.mark.parametrize("temperature", [0, 1])
def test_parse_with_pydantic(client, temperature):
    made = client.chat.completions.parse(**options(response_format=Person, temperature=temperature)).choices[0]
    assert made.finish_reason == "stop"
    assert isinstance(made.message.parsed, Person)


def test_a_shape_within_itself(client):
    whole = 0
    for seed in range(6):
        made = client.chat.completions.create(**options(seed=seed, max_tokens=400, response_format={
            "type": "json_schema", "json_schema": {"name": "tree", "schema": Tree.model_json_schema()}})).choices[0]
        if made.finish_reason == "stop":  # a tree may grow for ever
            Tree.model_validate_json(made.message.content)
            whole += 1
    assert whole > 0


def test_a_stream_is_the_same_answer(client):
    wanted = options(temperature=0, response_format={
        "type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": Place.model_json_schema()}})
    whole = client.chat.completions.create(**wanted).choices[0].message.content
    Place.model_validate_json(whole)
    pieces = [c.choices[0].delta.content or "" for c in client.chat.completions.create(**wanted, stream=True) if c.choices]
    assert "".join(pieces) == whole


def test_responses_parse(client):
    made = client.responses.parse(model=MODEL, input="Tell me about Oslo.", text_format=Place, max_output_tokens=300,
                                  reasoning={"effort": "none"}, extra_body={"seed": 2})
    assert isinstance(made.output_parsed, Place)


def test_messages_output_config(server):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)
    made = client.messages.create(
        model=MODEL, max_tokens=300, messages=MESSAGES,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": Place.model_json_schema()}}})
    Place.model_validate_json(made.content[-1].text)


@pytest.mark.parametrize("fields, fits", [
    ({"guided_choice": ["north", "south", "süd"]}, lambda text: text in ("north", "south", "süd")),
    ({"guided_regex": r"[A-Z]{2}-\d{4}"}, lambda text: re.fullmatch(r"[A-Z]{2}-\d{4}", text)),
    ({"guided_grammar": 'root ::= "(" [0-9]{1,3} ")"'}, lambda text: re.fullmatch(r"\(\d{1,3}\)", text)),
    ({"structured_outputs": {"json": Place.model_json_schema()}}, Place.model_validate_json),
    ({"guided_json": json.dumps(Place.model_json_schema())}, Place.model_validate_json),
])
def test_the_fields_of_vllm(client, fields, fits):
    for made in client.chat.completions.create(**options(n=3, extra_body=fields)).choices:
        assert made.finish_reason == "stop" and fits(made.message.content)


@pytest.mark.parametrize("fields, param, says", [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
     "response_format.json_schema.schema", "thing"),
    ({"guided_regex": "(a"}, "guided_regex", "parenthesis"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", "uniqueItems"),
    ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice", "beside guided_regex"),
])
def test_what_cannot_be_kept_to_is_refused(client, fields, param, says):
    with pytest.raises(openai.BadRequestError, match=says) as refused:
        client.chat.completions.create(**options(extra_body=fields))
    assert refused.value.param == param


def test_side_by_side_and_without_drafts_the_answers_are_the_same(client, start_server):
    """Eight shapes at a time, while one that takes seconds to compile is compiled or refused."""
    shapes = [{"type": "object", "properties": {f"key_{i}": {"enum": [f"a{i}", f"b{i}", i]}, "n": {"type": "integer", "maximum": 99, "minimum": 0},
               "text": {"type": "string", "maxLength": 8 + i}}, "required": [f"key_{i}", "n", "text"]} for i in range(8)]
    slow = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(700)}}

    def ask(to, schema):
        made = to.chat.completions.create(**options(seed=4, max_tokens=200, extra_body={"guided_json": schema})).choices[0]
        return made.message.content

    def ask_slow():
        try:
            return ask(client, slow)[0]
        except openai.BadRequestError as refused:
            assert "too complex" in str(refused)
            return "{"

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        late = pool.submit(ask_slow)
        answers = list(pool.map(lambda schema: ask(client, schema), shapes))
        assert late.result() == "{"
    plain = start_server("--draft-schedule", "0")
    alone = openai.OpenAI(base_url=plain.url + "/v1", api_key="none", max_retries=0, timeout=120)
    for i, (schema, text) in enumerate(zip(shapes, answers)):
        value = json.loads(text)
        assert value[f"key_{i}"] in (f"a{i}", f"b{i}", i) and 0 <= value["n"] <= 99 and len(value["text"]) <= 8 + i
        assert ask(alone, schema) == text


def test_the_reasoning_is_free(client):
    made = client.chat.completions.create(**options(
        messages=[{"role": "user", "content": "Add 345 and 678."}], reasoning_effort="high", temperature=0, max_tokens=1500,
        extra_body={"guided_choice": ["1023", "1024"]})).choices[0]
    assert made.finish_reason == "stop" and made.message.content in ("1023", "1024")
    assert len(made.message.reasoning_content) > 10
