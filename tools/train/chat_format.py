"""Prompt encoding of DeepSeek-V4 and V4.1 for training text and evaluation (spec/model.md 8.3 and 8.4).

`segments` is the primitive: it renders a conversation to pieces marked as prompt or as assistant output, so that a
trainer can put its loss on what the model itself must write. `encode` joins them.
"""

from __future__ import annotations

import json
from typing import Any, Iterable

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"
REMINDER = "<｜latest_reminder｜>"
TASKS = {"action": "<｜action｜>", "query": "<｜query｜>", "authority": "<｜authority｜>", "domain": "<｜domain｜>",
         "title": "<｜title｜>", "read_url": "<｜read_url｜>"}
EFFORTS_V41 = {"low": 50, "high": 75, "max": 100}
GENERATIONS = ("v4", "v41")

_TAGS = {"v4": ("tool_calls", "invoke", "parameter"), "v41": (" calls", " invoke", " parameter")}

_TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{d}{c}>" block like the following:

<{d}{c}>
<{d}{i} name="$TOOL_NAME">
<{d}{p} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{d}{p}>
...
</{d}{i}>
<{d}{i} name="$TOOL_NAME2">
...
</{d}{i}>
</{d}{c}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {t}), you MUST output your complete reasoning inside {t}...{e} BEFORE any tool calls or final response.

Otherwise, output directly after {e} with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def dumps(value: Any) -> str:
    """JSON as it appears inside prompts."""
    return json.dumps(value, ensure_ascii=False)


def tools_block(tools: Iterable[dict], generation: str) -> str:
    """The TOOLS block. `tools` are OpenAI tool objects or bare function objects."""
    c, i, p = _TAGS[generation]
    schemas = "\n".join(dumps(t.get("function", t)) for t in tools)
    return _TOOLS.format(d=DSML, c=c, i=i, p=p, t=THINK, e=END_THINK, schemas=schemas)


def response_format_block(schema: Any) -> str:
    return ("## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" + dumps(schema))


def calls_block(calls: Iterable[dict], generation: str) -> str:
    """The DSML calls block, with its leading empty line. `calls` are OpenAI tool calls or bare function calls."""
    c, i, p = _TAGS[generation]
    invokes = []
    for call in calls:
        function = call.get("function", call)
        arguments = function["arguments"]
        if isinstance(arguments, str):
            try:
                parsed = json.loads(arguments)
                if generation == "v41" and isinstance(parsed, str):  # double-encoded arguments are tolerated
                    parsed = json.loads(parsed)
            except ValueError:
                parsed = None
            arguments = parsed if isinstance(parsed, dict) else {"arguments": arguments}
        params = []
        for name, value in arguments.items():
            is_string = isinstance(value, str)
            params.append(f'<{DSML}{p} name="{name}" string="{"true" if is_string else "false"}">'
                          f'{value if is_string else dumps(value)}</{DSML}{p}>')
        invokes.append(f'<{DSML}{i} name="{function["name"]}">\n' + "\n".join(params) + f"\n</{DSML}{i}>")
    return f"\n\n<{DSML}{c}>\n" + "\n".join(invokes) + f"\n</{DSML}{c}>"


def merge_tool_results(messages: list[dict]) -> list[dict]:
    """Turns tool messages into `<tool_result>` parts of user turns, ordered like the calls they answer."""
    out: list[dict] = []
    order: dict[str, int] = {}
    for message in messages:
        role = message["role"]
        if role == "assistant":
            order = {c["id"]: n for n, c in enumerate(message.get("tool_calls") or []) if "id" in c}
        if role not in ("user", "tool"):
            out.append(dict(message))
            continue
        if role == "tool":
            part = (order.get(message.get("tool_call_id"), len(order)), f"<tool_result>{message['content']}</tool_result>")
        else:
            part = (None, message["content"])
        mergeable = out and out[-1]["role"] == "user" and "task" not in out[-1] and (role == "tool" or out[-1]["has_result"])
        if mergeable:
            out[-1]["parts"].append(part)
        else:
            merged = dict(message, role="user", parts=[part], has_result=False)
            out.append(merged)
        out[-1]["has_result"] |= role == "tool"
        if "task" in message:
            out[-1]["task"] = message["task"]
    for message in out:
        if message["role"] == "user":
            parts = message["parts"]
            results = iter(sorted((p for p in parts if p[0] is not None), key=lambda p: p[0]))
            message["content"] = "\n\n".join(p[1] if p[0] is None else next(results)[1] for p in parts)
    return out


def segments(messages: list[dict], generation: str, thinking: bool, effort: int | str = "high",
             drop_thinking: bool = True) -> list[tuple[str, bool]]:
    """Renders a conversation to (text, written by the assistant) pieces.

    messages: dictionaries with `role` (system, user, assistant, tool, latest_reminder; V4 also developer), `content`,
    and as they apply `reasoning_content`, `tool_calls`, `tool_call_id`, `tools`, `response_format`, `task`.
    effort: V4.1 in thinking mode only, 1 to 100 or low / high / max. Raises ValueError on an unknown role or effort.
    """
    if generation not in GENERATIONS:
        raise ValueError(f"generation {generation!r}: expected one of {GENERATIONS}")
    v41 = generation == "v41"
    turns = merge_tool_results(messages)
    if any(m.get("tools") for m in turns):
        drop_thinking = False

    def asks(index: int) -> bool:
        role = turns[index]["role"]
        return role in ("user", "developer") or (v41 and role == "system" and index > 0)

    last_user = max((i for i in range(len(turns)) if asks(i)), default=-1)
    if thinking and drop_thinking:
        turns = [m for i, m in enumerate(turns) if i >= last_user or m["role"] != "developer"]
        last_user = max((i for i in range(len(turns)) if asks(i)), default=-1)

    out: list[tuple[str, bool]] = [(BOS, False)]
    if v41:
        n = EFFORTS_V41.get(effort, effort) if isinstance(effort, str) else effort
        if not isinstance(n, int) or not 1 <= n <= 100:
            raise ValueError(f"reasoning effort {effort!r}: expected 1 to 100, low, high or max")
        if thinking or (turns and turns[0]["role"] == "system"):
            out.append((SYSTEM, False))
        if thinking:
            out.append((f"Reasoning Effort: {n} (range 1-100, the higher the value, the more thorough the reasoning)\n\n", False))

    after_task = False
    for i, message in enumerate(turns):
        role, content = message["role"], message.get("content") or ""
        if role in ("system", "developer"):
            if role == "developer" and v41:
                raise ValueError("role developer does not exist in V4.1")
            blocks = [content]
            if message.get("tools"):
                blocks.append(tools_block(message["tools"], generation))
            if message.get("response_format"):
                blocks.append(response_format_block(message["response_format"]))
            lead = USER if role == "developer" else SYSTEM if v41 and i > 0 else ""
            out.append((lead + "\n\n".join(blocks), False))
        elif role == "user":
            out.append((USER + content, False))
        elif role == "latest_reminder":
            out.append((REMINDER + content, False))
        elif role == "assistant":
            text = content
            if thinking and not after_task and (not drop_thinking or i > last_user):
                text = (message.get("reasoning_content") or "") + END_THINK + text
            if message.get("tool_calls"):
                text += calls_block(message["tool_calls"], generation)
            out.append((text + EOS, True))
        else:
            raise ValueError(f"message {i}: unknown role {role!r}")
        following = turns[i + 1]["role"] if i + 1 < len(turns) else None
        after_task = "task" in message
        if asks(i) and following in (None, "assistant", "latest_reminder"):
            keep = thinking and (not drop_thinking or i >= last_user)
            header = ASSISTANT + (THINK if keep else END_THINK)
            if not after_task:
                out.append((header, False))
            elif message["task"] == "action":
                out.append((header + TASKS["action"], False))
            else:
                out.append((TASKS[message["task"]], False))
    return out


def encode(messages: list[dict], generation: str, thinking: bool, **options: Any) -> str:
    """The whole conversation as prompt text; ends with the assistant header when the last turn asks."""
    return "".join(text for text, _ in segments(messages, generation, thinking, **options))
