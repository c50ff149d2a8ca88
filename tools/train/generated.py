"""Seeded generators of two natural-looking text kinds that permissive packages have little of: JSON records and shell
sessions. They join the corpus like a package would, under the name `generated`."""

from __future__ import annotations

import json
import random

import words as w


def _word(rng: random.Random) -> str:
    return rng.choice(rng.choice((w.VALUE_WORDS, w.NOUNS, w.ADJECTIVES))).lower()


def _person(rng: random.Random) -> dict:
    name = f"{rng.choice(w.NAMES)} {rng.choice(w.NOUNS)}"
    return {"id": rng.randrange(1, 10000), "name": name, "email": f"{name.split()[0].lower()}@{_word(rng)}.com",
            "city": rng.choice(w.CITIES), "age": rng.randrange(18, 90), "active": rng.random() < 0.5,
            "tags": [_word(rng) for _ in range(rng.randrange(0, 4))]}


def _order(rng: random.Random) -> dict:
    items = [{"product": _word(rng), "quantity": rng.randrange(1, 10), "price": rng.randrange(100, 9999) / 100}
             for _ in range(rng.randrange(1, 5))]
    return {"order_id": f"A{rng.randrange(10000, 99999)}", "customer": rng.choice(w.NAMES), "items": items,
            "total": round(sum(i["quantity"] * i["price"] for i in items), 2), "currency": rng.choice(("EUR", "USD", "GBP")),
            "paid": rng.random() < 0.7, "note": None if rng.random() < 0.5 else f"{_word(rng)} {_word(rng)}"}


def _config(rng: random.Random) -> dict:
    return {"server": {"host": f"{_word(rng)}.example.com", "port": rng.choice((80, 443, 8000, 8080, 9000)), "tls": rng.random() < 0.5},
            "log": {"level": rng.choice(("debug", "info", "warning", "error")), "path": f"/var/log/{_word(rng)}.log"},
            "limits": {"connections": rng.choice((16, 32, 64, 128)), "timeout_ms": rng.randrange(1, 60) * 500},
            "features": {_word(rng): rng.random() < 0.5 for _ in range(rng.randrange(1, 5))}}


def _event(rng: random.Random) -> dict:
    return {"time": f"20{rng.randrange(20, 30)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}T{rng.randrange(24):02}:{rng.randrange(60):02}:00Z",
            "level": rng.choice(("info", "info", "warning", "error")), "service": _word(rng), "message": f"{_word(rng)} {rng.choice(('started', 'stopped', 'failed', 'updated', 'not found'))}",
            "duration_ms": rng.randrange(1, 5000), "ok": rng.random() < 0.8}


def _schema(rng: random.Random) -> dict:
    properties = {}
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choice(("string", "integer", "boolean", "number", "array"))
        properties[_word(rng)] = {"type": kind} | ({"items": {"type": "string"}} if kind == "array" else {}) | (
            {"description": f"The {_word(rng)} of the {_word(rng)}"} if rng.random() < 0.5 else {})
    return {"type": "object", "properties": properties, "required": [k for k in properties if rng.random() < 0.5],
            "additionalProperties": False}


def json_document(rng: random.Random) -> str:
    make = rng.choice((_person, _order, _config, _event, _schema))
    style = rng.randrange(4)
    count = rng.randrange(1, 12)
    if style == 0:
        return "".join(json.dumps(make(rng)) + "\n" for _ in range(count * 2))
    value = make(rng) if style == 1 else [make(rng) for _ in range(count)] if style == 2 else {
        "count": count, "results": [make(rng) for _ in range(count)]}
    return json.dumps(value, indent=rng.choice((2, 2, 4))) + "\n"


def _path(rng: random.Random) -> str:
    return "/".join(_word(rng) for _ in range(rng.randrange(1, 4)))


def _file(rng: random.Random) -> str:
    return f"{_path(rng)}.{rng.choice(('txt', 'log', 'csv', 'json', 'py', 'sh', 'conf'))}"


_COMMANDS = (
    lambda r: f"ls -l {_path(r)}", lambda r: f"cd {_path(r)}", lambda r: f"mkdir -p {_path(r)}", lambda r: f"cp {_file(r)} {_path(r)}/",
    lambda r: f"mv {_file(r)} {_file(r)}", lambda r: f"rm -f {_file(r)}", lambda r: f"cat {_file(r)} | wc -l",
    lambda r: f"grep -n \"{_word(r)}\" {_file(r)}", lambda r: f"grep -rl {_word(r)} {_path(r)} | sort | uniq -c",
    lambda r: f"find {_path(r)} -name \"*.{r.choice(('txt', 'log', 'py'))}\" -mtime -{r.randrange(1, 30)}",
    lambda r: f"head -n {r.randrange(1, 50)} {_file(r)}", lambda r: f"tail -f {_file(r)}", lambda r: f"tar -czf {_word(r)}.tar.gz {_path(r)}",
    lambda r: f"curl -s https://{_word(r)}.example.com/{_word(r)} -o {_file(r)}", lambda r: f"chmod {r.choice(('644', '755', '+x', 'u+w'))} {_file(r)}",
    lambda r: f"git checkout -b {_word(r)}-{_word(r)}", lambda r: f"git commit -m \"{r.choice(('Add', 'Fix', 'Remove', 'Update'))} {_word(r)} {_word(r)}\"",
    lambda r: "git status --short", lambda r: f"git log --oneline -n {r.randrange(1, 20)}", lambda r: f"git push origin {_word(r)}",
    lambda r: f"awk -F, '{{ print ${r.randrange(1, 6)} }}' {_file(r)}", lambda r: f"sed -i 's/{_word(r)}/{_word(r)}/g' {_file(r)}",
    lambda r: f"for f in {_path(r)}/*.{r.choice(('txt', 'log'))}; do\n  echo \"$f\"\ndone",
    lambda r: f"if [ -f {_file(r)} ]; then\n  source {_file(r)}\nfi", lambda r: f"export {_word(r).upper()}=\"{_word(r)}\"",
    lambda r: f"while read -r line; do\n  echo \"{_word(r)}: $line\"\ndone < {_file(r)}", lambda r: f"python3 {_word(r)}.py --{_word(r)} {r.randrange(1, 100)}",
    lambda r: f"docker run --rm -p {r.choice((80, 8080, 3000))}:80 {_word(r)}:latest", lambda r: f"ssh {r.choice(w.NAMES).lower()}@{_word(r)} \"df -h\"",
    lambda r: f"cmake -B build -DCMAKE_BUILD_TYPE={r.choice(('Release', 'Debug'))} && cmake --build build -j{r.randrange(2, 16)}",
    lambda r: f"sort -k{r.randrange(1, 5)} -n {_file(r)} > {_file(r)}", lambda r: f"echo \"{_word(r)} {_word(r)}\" >> {_file(r)}",
)


def shell_document(rng: random.Random) -> str:
    lines = [rng.choice(_COMMANDS)(rng) for _ in range(rng.randrange(5, 40))]
    if rng.random() < 0.4:
        return "".join("$ " + line.replace("\n", "\n> ") + "\n" for line in lines)
    head = "#!/bin/sh\nset -e\n\n" if rng.random() < 0.7 else ""
    return head + "".join(line + ("\n\n" if rng.random() < 0.2 else "\n") for line in lines)
