"""structured and tool_json: answers that a parser can judge."""

from __future__ import annotations

import json

from words import ADJECTIVES, DAYS, MONTHS, NAMES, NOUNS, PLACES, PRODUCTS, rng_of, system, user

FORMATS = {"json": "a JSON array of objects with the keys {keys}, numbers as numbers, and nothing else",
           "csv": "CSV with the header line {keys}, and nothing else",
           "markdown": "a Markdown table with the columns {keys}, and nothing else",
           "yaml": "flat YAML: one line per row, `{first}: {second}`, in the order of the text, and nothing else"}


def _stock(rng):
    rows = [[p, rng.randrange(2, 400), rng.choice(PLACES)] for p in rng.sample(PRODUCTS, 4)]
    return ["product", "count", "place"], rows, " ".join(f"There are {n} {p} in {c}." for p, n, c in rows)


def _staff(rng):
    rows = [[n, rng.choice(NOUNS), rng.randrange(1, 32)] for n in rng.sample(NAMES, 4)]
    return ["name", "post", "day"], rows, " ".join(f"{n} takes over the {p} on the {d}. of {MONTHS[d % 12]}." for n, p, d in rows)


def _stations(rng):
    rows = [[f"{rng.choice(ADJECTIVES)}-{i}", rng.randrange(-15, 38), rng.randrange(1, 90)] for i in range(1, 6)]
    return ["station", "celsius", "wind"], rows, " ".join(f"Station {s} reports {t} degrees and wind of {w} km/h." for s, t, w in rows)


def _lines(rng):
    rows = [[f"line {rng.randrange(1, 9)}{letter}", place, rng.randrange(6, 55)] for letter, place in zip("ABCD", rng.sample(PLACES, 4))]
    return ["line", "terminus", "minutes"], rows, " ".join(f"The bus of {l} needs {m} minutes to {p}." for l, p, m in rows)


def structured(index: int) -> dict:
    rng = rng_of("structured", index)
    keys, rows, text = (_stock, _staff, _stations, _lines)[index // 4 % 4](rng)
    form = list(FORMATS)[index % 4]
    if form == "yaml":
        keys, rows = keys[:2], [r[:2] for r in rows]
    ask = FORMATS[form].format(keys=", ".join(keys), first=f"<{keys[0]}>", second=f"<{keys[1]}>")
    if form == "csv":
        ask = ask.replace(", ".join(keys), ",".join(keys))
    message = f"{text}\n\nTurn this into {ask}."
    if form == "json":
        value = [dict(zip(keys, r)) for r in rows]
        return {"messages": [user(message)], "oracle": {"kind": "json", "value": value}, "reference": json.dumps(value, ensure_ascii=False)}
    cells = [[str(c) for c in r] for r in rows]
    if form == "csv":
        reference = "\n".join(",".join(r) for r in [keys] + cells)
    elif form == "markdown":
        reference = "\n".join("| " + " | ".join(r) + " |" for r in [keys, ["---"] * len(keys)] + cells)
    else:
        reference = "\n".join(f"{a}: {b}" for a, b in cells)
    table = cells if form == "yaml" else [keys] + cells
    return {"messages": [user(message)], "oracle": {"kind": "rows", "format": form, "rows": table}, "reference": reference}


def _object(properties: dict, required: list[str] | None = None) -> dict:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def _enum(*values: str) -> dict:
    return {"type": "string", "enum": list(values)}


TOOLS = {
    "read_file": ("Read lines of a text file.", _object({"path": STRING, "first_line": INTEGER, "last_line": INTEGER}, ["path"])),
    "write_file": ("Write a text file.", _object({"path": STRING, "text": STRING, "mode": _enum("create", "replace", "append")})),
    "move_file": ("Move or rename a file.", _object({"source": STRING, "target": STRING, "overwrite": BOOLEAN}, ["source", "target"])),
    "run_command": ("Run a command in a shell.", _object({"command": STRING, "timeout_seconds": INTEGER}, ["command"])),
    "search_text": ("Search files for a pattern.", _object({"pattern": STRING, "scope": _object({"folder": STRING, "extension": STRING}, ["folder"]), "ignore_case": BOOLEAN}, ["pattern", "scope"])),
    "list_folder": ("List a folder.", _object({"path": STRING, "order": _enum("name", "size", "time")}, ["path"])),
    "add_event": ("Add an entry to the calendar.", _object({"title": STRING, "when": _object({"day": _enum(*DAYS), "hour": INTEGER}), "guests": {"type": "array", "items": STRING}}, ["title", "when"])),
    "delete_event": ("Delete an entry of the calendar.", _object({"title": STRING, "day": _enum(*DAYS)})),
    "query_table": ("Query one table of the database.", _object({"table": STRING, "columns": {"type": "array", "items": STRING}, "where": _object({"column": STRING, "operator": _enum("equals", "less", "greater"), "value": INTEGER})}, ["table", "columns"])),
    "insert_row": ("Insert a row into a table.", _object({"table": STRING, "row": _object({"name": STRING, "count": INTEGER})})),
    "send_message": ("Send a message.", _object({"to": STRING, "text": STRING, "priority": _enum("low", "normal", "high")}, ["to", "text"])),
    "set_timer": ("Start a timer.", _object({"minutes": INTEGER, "label": STRING}))}


def _call(rng, name: str) -> tuple[dict, str]:
    """Arguments of one call and the sentence that asks for it."""
    thing, place, who, day, number = rng.choice(NOUNS), rng.choice(PLACES), rng.choice(NAMES), rng.choice(DAYS), rng.randrange(3, 90)
    path = f"notes/{rng.choice(ADJECTIVES)}/{thing}.txt"
    if name == "read_file":
        return {"path": path, "first_line": number, "last_line": number + 20}, f"Read lines {number} to {number + 20} of {path}."
    if name == "write_file":
        text = f"{who} counted {number} {rng.choice(PRODUCTS)}"
        return {"path": path, "text": text, "mode": "append"}, f"Append exactly this text to {path}: {text}"
    if name == "move_file":
        target = f"archive/{thing}-{number}.txt"
        return {"source": path, "target": target, "overwrite": False}, f"Move {path} to {target}, with overwrite set to false."
    if name == "run_command":
        command = f"wc -l {path}"
        return {"command": command, "timeout_seconds": number}, f"Run the command `{command}` with a timeout of {number} seconds."
    if name == "search_text":
        return ({"pattern": who, "scope": {"folder": "notes", "extension": "txt"}, "ignore_case": True},
                f"Search the folder notes, extension txt, for the pattern {who}, ignoring case.")
    if name == "list_folder":
        return {"path": f"archive/{place}", "order": "size"}, f"List the folder archive/{place}, ordered by size."
    if name == "add_event":
        guests = sorted(rng.sample(NAMES, 2))
        return ({"title": f"visit to {place}", "when": {"day": day, "hour": number % 24}, "guests": guests},
                f"Add an event titled \"visit to {place}\" on {day} at hour {number % 24}, with the guests {guests[0]} and {guests[1]}, in this order.")
    if name == "delete_event":
        return {"title": f"talk with {who}", "day": day}, f"Delete the event titled \"talk with {who}\" on {day}."
    if name == "query_table":
        return ({"table": "stock", "columns": ["name", "count"], "where": {"column": "count", "operator": "less", "value": number}},
                f"From the table stock, query the columns name and count, where count is less than {number}.")
    if name == "insert_row":
        item = rng.choice(PRODUCTS)
        return {"table": "stock", "row": {"name": item, "count": number}}, f"Insert into the table stock a row with name {item} and count {number}."
    if name == "send_message":
        text = f"the {thing} opens on {day}"
        return {"to": who, "text": text, "priority": "high"}, f"Send {who} a message with high priority and exactly this text: {text}"
    return {"minutes": number, "label": thing}, f"Set a timer of {number} minutes with the label {thing}."


def tool_json(index: int) -> dict:
    rng = rng_of("tool_json", index)
    names = list(TOOLS)
    wanted = [names[index % 12]] + rng.sample([n for n in names if n != names[index % 12]], index % 3)
    offered = wanted + rng.sample([n for n in names if n not in wanted], 3)
    rng.shuffle(offered)
    made = [(name, *_call(rng, name)) for name in wanted]
    tools = [{"type": "function", "function": {"name": n, "description": TOOLS[n][0], "parameters": TOOLS[n][1]}} for n in offered]
    text = " Then: ".join(sentence for _, _, sentence in made)
    return {"messages": [system("You act through tools only. Make every call that the task needs in one answer, in the order of the task."), user(text)],
            "tools": tools, "oracle": {"kind": "tool_calls", "calls": [{"name": n, "arguments": a} for n, a, _ in made]}}
