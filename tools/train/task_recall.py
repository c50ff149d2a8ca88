"""Key-value recall: facts `The code of <key> is <value>.` scattered in filler text and asked for later.

The question repeats the whole prefix of the fact, so retrieval is copying what followed the same words before.
The pieces are kept apart (prefix, key, value) because the trainer composes endless rows from their token ids; every
piece starts and ends where the pre-tokeniser splits anyway, so piecewise tokenisation equals that of the whole text.
"""

from __future__ import annotations

import random

from words import ADJECTIVES, NOUNS, VALUE_WORDS

PREFIX = "The code of"  # + key + LINK + value + STOP
LINK = " is"
STOP = ".\n"
QUESTION = "What is the code of"  # + key + "?"
CHAT_INTRO = "Read the text and remember the codes.\n"
DIGITS = 5


def key(adjective: str, noun: str) -> str:
    return f" {adjective} {noun}"


def draw_facts(rng: random.Random, count: int, digits: bool) -> list[tuple[str, str]]:
    """`count` (key, value) pairs. No adjective, noun or value word occurs twice while the lists last."""
    adjectives, nouns = rng.sample(ADJECTIVES, len(ADJECTIVES)), rng.sample(NOUNS, len(NOUNS))
    value_words = rng.sample(sorted(set(VALUE_WORDS)), len(set(VALUE_WORDS)))
    out = []
    for i in range(count):
        if digits:
            value = " " + "".join(rng.choice("0123456789") for _ in range(DIGITS))
        else:
            value = f" {value_words[2 * i % len(value_words)]} {value_words[(2 * i + 1) % len(value_words)]}"
        out.append((key(adjectives[i % len(adjectives)], nouns[i % len(nouns)]), value))
    return out


def context(rng: random.Random, filler: list[str], count_tokens, length: int, facts: list[tuple[str, str]], asked: int,
            distance: int) -> str:
    """Text of about `length` tokens that holds every fact once, fact number `asked` about `distance` tokens before the end.

    filler: lines that end in a newline, used in order. count_tokens: text -> number of tokens.
    """
    budget = length - sum(count_tokens(PREFIX + k + LINK + v + STOP) for k, v in facts)
    lines, used = [], 0
    for line in filler:
        n = count_tokens(line)
        if used + n > budget:
            break
        lines.append((line, used))
        used += n
    slots = sorted(rng.sample(range(len(lines) + 1), min(len(facts), len(lines) + 1)))
    if len(slots) < len(facts):
        raise ValueError(f"{len(lines)} filler lines cannot separate {len(facts)} facts")
    nearest = min(range(len(lines) + 1), key=lambda i: abs((lines[i][1] if i < len(lines) else used) - (used - distance)))
    others = [s for s in slots if s != nearest]
    while len(others) >= len(facts):
        others.pop(rng.randrange(len(others)))
    by_slot = dict(zip(others, (f for i, f in enumerate(facts) if i != asked)))
    by_slot[nearest] = facts[asked]
    out = []
    for i in range(len(lines) + 1):
        if i in by_slot:
            k, v = by_slot[i]
            out.append(PREFIX + k + LINK + v + STOP)
        if i < len(lines):
            out.append(lines[i][0])
    return "".join(out)
