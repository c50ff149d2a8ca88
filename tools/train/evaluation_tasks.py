"""The held-out task lists of the model card and the grading of completions.

    python tools/train/evaluation_tasks.py --generation v41 --out build/train/eval.v41.jsonl

One JSON object per line: `id`, `task`, `prompt` (encoded text), `ids` (its tokens), `max_tokens`, `group` (labels the
figures are broken down by) and `expect`. Everything follows from seeds, except the filler of recall prompts, which is
held-out corpus text.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import re

import chat_format
import task_arith
import task_chat
import task_recall
import task_tools

SEED = "model card 1"
RECALL_LENGTHS = (1024, 2048, 4096, 8192)
COUNTS = {"recall": 40, "tool": 100, "arith": 100, "chat": 100}


def filler_lines(text_dir: pathlib.Path, rng: random.Random, characters: int) -> list[str]:
    """Consecutive lines of held-out prose, code and shell documents, without empty ones at the seams."""
    texts = []
    for name in ("prose", "code", "shell"):
        with open(text_dir / f"{name}.heldout.jsonl", encoding="utf-8") as f:
            texts += [json.loads(line)["text"] for line in f]
    rng.shuffle(texts)
    lines, used = [], 0
    for text in texts:
        for line in text.splitlines(keepends=True):
            if line.strip() and line.endswith("\n"):
                lines.append(line)
                used += len(line)
        if used > characters:
            break
    return lines


def recall_item(rng: random.Random, length: int, index: int, tokenizer, text_dir: pathlib.Path) -> dict:
    """A prompt of `length` tokens at most. Labels: digits or words, raw or chat, and where the asked fact stands: far
    (among the first 5 % of the tokens) or at a uniformly drawn distance."""
    digits, chat, far = bool(index & 1), bool(index & 2), bool(index & 4)
    count_tokens = lambda t: len(tokenizer.encode(t, add_special_tokens=False).ids)  # noqa: E731
    facts = task_recall.draw_facts(rng, max(4, min(40, length // 100)), digits)
    asked = rng.randrange(len(facts))
    body_length = length - 48
    distance = int(body_length * rng.uniform(0.95, 1.0)) if far else rng.randint(64, body_length)
    body = task_recall.context(rng, filler_lines(text_dir, rng, 8 * length), count_tokens, body_length, facts, asked, distance)
    key, value = facts[asked]
    if chat:
        question = task_recall.QUESTION + key + "?"
        prompt = chat_format.encode([{"role": "user", "content": task_recall.CHAT_INTRO + body + question}], "v4", thinking=False)
    else:
        prompt = chat_format.BOS + body + task_recall.PREFIX + key + task_recall.LINK
    return {"task": "recall", "prompt": prompt, "max_tokens": 40 if chat else 16, "expect": value.strip(),
            "group": {"length": length, "value": "digits" if digits else "words", "form": "chat" if chat else "raw",
                      "place": "far" if far else "uniform"}}


def tool_item(rng: random.Random, generation: str) -> dict:
    """The first call of a held-out tool conversation."""
    messages, thinking = task_tools.conversation(rng, held=True)
    prompt = chat_format.encode(messages[:2], generation, thinking)
    calls = [{"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in messages[2]["tool_calls"]]
    return {"task": "tool", "prompt": prompt, "max_tokens": 300, "group": {"mode": "thinking" if thinking else "chat"},
            "expect": {"calls": calls, "tools": [t["function"] for t in messages[0]["tools"]]}}


def arith_item(rng: random.Random, generation: str) -> dict:
    """A three-digit addition in thinking mode."""
    p = task_arith.problem(rng, "add", digits=3)
    prompt = chat_format.encode([{"role": "user", "content": p["question"]}], generation, thinking=True)
    return {"task": "arith", "prompt": prompt, "max_tokens": 200, "expect": p["result"], "group": {}}


def chat_item(rng: random.Random, generation: str) -> dict:
    """One chat-mode exchange of the templated kinds."""
    question, _, answer = task_chat.turn(rng)
    prompt = chat_format.encode([{"role": "user", "content": question}], generation, thinking=False)
    return {"task": "chat", "prompt": prompt, "max_tokens": 100, "expect": answer, "group": {}}


def task_list(generation: str, tokenizer, text_dir: pathlib.Path, counts: dict[str, int] | None = None) -> list[dict]:
    """All items of the model card. counts: items per task (recall: per length); tasks that are left out get none."""
    counts = COUNTS if counts is None else counts
    items = []
    for length in RECALL_LENGTHS:
        items += [recall_item(random.Random(f"{SEED}:recall:{length}:{i}"), length, i, tokenizer, text_dir)
                  for i in range(counts.get("recall", 0))]
    for name, make in (("tool", tool_item), ("arith", arith_item), ("chat", chat_item)):
        items += [make(random.Random(f"{SEED}:{name}:{i}"), generation) for i in range(counts.get(name, 0))]
    for i, item in enumerate(items):
        item["id"] = i
        item["ids"] = tokenizer.encode(item["prompt"], add_special_tokens=False).ids
    return items


class Malformed(ValueError):
    """A completion that breaks the grammar of spec/model.md 8.5."""


def parse_completion(text: str, generation: str, thinking: bool) -> dict:
    """Strict parse of a completion to `reasoning`, `content` and `calls` [{name, arguments}]; raises Malformed."""
    c, i, p = ("tool_calls", "invoke", "parameter") if generation == "v4" else (" calls", " invoke", " parameter")
    d = chat_format.DSML
    text = text.removesuffix(chat_format.EOS)
    reasoning = ""
    if thinking:
        reasoning, end, text = text.partition(chat_format.END_THINK)
        if not end:
            raise Malformed("reasoning does not end")
    content, opened, rest = text.partition(f"\n\n<{d}{c}>\n")
    if chat_format.DSML in content:
        raise Malformed("stray DSML mark")
    calls = []
    if opened:
        closing = f"\n</{d}{c}>"
        if not rest.endswith(closing):
            raise Malformed("calls block does not end")
        rest = rest[: -len(closing)] + "\n"
        invoke = re.compile(rf'<{d}{i} name="([^"\n]+)">\n(.*?)\n?</{d}{i}>\n', re.S)
        parameter = re.compile(rf'<{d}{p} name="([^"\n]+)" string="(true|false)">(.*?)</{d}{p}>(?:\n|$)', re.S)
        at = 0
        while at < len(rest):
            m = invoke.match(rest, at)
            if not m:
                raise Malformed(f"expected an invoke at {rest[at:at + 40]!r}")
            at, body, arguments, k = m.end(), m[2], {}, 0
            while k < len(body):
                q = parameter.match(body, k)
                if not q or q[1] in arguments:
                    raise Malformed(f"bad parameter at {body[k:k + 40]!r}")
                try:
                    arguments[q[1]] = q[3] if q[2] == "true" else json.loads(q[3])
                except ValueError as error:
                    raise Malformed(f"parameter {q[1]!r} is not JSON") from error
                k = q.end()
            calls.append({"name": m[1], "arguments": arguments})
    return {"reasoning": reasoning, "content": content, "calls": calls}


def grade(item: dict, text: str, generation: str) -> dict[str, bool]:
    """Outcomes of one completion: `exact`, and for tools also `valid` (parses, right tool names, schema-valid arguments)."""
    expect = item["expect"]
    if item["task"] == "recall":
        end = r"\s*[.\n]" if item["group"]["form"] == "raw" else r"\.?\s*$"
        answer = text.removesuffix(chat_format.EOS)
        if item["group"]["form"] == "chat":
            answer = answer.rpartition(task_recall.LINK + " ")[2]
        return {"exact": bool(re.match(re.escape(expect) + end, answer.strip(" ")))}
    if item["task"] == "chat":
        return {"exact": text.removesuffix(chat_format.EOS).strip() == expect.strip()}
    thinking = item["task"] == "arith" or item["group"]["mode"] == "thinking"
    try:
        parsed = parse_completion(text, generation, thinking)
    except Malformed:
        return {"exact": False, "valid": False} if item["task"] == "tool" else {"exact": False}
    if item["task"] == "arith":
        numbers = re.findall(r"\d+", parsed["content"])
        return {"exact": bool(numbers) and int(numbers[-1]) == expect}
    calls = parsed["calls"]
    valid = bool(calls) and sorted(c["name"] for c in calls) == sorted(c["name"] for c in expect["calls"]) and all(
        task_tools.valid_call(c, expect["tools"]) is None for c in calls)
    return {"exact": calls == expect["calls"], "valid": valid}


def summary(items: list[dict], outcomes: list[dict[str, bool]]) -> dict:
    """Shares in per cent by task, recall by length and within it by label."""
    def share(pairs, key="exact"):
        return round(100 * sum(o[key] for _, o in pairs) / len(pairs), 1) if pairs else None

    both = list(zip(items, outcomes))
    out: dict = {}
    recall = [p for p in both if p[0]["task"] == "recall"]
    if recall:
        out["recall"] = {}
        for length in sorted({i["group"]["length"] for i, _ in recall}):
            here = [p for p in recall if p[0]["group"]["length"] == length]
            out["recall"][str(length)] = {"count": len(here), "exact": share(here)} | {
                value: share([p for p in here if value in p[0]["group"].values()])
                for value in ("digits", "words", "raw", "chat", "far", "uniform")}
    for task in ("tool", "arith", "chat"):
        here = [p for p in both if p[0]["task"] == task]
        if here:
            out[task] = {"count": len(here), "exact": share(here)}
            if task == "tool":
                out[task]["valid"] = share(here, "valid")
    return out


def main() -> None:
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generation", choices=chat_format.GENERATIONS, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path("models/mini-v41/tokenizer.json"))
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path("build/train/text"))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    items = task_list(args.generation, Tokenizer.from_file(str(args.tokenizer)), args.text)
    with open(args.out, "w", encoding="utf-8") as f:
        for item in items:
            f.write(json.dumps(item, ensure_ascii=False) + "\n")
    print(f"{args.out}: {len(items)} prompts, {sum(len(i['ids']) for i in items)} tokens")


if __name__ == "__main__":
    main()
