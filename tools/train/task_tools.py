"""Tool calls: small random schemas, a request that contains the argument values, the call, its result and an answer."""

from __future__ import annotations

import random
import zlib

from chat_format import dumps
from words import ADJECTIVES, CITIES, NAMES, NOUNS, VALUE_WORDS

VERBS = {"get": "Get", "find": "Find", "create": "Create", "delete": "Delete", "send": "Send", "open": "Open", "book": "Book",
         "list": "List", "update": "Update", "search": "Search", "play": "Play", "check": "Check", "set": "Set", "start": "Start",
         "stop": "Stop", "add": "Add", "show": "Show", "order": "Order"}
THINGS = """weather alarm event file note email light song ticket order reminder user report price photo message meeting timer task
room flight hotel recipe contact invoice map movie playlist document backup server product""".split()
STRINGS = {"city": "city", "location": "city", "title": "words", "name": "name", "query": "words", "recipient": "name",
           "path": "path", "room": "word", "topic": "word", "label": "word", "address": "email", "date": "date", "owner": "name",
           "destination": "city", "text": "words", "category": "word"}
INTEGERS = {"count": 50, "limit": 100, "days": 14, "page": 40, "minutes": 90, "year": 2030, "level": 10, "quantity": 200, "id": 9999,
            "price": 500, "hour": 24, "volume": 100, "size": 1000, "priority_level": 5}
BOOLEANS = ("urgent", "verbose", "recursive", "shared", "repeat", "public", "silent", "confirm")
ENUMS = {"unit": ("celsius", "fahrenheit"), "format": ("json", "csv", "text"), "priority": ("low", "medium", "high"),
         "sort": ("asc", "desc"), "color": ("red", "green", "blue", "white"), "language": ("english", "german", "french"),
         "mode": ("fast", "normal", "slow"), "status": ("open", "closed")}
SYSTEMS = ("You are a helpful assistant.", "You are a helpful assistant with tools.", "", "Use the tools to help the user.",
           "You are a home assistant.")
DESCRIPTIONS = ("{V} the {t}.", "{V} a {t}.", "Tool to {v} a {t}.", "Use this to {v} the {t}.")
CHAT = (("Hello!", "Hello! How can I help you?"), ("Thank you.", "You are welcome!"), ("Who are you?", "I am a small assistant with tools."),
        ("Good morning.", "Good morning! What can I do for you?"))


def held_out(verb: str, thing: str) -> bool:
    """Whether this tool name is kept for evaluation only (about one name in eight)."""
    return zlib.crc32(f"{verb}_{thing}".encode()) % 8 == 0


def _string(rng: random.Random, kind: str) -> str:
    word = lambda: rng.choice(rng.choice((VALUE_WORDS, NOUNS, ADJECTIVES))).lower()  # noqa: E731
    if kind == "city":
        return rng.choice(CITIES)
    if kind == "name":
        return rng.choice(NAMES) if rng.random() < 0.7 else f"{rng.choice(NAMES)} {rng.choice(NOUNS)}"
    if kind == "path":
        return f"/{word()}/{word()}.{rng.choice(('txt', 'md', 'csv', 'py'))}"
    if kind == "email":
        return f"{rng.choice(NAMES).lower()}@{word()}.com"
    if kind == "date":
        return f"20{rng.randrange(20, 31)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    return word() if kind == "word" else " ".join(word() for _ in range(rng.randint(1, 3)))


def make_tool(rng: random.Random, held: bool) -> dict:
    """A function object with 1-3 parameters. `held` picks names of the evaluation-only set."""
    while True:
        verb, thing = rng.choice(list(VERBS)), rng.choice(THINGS)
        if held_out(verb, thing) == held:
            break
    properties = {}
    for _ in range(rng.choices((1, 2, 3), (3, 4, 3))[0]):
        kind = rng.choices(("string", "integer", "boolean", "enum"), (5, 3, 1.5, 1.5))[0]
        pool = {"string": STRINGS, "integer": INTEGERS, "boolean": BOOLEANS, "enum": ENUMS}[kind]
        name = rng.choice(list(pool))
        schema = {"type": "string" if kind == "enum" else kind}
        if kind == "enum":
            schema["enum"] = list(ENUMS[name])
        if rng.random() < 0.4:
            schema["description"] = rng.choice((f"The {name}", f"{name.capitalize()} of the {thing}", f"{name.capitalize()} to use"))
        properties[name] = schema
    required = [p for i, p in enumerate(properties) if i == 0 or rng.random() < 0.6]
    description = rng.choice(DESCRIPTIONS).format(V=VERBS[verb], v=verb, t=thing)
    return {"name": f"{verb}_{thing}", "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required}}


def _value(rng: random.Random, name: str, schema: dict):
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if schema["type"] == "integer":
        return rng.randrange(1990, 2031) if name == "year" else rng.randint(1, INTEGERS[name])
    if schema["type"] == "boolean":
        return rng.random() < 0.5
    return _string(rng, STRINGS[name])


def _spoken(value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _request(rng: random.Random, tool: dict, arguments: dict) -> str:
    verb, thing = tool["name"].split("_", 1)
    style = rng.randrange(5)
    pairs = [f"{k} {_spoken(v)}" for k, v in arguments.items()]
    if style == 3:
        pairs = [f"{k} = {_spoken(v)}" for k, v in arguments.items()]
    if style == 4:
        pairs = [f"{k}: {_spoken(v)}" for k, v in arguments.items()]
    joined = ", ".join(pairs) if style >= 3 or len(pairs) == 1 else ", ".join(pairs[:-1]) + " and " + pairs[-1]
    head = (f"{VERBS[verb]} the {thing} with ", f"Please {verb} the {thing} with ", f"I want to {verb} a {thing} with ",
            f"{VERBS[verb]} a {thing}: ", f"{VERBS[verb]} the {thing}. ")[style]
    return head + joined + "."


def _arguments(rng: random.Random, tool: dict) -> dict:
    parameters = tool["parameters"]
    return {k: _value(rng, k, s) for k, s in parameters["properties"].items()
            if k in parameters["required"] or rng.random() < 0.6}


def _result(rng: random.Random, tool: dict, arguments: dict) -> tuple[str, str]:
    thing = tool["name"].split("_", 1)[1]
    style = rng.randrange(4)
    if style == 0:
        number = rng.randrange(1000, 10000)
        return dumps({"status": "ok", "id": number}), f"Done. The {thing} has id {number}."
    if style == 1:
        first, value = next(iter(arguments.items()))
        return dumps({first: value, "result": "success"}), f"The {thing} with {first} {_spoken(value)} is done."
    if style == 2:
        found = rng.randrange(0, 20)
        return dumps({"found": found}), f"I found {found} results for the {thing}."
    reason = rng.choice(("not found", "permission denied", "timeout"))
    return dumps({"error": reason}), f"The {thing} failed: {reason}."


def conversation(rng: random.Random, held: bool = False) -> tuple[list[dict], bool]:
    """Messages of one tool conversation, with a call in all but a tenth of them, and whether it is in thinking mode."""
    thinking = rng.random() < 0.65
    tools = [make_tool(rng, held) for _ in range(rng.choices((1, 2, 3), (4, 4, 3))[0])]
    tools = list({t["name"]: t for t in tools}.values())
    wrapped = [{"type": "function", "function": t} for t in tools]
    messages: list[dict] = [{"role": "system", "content": rng.choice(SYSTEMS), "tools": wrapped}]
    if not held and rng.random() < 0.1:
        question, answer = rng.choice(CHAT)
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "reasoning_content": "No tool is needed here.", "content": answer})
        return messages, thinking
    for turn in range(rng.choices((1, 2), (4, 1))[0]):
        chosen = rng.sample(tools, 2) if len(tools) > 1 and rng.random() < 0.1 else [rng.choice(tools)]
        filled = [(tool, _arguments(rng, tool)) for tool in chosen]
        names = " and ".join(tool["name"] for tool in chosen)
        messages.append({"role": "user", "content": " ".join(_request(rng, t, a) for t, a in filled)})
        ids = [f"call_{turn}{i}" for i in range(len(filled))]
        messages.append({"role": "assistant", "content": "", "reasoning_content": f"The user needs {names}. I will call {names}.",
                         "tool_calls": [{"id": c, "type": "function", "function": {"name": t["name"], "arguments": dumps(a)}}
                                        for c, (t, a) in zip(ids, filled)]})
        if rng.random() < 0.6 or turn:
            answers = []
            for c, (t, a) in zip(ids, filled):
                result, answer = _result(rng, t, a)
                messages.append({"role": "tool", "tool_call_id": c, "content": result})
                answers.append(answer)
            messages.append({"role": "assistant", "reasoning_content": "I have the result.", "content": " ".join(answers)})
        else:
            break
    return messages, thinking


def valid_call(call: dict, tools: list[dict]) -> str | None:
    """Why a parsed call `{name, arguments: dict}` does not fit its schema, or None when it does."""
    schema = next((t["parameters"] for t in tools if t["name"] == call["name"]), None)
    if schema is None:
        return f"no tool {call['name']!r}"
    for name in schema["required"]:
        if name not in call["arguments"]:
            return f"missing {name!r}"
    for name, value in call["arguments"].items():
        s = schema["properties"].get(name)
        if s is None:
            return f"unknown parameter {name!r}"
        fits = {"string": isinstance(value, str), "integer": isinstance(value, int) and not isinstance(value, bool),
                "boolean": isinstance(value, bool)}[s["type"]]
        if not fits or ("enum" in s and value not in s["enum"]):
            return f"{name!r}: {value!r} does not fit {dumps(s)}"
    return None
